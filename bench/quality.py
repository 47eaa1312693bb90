"""How well does it find things? Evidence recall on LoCoMo-format conversations, exact sets on PrecisionMemBench.

    make bench-quality ARGS="--locomo FILE --precision DIRECTORY"

Everything runs through the engine (`memory_search`, `memory_recall`) on a database of its own; BM25 and grep are
computed beside it over the same texts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from butler_memory.bootstrap import Engine, open_engine
from butler_memory.domain.kinds import Role
from butler_memory.domain.ranking import Fusion, Recipe
from butler_memory.memory import Memory
from butler_memory.security.principal import Principal
from butler_memory.settings import load

DEPTHS = (5, 10, 20)
RESULTS = Path(__file__).parent / "results"
console = Console()

Search = Callable[[Principal, str], Awaitable[list[str]]]

RECIPES: dict[str, tuple[Recipe, str]] = {
    "dense": (Recipe(mean_shift=0, neighbours=0), "semantic"),
    "keyword": (Recipe(), "keyword"),
    "rrf k=60": (Recipe(fusion=Fusion.RRF, mean_shift=0, neighbours=0), "hybrid"),
    "convex": (Recipe(mean_shift=0, neighbours=0), "hybrid"),
    "convex + mean": (Recipe(neighbours=0), "hybrid"),
    "default": (Recipe(), "hybrid"),
}


# --- LoCoMo ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conversation:
    name: str
    turns: dict[str, str]  # turn id -> "speaker: text [caption]"
    sessions: dict[str, str]
    questions: list[tuple[str, set[str], int]]


def read_locomo(file: Path) -> list[Conversation]:
    return [_conversation(item) for item in json.loads(file.read_text())]


def _conversation(item: dict[str, Any]) -> Conversation:
    turns, sessions = {}, {}
    for name, value in item["conversation"].items():
        if re.fullmatch(r"session_\d+", name):
            for turn in value:
                caption = f" [{turn['blip_caption']}]" if turn.get("blip_caption") else ""
                turns[turn["dia_id"]] = f"{turn['speaker']}: {turn['text']}{caption}"
                sessions[turn["dia_id"]] = name
    questions = []
    for qa in item["qa"]:
        gold = {e for e in qa.get("evidence", []) if e in turns}
        if gold:  # labels that do not resolve are skipped, as the data's notes say
            questions.append((qa["question"], gold, qa["category"]))
    return Conversation(item["sample_id"], turns, sessions, questions)


async def load_conversation(
    engine: Engine, conversation: Conversation, progress: Progress
) -> tuple[Principal, dict[str, str]]:
    secret, _ = await engine.access.create_token(conversation.name, "bench", Role.BUTLER)
    who = await engine.access.authenticate(secret)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    items = [
        {
            "content": text,
            "session_id": conversation.sessions[turn],
            "occurred_at": (start + timedelta(minutes=n)).isoformat(),
            "metadata": {"turn": turn},
        }
        for n, (turn, text) in enumerate(conversation.turns.items())
    ]
    ids = {}
    task = progress.add_task(conversation.name, total=len(items))
    for begin in range(0, len(items), 50):
        batch = items[begin : begin + 50]
        written = await engine.memory.ingest_batch(who, {"episodes": batch})
        for item, result in zip(batch, written["results"], strict=True):
            ids[result["id"]] = item["metadata"]["turn"]
        progress.advance(task, len(batch))
    return who, ids


async def bench_locomo(engine: Engine, file: Path) -> dict[str, Any]:
    conversations = read_locomo(file)
    with Progress(console=console) as progress:
        loaded = [(c, *await load_conversation(engine, c, progress)) for c in conversations]
    await wait_for_vectors(engine, [who for _, who, _ in loaded])
    report: dict[str, Any] = {}
    for name in [*RECIPES, "BM25", "grep"]:
        tally = Tally()
        for conversation, who, ids in loaded:
            search = await searcher(engine, name, conversation, ids)
            for question, gold, category in conversation.questions:
                tally.add(await search(who, question), gold, category)
        report[name] = tally.means()
        console.print(f"  {name}: R@5 {report[name]['all']['R@5']:.3f}  R@10 {report[name]['all']['R@10']:.3f}")
    return report


async def searcher(engine: Engine, name: str, conversation: Conversation, ids: dict[str, str]) -> Search:
    if name == "BM25":
        return bm25(conversation.turns)
    if name == "grep":
        return grep(conversation.turns)
    recipe, mode = RECIPES[name]
    memory = Memory(engine.desk, replace(engine.reader, recipe=recipe), engine.clock)

    async def search(who: Principal, question: str) -> list[str]:
        found = await memory.search(who, {"query": question, "mode": mode, "types": ["episode"], "limit": max(DEPTHS)})
        return [ids[result["id"]] for result in found["results"]]

    return search


class Tally:
    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, float]]] = defaultdict(list)

    def add(self, found: Sequence[str], gold: set[str], category: int) -> None:
        row = {f"R@{k}": len(gold & set(found[:k])) / len(gold) for k in DEPTHS}
        row["hit@10"] = float(bool(gold & set(found[:10])))
        first = next((n for n, turn in enumerate(found, 1) if turn in gold), None)
        row["MRR"] = 1 / first if first else 0.0
        for key in ("all", f"category {category}"):
            self.rows[key].append(row)

    def means(self) -> dict[str, dict[str, float]]:
        return {
            key: {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]} | {"n": len(rows)}
            for key, rows in sorted(self.rows.items())
        }


_WORD = re.compile(r"\w+")


def bm25(texts: dict[str, str]) -> Search:
    """The textbook formula (k1 = 1.2, b = 0.75) on lower-cased words."""
    bags = {turn: Counter(_WORD.findall(text.lower())) for turn, text in texts.items()}
    frequency = Counter(word for bag in bags.values() for word in bag)
    mean = sum(sum(bag.values()) for bag in bags.values()) / len(bags)

    async def search(_: Principal, question: str) -> list[str]:
        words = set(_WORD.findall(question.lower()))
        scores = {}
        for turn, bag in bags.items():
            length = 1.2 * (0.25 + 0.75 * sum(bag.values()) / mean)
            scores[turn] = sum(
                math.log(1 + (len(bags) - frequency[w] + 0.5) / (frequency[w] + 0.5)) * bag[w] * 2.2 / (bag[w] + length)
                for w in words
                if w in bag
            )
        return sorted(scores, key=lambda turn: -scores[turn])[: max(DEPTHS)]

    return search


def grep(texts: dict[str, str]) -> Search:
    """What a person would do: lines that contain most of the longer words, newest first."""

    async def search(_: Principal, question: str) -> list[str]:
        words = [w for w in _WORD.findall(question.lower()) if len(w) > 3]
        hits = {turn: sum(w in text.lower() for w in words) for turn, text in texts.items()}
        return sorted((t for t in reversed(hits) if hits[t]), key=lambda turn: -hits[turn])[: max(DEPTHS)]

    return search


# --- PrecisionMemBench ----------------------------------------------------------------------------------------------


async def bench_precision(engine: Engine, directory: Path) -> dict[str, Any]:
    beliefs = json.loads((directory / "beliefs.seed.json").read_text())
    cases = json.loads((directory / "retrieval.cases.json").read_text())
    ids = await load_beliefs(engine, beliefs)
    pinned = {b["_id"] for b in beliefs if b.get("pinned")}
    rows, misses = [], []
    for case in track(cases, "cases", console=console, transient=True):
        expected = set(case["expect"].get("relevantBeliefs", {}).get("shouldOnlyInclude", []))
        if "shouldOnlyInclude" not in case["expect"].get("relevantBeliefs", {}):
            continue
        found = await recall_case(engine, case, ids) - pinned
        rows.append((expected, found))
        if found != expected:
            misses.append(
                {"case": case["caseId"], "missing": sorted(expected - found), "extra": sorted(found - expected)}
            )
    return precision_report(rows) | {"misses": misses}


async def load_beliefs(engine: Engine, beliefs: list[dict[str, Any]]) -> dict[str, str]:
    ids = {}
    for belief in beliefs:
        who = await bench_principal(engine, belief["user_id"], "desk", Role.ADMIN)
        scope = belief["scope"][0]
        written = await engine.memory.store_fact(
            who,
            {
                "subject": "user",
                "predicate": belief["canonical_name"],
                "content": belief["content"],
                "tags": belief["aliases"],
                "scope": "global" if scope == "user:universal" else scope.removeprefix("domain:"),
                "confidence": belief["confidence"],
                "permanence": "permanent" if belief.get("pinned") else "stable",
                "importance": 9 if belief.get("pinned") else 5,
            },
        )
        ids[written["id"]] = belief["_id"]
        if belief["superseded_by"] or belief["resolved_at"]:
            await engine.memory.forget(who, {"type": "fact", "id": written["id"]})
    return ids


_principals: dict[tuple[str, str], Principal] = {}


async def bench_principal(engine: Engine, tenant: str, butler: str, role: Role) -> Principal:
    if (tenant, butler) not in _principals:
        secret, _ = await engine.access.create_token(tenant, butler, role)
        _principals[(tenant, butler)] = await engine.access.authenticate(secret)
    return _principals[(tenant, butler)]


async def recall_case(engine: Engine, case: dict[str, Any], ids: dict[str, str]) -> set[str]:
    """The caller is a butler whose own scope is the case's domain."""
    if not case["query"].strip():
        return set()  # an empty topic is refused: nothing comes back
    domains = [s.removeprefix("domain:") for s in case["scope"] if s.startswith("domain:")]
    butler = domains[0] if domains else "someone"
    who = await bench_principal(engine, case.get("userId", "test-user"), butler, Role.BUTLER)
    found = await engine.memory.recall(who, {"topic": case["query"]})
    return {ids[result["id"]] for result in found["results"] if result["id"] in ids}


