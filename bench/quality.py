"""How well does it find things? Evidence recall on LoCoMo-format conversations, exact sets on PrecisionMemBench.

    make bench-quality ARGS="--locomo FILE --precision DIRECTORY [--by-category]"

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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from butler_memory.bootstrap import Engine, open_engine, timetable
from butler_memory.domain.kinds import Role
from butler_memory.domain.ranking import Fusion, Recipe
from butler_memory.domain.requests import StoreFact, parse
from butler_memory.memory import Memory
from butler_memory.security.principal import Principal
from butler_memory.settings import load
from butler_memory.writing import facts

DEPTHS = (5, 10, 20)
RESULTS = Path(__file__).parent / "results"
console = Console()

Search = Callable[[Principal, str], Awaitable[list[str]]]

PLAIN = Recipe(mean_shift=0, neighbours=0)
# Each part of the default by itself, so that its gain is seen.
RECIPES: dict[str, tuple[Recipe, str]] = {
    "dense": (PLAIN, "semantic"),
    "dense + mean": (Recipe(neighbours=0), "semantic"),
    "keyword": (PLAIN, "keyword"),
    "rrf k=60": (replace(PLAIN, fusion=Fusion.RRF), "hybrid"),
    "convex": (PLAIN, "hybrid"),
    "convex + mean": (Recipe(neighbours=0), "hybrid"),
    "convex + neighbours": (Recipe(mean_shift=0), "hybrid"),
    "default (both)": (Recipe(), "hybrid"),
}
# Where the data has observations, they are stored as facts with the turns that they were made from as evidence.
WITH_FACTS = {"with facts": Recipe(cited=0), "with facts (default)": Recipe()}
# Facts stand between the episodes in these answers; so many results hold twenty episodes.
AMONG_FACTS = 80
# As LoCoMo numbers its questions.
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
# Published by PrecisionMemBench (tenurehq/precisionMemBench, arXiv 2605.11325) on the same data: precision, recall.
PEERS = {
    "tenure": (1.00, 1.00),
    "open-knowledge-format": (0.47, 0.91),
    "supermemory": (0.22, 0.71),
    "agentmemory": (0.17, 0.97),
    "zep": (0.09, 0.95),
    "plain vector": (0.09, 1.00),
    "hindsight": (0.06, 1.00),
    "mem0": (0.06, 0.99),
    "cognee": (0.05, 0.92),
}


# --- LoCoMo ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conversation:
    name: str
    turns: dict[str, str]  # turn id -> "speaker: text [caption]"
    sessions: dict[str, str]
    questions: list[tuple[str, set[str], int]]
    observations: list[tuple[str, str, list[str]]]  # who, what, from which turns


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
    return Conversation(item["sample_id"], turns, sessions, questions, _observations(item, turns))


def _observations(item: dict[str, Any], turns: dict[str, str]) -> list[tuple[str, str, list[str]]]:
    made = []
    for session in item.get("observation", {}).values():
        for speaker, said in session.items():
            for text, evidence in said:
                named = evidence if isinstance(evidence, list) else [evidence]
                made.append((speaker, text, [turn for turn in named if turn in turns]))
    return made


async def load_conversation(
    engine: Engine, conversation: Conversation, progress: Progress
) -> tuple[Principal, dict[str, str]]:
    secret, _ = await engine.access.create_token(conversation.name, "bench", Role.BUTLER)
    who = await engine.access.authenticate(secret)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    items: list[dict[str, Any]] = [
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

    async def measure(names: Iterable[str]) -> None:
        for name in names:
            report[name] = (await tallied(engine, name, loaded)).means()
            console.print(f"  {name}: R@5 {report[name]['all']['R@5']:.3f}  R@10 {report[name]['all']['R@10']:.3f}")

    await measure([*RECIPES, "BM25", "grep"])
    if any(conversation.observations for conversation in conversations):
        for loaded_one in track(loaded, "facts", console=console, transient=True):
            await store_observations(engine, *loaded_one)
        await measure(WITH_FACTS)
    return report


Loaded = tuple[Conversation, Principal, dict[str, str]]


async def tallied(engine: Engine, name: str, loaded: Sequence[Loaded]) -> Tally:
    tally = Tally()
    for conversation, who, ids in loaded:
        search = await searcher(engine, name, conversation, ids)
        for question, gold, category in conversation.questions:
            tally.add(await search(who, question), gold, category)
    return tally


async def store_observations(engine: Engine, conversation: Conversation, who: Principal, ids: dict[str, str]) -> None:
    episodes = {turn: UUID(identity) for identity, turn in ids.items()}
    for speaker, text, turns in conversation.observations:
        given = {"subject": speaker, "predicate": "note", "content": text, "source_kind": "imported"}
        evidence = [episodes[turn] for turn in turns]
        await facts.store_fact(engine.desk, who, parse(StoreFact, given), engine.clock(), evidence)


async def searcher(engine: Engine, name: str, conversation: Conversation, ids: dict[str, str]) -> Search:
    if name == "BM25":
        return bm25(conversation.turns)
    if name == "grep":
        return grep(conversation.turns)
    among_facts = name in WITH_FACTS
    recipe, mode = (WITH_FACTS[name], "hybrid") if among_facts else RECIPES[name]
    memory = Memory(engine.desk, replace(engine.reader, recipe=recipe), engine.clock, timetable(engine.settings))
    types, limit = (["fact", "episode"], AMONG_FACTS) if among_facts else (["episode"], max(DEPTHS))

    async def search(who: Principal, question: str) -> list[str]:
        found = await memory.search(who, {"query": question, "mode": mode, "types": types, "limit": limit})
        return [ids[result["id"]] for result in found["results"] if result["type"] == "episode"][: max(DEPTHS)]

    return search


class Tally:
    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, float]]] = defaultdict(list)

    def add(self, found: Sequence[str], gold: set[str], category: int) -> None:
        row = {f"R@{k}": len(gold & set(found[:k])) / len(gold) for k in DEPTHS}
        row["hit@10"] = float(bool(gold & set(found[:10])))
        first = next((n for n, turn in enumerate(found, 1) if turn in gold), None)
        row["MRR"] = 1 / first if first else 0.0
        for key in ("all", CATEGORIES.get(category, f"category {category}")):
            self.rows[key].append(row)

    def means(self) -> dict[str, dict[str, float]]:
        return {
            key: {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]} | {"n": len(rows)}
            for key, rows in sorted(self.rows.items(), key=lambda item: (item[0] != "all", item[0]))
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


def show(report: dict[str, Any], *, by_category: bool) -> None:
    if "locomo" in report:
        console.print(_locomo_table(report["locomo"], by_category=by_category))
    if "precision" in report:
        console.print(_precision_table(report["precision"]))


def _locomo_table(locomo: dict[str, Any], *, by_category: bool) -> Table:
    """One row per recipe, or with `by_category` one for each kind of question too."""
    table = Table("", "questions", title="LoCoMo: share of gold turns found", title_justify="left")
    for column in next(iter(locomo.values()))["all"]:
        table.add_column(column, justify="right")
    for name, parts in locomo.items():
        for kind, means in parts.items():
            if by_category or kind == "all":
                table.add_row(name, kind, *(str(v) if column == "n" else f"{v:.3f}" for column, v in means.items()))
        if by_category:
            table.add_section()
    return table


def _precision_table(precision: dict[str, Any]) -> Table:
    shown = {name: value for name, value in precision.items() if name != "misses"}
    table = Table("", *shown, title="PrecisionMemBench; below the line: as published", title_justify="left")
    table.add_row("memory_recall, this run", *(f"{v:.3f}" if isinstance(v, float) else str(v) for v in shown.values()))
    table.add_section()
    for name, (of_found, of_wanted) in PEERS.items():
        published = {"precision": f"{of_found:.2f}", "recall": f"{of_wanted:.2f}"}
        table.add_row(name, *(published.get(column, "") for column in shown))
    table.caption = "Published: tenurehq/precisionMemBench, arXiv 2605.11325, same data; not run here."
    return table


def plot(report: dict[str, Any], file: Path) -> None:
    """Recall by depth, and precision against recall; needs matplotlib, and says so instead of failing."""
    try:
        import matplotlib
    except ImportError:
        console.print("No plot: 'pip install -e .[bench]' adds matplotlib.")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    draw = {"locomo": _plot_locomo, "precision": _plot_precision}
    parts = [part for part in draw if part in report]
    figure, axes = pyplot.subplots(1, len(parts), figsize=(8 * len(parts), 5), squeeze=False, layout="constrained")
    for part, place in zip(parts, axes[0], strict=True):
        draw[part](report[part], place)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _plot_locomo(locomo: dict[str, Any], axes: Any) -> None:
    width = 0.85 / len(locomo)
    for n, (name, parts) in enumerate(locomo.items()):
        places = [depth + n * width for depth in range(len(DEPTHS))]
        axes.bar(places, [parts["all"][f"R@{d}"] for d in DEPTHS], width * 0.95, label=name)
    axes.set_xticks([depth + 0.4 for depth in range(len(DEPTHS))], [f"R@{d}" for d in DEPTHS])
    axes.set(title="LoCoMo: share of gold turns found", ylim=(0, 1))
    axes.legend(fontsize=7, ncols=4, loc="upper left")


def _plot_precision(precision: dict[str, Any], axes: Any) -> None:
    sides = {"ours": (precision["precision"], precision["recall"]), **PEERS}
    for shift, name in enumerate(("precision", "recall")):
        places = [n + shift * 0.4 for n in range(len(sides))]
        axes.bar(places, [values[shift] for values in sides.values()], 0.38, label=name)
    ticks = [name.replace("-", "\n").replace(" ", "\n") for name in sides]
    axes.set_xticks([n + 0.2 for n in range(len(sides))], ticks, fontsize=7)
    axes.set(title="PrecisionMemBench: ours as measured, the others as published", ylim=(0, 1.2))
    axes.legend(fontsize=7, ncols=2, loc="upper right")


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
    show(report, by_category=arguments.by_category)
    (RESULTS / "quality.json").write_text(json.dumps(report, indent=2) + "\n")
    plot(report, RESULTS / "quality.png")
    console.print(f"Written to {RESULTS}")


def arguments_given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--locomo", type=Path, help="a JSON file in LoCoMo's format")
    parser.add_argument("--precision", type=Path, help="the directory of PrecisionMemBench's JSON files")
    parser.add_argument("--by-category", action="store_true", help="a row for each kind of LoCoMo question")
    arguments = parser.parse_args()
    if not (arguments.locomo or arguments.precision):
        parser.error("give --locomo or --precision or both: docs/benchmarks.md says where the data is")
    return arguments


if __name__ == "__main__":
    asyncio.run(run(arguments_given()))
