"""Texts become vectors here, and nowhere else.

    ports        what the rest of the house may ask of an embedder
    models       which of several models a tenant's vectors are made by
    minilm       the real one: all-MiniLM-L6-v2 in onnxruntime, on one worker thread
    batching     which texts share the model's next run
    model_store  a model directory that is ready to run, built once per machine
    weights      the published files: local path, cache, package index, Hugging Face hub
    onnx_graph   the published weights as an ONNX graph, without torch
    fake         a deterministic stand-in for tests

Importing this package imports neither onnxruntime nor onnx.
"""

from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.embedding.ports import Embedder, Vector

__all__ = ["Embedder", "FakeEmbedder", "Vector"]