def precision_report(rows: list[tuple[set[str], set[str]]]) -> dict[str, Any]:
    wanted = [(expected, found) for expected, found in rows if expected]
    precision = [len(e & f) / len(f) if f else 0.0 for e, f in wanted]
    recall = [len(e & f) / len(e) for e, f in wanted]
    silent = [not found for expected, found in rows if not expected]
    return {
        "cases": len(rows),
        "precision": sum(precision) / len(precision),
        "recall": sum(recall) / len(recall),
        "exact sets": sum(e == f for e, f in rows) / len(rows),
        "silence kept": sum(silent) / len(silent),
    }


# --- running and showing --------------------------------------------------------------------------------------------


async def wait_for_vectors(engine: Engine, principals: list[Principal]) -> None:
    for who in principals:
        while (await engine.memory.stats(who, {}))["without_vector"]:
            await asyncio.sleep(0.2)


def show(report: dict[str, Any]) -> None:
    if "locomo" in report:
        table = Table(title="LoCoMo: share of gold turns found")
        for column in ("", *next(iter(report["locomo"].values()))["all"]):
            table.add_column(column)
        for name, parts in report["locomo"].items():
            table.add_row(name, *(f"{value:.3f}" if key != "n" else str(value) for key, value in parts["all"].items()))
        console.print(table)
    if "precision" in report:
        table = Table(title="PrecisionMemBench: memory_recall")
        shown = {k: v for k, v in report["precision"].items() if k != "misses"}
        for column in shown:
            table.add_column(column)
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in shown.values()))
        console.print(table)


