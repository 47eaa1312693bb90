"""all-MiniLM-L6-v2 as an ONNX graph, made from the published weights without torch.

The graph is written in onnxruntime's fused operators at once, so nothing is left to optimise at start-up:

    input_ids ─ EmbedLayerNormalization ─┬─ Attention ─ MatMul ─ SkipLayerNormalization ─┐
                                    6 x  └─ MatMul ─ BiasGelu ─ MatMul ─ SkipLayerNormalization
    attention_mask ─────────────── MatMul (sum over real tokens) ─ LpNormalization ─ embedding

Weights lie in a second file beside the graph: onnxruntime maps it, so the 47 MB word table costs only the
pages that are really used, and loading takes a third of the time (docs/decisions/0002).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

GRAPH_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"
# Raised when the graph below changes: an older one in the cache is then built anew.
GRAPH_REVISION = 1

DIMENSIONS = 384
MAX_TOKENS = 256  # as sentence-transformers truncates this model; trained on 128
_LAYERS = 6
_HEADS = 12
_EPSILON = 1e-12  # of every layer norm, from the published config.json
_OPSET = 17
_IR_VERSION = 9
_FUSED = "com.microsoft"
_INLINE_BYTES = 1024  # smaller tensors (shapes, axes) stay inside the graph file

Array = npt.NDArray[Any]


def build(weights: Path, target: Path) -> None:
    """Write the graph and its data file into the directory `target`."""
    # Only here: a started service needs neither of them in memory.
    import onnx
    from safetensors import safe_open

    with safe_open(weights, framework="numpy") as tensors:
        graph = _Graph(tensors.get_tensor)
        _assemble(graph)
    onnx.save(
        graph.as_model(),
        target / GRAPH_FILE,
        save_as_external_data=True,
        location=DATA_FILE,
        size_threshold=_INLINE_BYTES,
    )
    (target / DATA_FILE).chmod(0o644)  # onnx makes it 0600; a cache built as root must stay readable


@dataclass
class _Graph:
    """Collects nodes and constants; every method returns the name of what it added."""

    weight: Callable[[str], Array]
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def constant(self, name: str, value: Array) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def published(self, name: str) -> str:
        return self.constant(name, self.weight(name))

    def node(self, op: str, inputs: list[str], name: str, domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(op, inputs, [name], domain=domain, **attributes))
        return name

    def fused(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        return self.node(op, inputs, name, _FUSED, **attributes)

    def as_model(self) -> Any:
        from onnx import TensorProto, helper

        tokens = ["texts", "tokens"]
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT32, tokens) for name in ("input_ids", "attention_mask")
        ]
        output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["texts", DIMENSIONS])
        graph = helper.make_graph(self.nodes, "all-MiniLM-L6-v2", inputs, [output], self.constants)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_FUSED, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def _assemble(graph: _Graph) -> None:
    hidden = _embeddings(graph)
    for layer in range(_LAYERS):
        hidden = _encoder_layer(graph, f"encoder.layer.{layer}.", hidden)
    _pool(graph, hidden)


def _embeddings(graph: _Graph) -> str:
    from onnx import helper

    prefix = "embeddings."
    # Every token is of segment 0, so its one row is added to the positions here, once.
    positions = graph.weight(prefix + "position_embeddings.weight")[:MAX_TOKENS]
    positions = positions + graph.weight(prefix + "token_type_embeddings.weight")[0]
    inputs = [
        "input_ids",
        "",
        graph.published(prefix + "word_embeddings.weight"),
        graph.constant("positions", positions),
        "",
        *_layer_norm(graph, prefix),
        "attention_mask",
    ]
    # Two outputs: the second counts each text's real tokens, which is the mask Attention wants.
    outputs = ["embedded", "lengths"]
    graph.nodes.append(helper.make_node("EmbedLayerNormalization", inputs, outputs, domain=_FUSED, epsilon=_EPSILON))
    return "embedded"


def _encoder_layer(graph: _Graph, prefix: str, hidden: str) -> str:
    attended = _attention(graph, prefix, hidden)
    hidden = _add_and_norm(graph, prefix + "attention.output.", attended, hidden)
    widened = _matmul(graph, prefix + "intermediate.", hidden)
    bias = graph.published(prefix + "intermediate.dense.bias")
    activated = graph.fused("BiasGelu", [widened, bias], prefix + "gelu")
    return _add_and_norm(graph, prefix + "output.", activated, hidden)


def _attention(graph: _Graph, prefix: str, hidden: str) -> str:
    names = [f"{prefix}attention.self.{part}." for part in ("query", "key", "value")]
    weights = np.concatenate([graph.weight(name + "weight").T for name in names], axis=1)
    biases = np.concatenate([graph.weight(name + "bias") for name in names])
    inputs = [
        hidden,
        graph.constant(prefix + "qkv.weight", weights),
        graph.constant(prefix + "qkv.bias", biases),
        "lengths",
    ]
    return graph.fused("Attention", inputs, prefix + "attention", num_heads=_HEADS)


def _add_and_norm(graph: _Graph, prefix: str, source: str, residual: str) -> str:
    """LayerNorm(source @ W + bias + residual); the fused operator adds the bias itself."""
    projected = _matmul(graph, prefix, source)
    bias = graph.published(prefix + "dense.bias")
    inputs = [projected, residual, *_layer_norm(graph, prefix), bias]
    return graph.fused("SkipLayerNormalization", inputs, prefix + "normed", epsilon=_EPSILON)


def _matmul(graph: _Graph, prefix: str, source: str) -> str:
    weight = graph.constant(prefix + "dense.weight", graph.weight(prefix + "dense.weight").T)
    return graph.node("MatMul", [source, weight], prefix + "product")


def _layer_norm(graph: _Graph, prefix: str) -> tuple[str, str]:
    return graph.published(prefix + "LayerNorm.weight"), graph.published(prefix + "LayerNorm.bias")


def _pool(graph: _Graph, hidden: str) -> None:
    """Sum over the real tokens, then unit length: the mean's divisor would cancel out."""
    from onnx import TensorProto

    axis = graph.constant("axis", np.array([1], np.int64))
    mask = graph.node("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
    row = graph.node("Unsqueeze", [mask, axis], "mask_row")
    total = graph.node("Squeeze", [graph.node("MatMul", [row, hidden], "sum_row"), axis], "sum")
    graph.node("LpNormalization", [total], "embedding", axis=-1, p=2)
