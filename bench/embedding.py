"""Our embedder against PyTorch with the same published weights, side by side in one run.

    python bench/embedding.py [--cache DIR] [--rounds N]

Both sides go from text to unit vector, tokenising included. PyTorch sorts by length and pads batches of 32, as
sentence-transformers does. Each round measures every side once, so that a noisy minute hits them all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import platformdirs
from rich.console import Console
from rich.table import Table

from butler_memory.embedding.minilm import MiniLmEmbedder
from butler_memory.embedding.model_store import prepare
from butler_memory.embedding.onnx_graph import DIMENSIONS, MAX_TOKENS
from butler_memory.embedding.weights import WEIGHTS

try:
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel
except ImportError as missing:
    sys.exit(f"{missing}. This bench compares with PyTorch: pip install torch==2.13.0 transformers")

RESULTS = Path(__file__).parent / "results" / "embedding.json"
TORCH_BATCH = 32  # sentence-transformers' default
WORDS = "time year people way day man thing woman life child world school state family house".split()

Embed = Callable[[list[str]], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    name: str
    texts: list[str]
    repeats: int  # per round


@dataclass(frozen=True)
class Figures:
    case: str
    side: str
    p50_ms: float
    p95_ms: float
    samples: int  # below 20, p95 is simply the slowest
    texts_per_s: float
    times_ours: float  # how many times our median this side needs


def text_of(tokens: int, seed: int = 0) -> str:
    """Words of one token each, between the model's [CLS] and [SEP]."""
    return " ".join(random.Random(seed).choices(WORDS, k=tokens - 2))


def cases() -> list[Case]:
    lengths = random.Random(7)
    mixed = [text_of(lengths.randint(8, 120), seed) for seed in range(64)]
    return [
        Case("1 x 12 tokens", [text_of(12)], 20),
        Case("1 x 61 tokens", [text_of(61)], 10),
        Case("1 x 256 tokens", [text_of(256)], 4),
        Case("64 x 12 tokens", [text_of(12, seed) for seed in range(64)], 1),
        Case("64 x 61 tokens", [text_of(61, seed) for seed in range(64)], 1),
        Case("64 x 8-120 tokens", mixed, 1),
    ]


class TorchEmbedder:
    """BertModel + mean pooling + normalise, the published recipe."""

    def __init__(self, weights: Path, tokenizer: Path) -> None:
        config = BertConfig(hidden_size=DIMENSIONS, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
        self._model = BertModel(config, add_pooling_layer=False).eval()
        state = load_file(weights)
        wanted = self._model.state_dict().keys()
        self._model.load_state_dict({name: state[name] for name in wanted if name in state}, strict=False)
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()

    def with_threads(self, threads: int) -> Embed:
        async def embed(texts: list[str]) -> Any:
            torch.set_num_threads(threads)
            ordered = sorted(texts, key=len)
            starts = range(0, len(ordered), TORCH_BATCH)
            return [self._forward(ordered[start : start + TORCH_BATCH]) for start in starts]

        return embed

    def _forward(self, texts: list[str]) -> Any:
        encoded = self._tokenizer.encode_batch(texts)
        ids = torch.tensor([one.ids for one in encoded])
        mask = torch.tensor([one.attention_mask for one in encoded])
        with torch.inference_mode():
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return torch.nn.functional.normalize(mean, dim=-1).numpy()


async def measure(case: Case, sides: dict[str, Embed], rounds: int) -> list[Figures]:
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for round_number in range(rounds + 1):
        for side, embed in sides.items():
            for _ in range(case.repeats):
                started = time.perf_counter()
                await embed(case.texts)
                # Round 0 warms up: threads, caches, allocators.
                if round_number:
                    seconds[side].append(time.perf_counter() - started)
    ours = statistics.median(seconds["ours, 1 thread"])
    return [figures(case, side, taken, ours) for side, taken in seconds.items()]


def figures(case: Case, side: str, seconds: list[float], ours: float) -> Figures:
    middle = statistics.median(seconds)
    slow = sorted(seconds)[min(len(seconds) - 1, round(0.95 * len(seconds)))]
    return Figures(
        case=case.name,
        side=side,
        p50_ms=round(middle * 1e3, 2),
        p95_ms=round(slow * 1e3, 2),
        samples=len(seconds),
        texts_per_s=round(len(case.texts) / middle, 1),
        times_ours=round(middle / ours, 2),
    )


def show(rows: list[Figures]) -> None:
    table = Table("case", "side", "p50 ms", "p95 ms", "samples", "texts/s", "x ours")
    for row in rows:
        table.add_row(row.case, row.side, *(str(value) for value in list(asdict(row).values())[2:]))
    Console().print(table)


def write(rows: list[Figures]) -> None:
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine, "figures": [asdict(row) for row in rows]}, indent=2) + "\n")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(platformdirs.user_cache_dir("butler-memory", appauthor=False)) / "models"
    parser.add_argument("--cache", type=Path, default=default)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    built = prepare(options.cache, None, print)
    default_threads = torch.get_num_threads()
    rival = TorchEmbedder(built.graph.parent.parent / WEIGHTS.name, built.tokenizer)
    ours = await MiniLmEmbedder.open(options.cache)
    ours_wide = await MiniLmEmbedder.open(options.cache, threads=default_threads)
    sides: dict[str, Embed] = {
        "ours, 1 thread": ours.embed,
        "torch, 1 thread": rival.with_threads(1),
        f"ours, {default_threads} threads": ours_wide.embed,
        f"torch, {default_threads} threads": rival.with_threads(default_threads),  # its default count
    }
    rows = [row for case in cases() for row in await measure(case, sides, options.rounds)]
    await ours.close()
    await ours_wide.close()
    show(rows)
    write(rows)


if __name__ == "__main__":
    asyncio.run(main())