def plot(report: dict[str, Any], file: Path) -> None:
    """Bars of recall by depth; needs matplotlib, and says so instead of failing."""
    try:
        import matplotlib
    except ImportError:
        console.print("No plot: 'pip install matplotlib' adds it.")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4))
    for n, (name, parts) in enumerate(report.get("locomo", {}).items()):
        axes.bar([k + n * 0.12 for k in range(len(DEPTHS))], [parts["all"][f"R@{d}"] for d in DEPTHS], 0.11, label=name)
    axes.set_xticks([k + 0.4 for k in range(len(DEPTHS))], [f"R@{d}" for d in DEPTHS])
    axes.legend(fontsize=7)
    figure.savefig(file)


async def run(arguments: argparse.Namespace) -> None:
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        settings = load(environ={"BUTLER_MEMORY_DATA_DIR": scratch})
        async with open_engine(settings, progress=console.print) as engine:
            began = time.perf_counter()
            report: dict[str, Any] = {}
            if arguments.precision:
                report["precision"] = await bench_precision(engine, arguments.precision)
            if arguments.locomo:
                report["locomo"] = await bench_locomo(engine, arguments.locomo)
            report["seconds"] = round(time.perf_counter() - began, 1)
    show(report)
    (RESULTS / "quality.json").write_text(json.dumps(report, indent=2))
    plot(report, RESULTS / "quality.png")
    console.print(f"Written to {RESULTS}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--locomo", type=Path, help="a JSON file in LoCoMo's format")
    parser.add_argument("--precision", type=Path, help="the directory of PrecisionMemBench's JSON files")
    asyncio.run(run(parser.parse_args()))
