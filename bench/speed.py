"""How fast is it? Reads and writes at 1,000 tenants x 1,000 facts, beside a plain baseline, and how that grows.

    make bench-speed ARGS="--tenants 1000 --facts 1000"

The engine is called in this process, and over MCP and HTTP in a server of its own. What is compared is measured in
turn, call by call, so that a noisy moment hits every side. No prompt's vector is ever kept: each call embeds its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import baseline
import charts
import corpus
import load
import over_http
from butler_memory.bootstrap import Engine, open_engine, timetable
from butler_memory.domain.kinds import Role
from butler_memory.embedding.minilm import MiniLmEmbedder
from butler_memory.embedding.models import Models
from butler_memory.memory import Memory
from butler_memory.settings import Settings
from butler_memory.settings import load as load_settings
from calls import CONTEXT, SEARCH, TOOL_NAMES, Bench, baseline_jobs, engine_jobs, floor_jobs, http_jobs, warm
from measure import Advance, Figures, Job, Stopwatch, Timed, at_once, in_turn, machine, memory_mb
from tables import ENGINE, FLOOR, HTTP, Report, show, targets

RESULTS = Path(__file__).parent / "results"
POOL = 20_000
CALLERS = 16
WARM_UP = 48  # calls before each measurement that do not count: statements get prepared, caches settle
WARM_UP_EACH = 10  # of many callers
GUESTS = 300  # tenants that get a token for HTTP
GROWTH = (10, 100, 1000)  # tenants at which the growth is measured, and then all
LIMITS = (1_000, 5_000, 10_000, 20_000, 50_000)
LIMIT_MS = 100.0
ENOUGH = 5  # times the limit: beyond it, growing further would only run into timeouts
LIMIT_ROUNDS = (20, 100)  # at least and at most, as many as fit into ...
LIMIT_SECONDS = 20.0

console = Console()


# --- loading and growth ---------------------------------------------------------------------------------------------


async def load_and_grow(bench: Bench, report: Report) -> None:
    """Adds tenants step by step, and measures reads at each step."""
    wanted, grows = bench.arguments.tenants, bench.arguments.growth
    steps = sorted({step for step in GROWTH if step < wanted} | {wanted}) if grows else [wanted]
    report["load"], report["growth"] = {"seconds": 0.0}, []
    first = 0
    async with bench.phase("loading", wanted * (bench.shape.facts + load.EPISODES_EACH + load.RULES_EACH)) as advance:
        for last in steps:
            began = time.perf_counter()
            await load.add_tenants(bench.owner, bench.shape, bench.texts, first, last - 1, advance)
            await load.settle(bench.owner)
            report["load"]["seconds"] += round(time.perf_counter() - began, 1)
            first = last
            if grows:
                report["growth"].append(await growth_step(bench, last))


async def growth_step(bench: Bench, tenants: int) -> Report:
    picks = bench.picks(bench.rounds + WARM_UP, range(tenants))
    sides = {tool: engine_jobs(bench, tool, picks) for tool in (CONTEXT, SEARCH)}
    sides[FLOOR] = await floor_jobs(bench, picks)
    async with bench.phase(f"growth: {tenants:,} tenants", len(sides) * bench.rounds) as advance:
        taken = await warm_then_in_turn(sides, advance)
    return {"tenants": tenants, "facts": tenants * bench.shape.facts, **_figures(taken)}


async def warm_then_in_turn(
    sides: Mapping[str, Sequence[Job]], advance: Advance, warm_up: int = WARM_UP
) -> dict[str, list[float]]:
    """Every side does the same jobs, each beginning elsewhere, or a tenant's pages were warm from the side before."""
    for jobs in sides.values():
        await warm(jobs[:warm_up])
    counted = {}
    for number, (name, jobs) in enumerate(sides.items()):
        rest = jobs[warm_up:]
        shift = number * len(rest) // len(sides)
        counted[name] = [*rest[shift:], *rest[:shift]]
    return await in_turn(counted, advance)


def _figures(taken: Mapping[str, Sequence[float]]) -> Report:
    return {name: asdict(Figures.of(seconds)) for name, seconds in taken.items()}


# --- one caller and many --------------------------------------------------------------------------------------------


async def compare(bench: Bench, beside: baseline.Baseline | None, caller: over_http.Caller) -> Report:
    """memory_context in process and over HTTP, the floor, and the baseline's variants: in turn, call by call."""
    picks = bench.picks(bench.rounds + WARM_UP, sorted(bench.tokens))
    watch, parts = Stopwatch(), list[dict[str, float]]()
    sides: dict[str, list[Job]] = {
        FLOOR: await floor_jobs(bench, picks),
        ENGINE: [_read_after(job, watch, parts) for job in engine_jobs(bench, CONTEXT, picks, _timed(bench, watch))],
        HTTP: http_jobs(bench, CONTEXT, picks, caller),
    }
    if beside:
        sides |= {variant: baseline_jobs(bench, beside, variant, picks) for variant in baseline.VARIANTS}
    async with bench.phase("side by side", len(sides) * bench.rounds) as advance:
        taken = await warm_then_in_turn(sides, advance)
    return {"figures": _figures(taken), "parts": breakdown(taken, parts[WARM_UP:])}


def _timed(bench: Bench, watch: Stopwatch) -> Memory:
    """The engine with a stopwatch on its model and its database."""
    engine = bench.engine
    embedder: Any = Timed(engine.embedder, "embed", "embedding", watch)
    database: Any = Timed(engine.database, "read", "SQL", watch)
    return Memory(
        engine.desk,
        replace(engine.reader, models=Models(embedder), database=database),
        engine.clock,
        timetable(engine.settings),
    )


def _read_after(job: Job, watch: Stopwatch, parts: list[dict[str, float]]) -> Job:
    async def call() -> None:
        await job()
        parts.append(watch.read())

    return call


def breakdown(taken: Mapping[str, Sequence[float]], parts: Sequence[Mapping[str, float]]) -> Report:
    """Of each call: embedding, SQL (with the reading of its rows), and the rest; transport is what HTTP adds."""
    inside, over = Figures.of(taken[ENGINE]), Figures.of(taken[HTTP])
    return {
        "embedding": _middle_and_slow([part["embedding"] for part in parts]),
        "SQL": _middle_and_slow([part["SQL"] for part in parts]),
        "assembly": _middle_and_slow(
            [whole - sum(part.values()) for whole, part in zip(taken[ENGINE], parts, strict=True)]
        ),
        "transport": {"p50": round(over.p50 - inside.p50, 2), "p95": round(over.p95 - inside.p95, 2)},
    }


def _middle_and_slow(seconds: Sequence[float]) -> Report:
    figures = Figures.of(seconds)
    return {"p50": figures.p50, "p95": figures.p95}


async def one_and_many(bench: Bench, callers: list[over_http.Caller]) -> Report:
    """Every tool, in process and over HTTP, with one caller and with many."""
    report: Report = {}
    each = -(-bench.rounds // CALLERS)
    async with bench.phase("tools", len(TOOL_NAMES) * 2 * (bench.rounds + each * CALLERS)) as advance:
        for tool in TOOL_NAMES:
            picks = bench.picks(bench.rounds + WARM_UP, sorted(bench.tokens))
            sides = {ENGINE: engine_jobs(bench, tool, picks), HTTP: http_jobs(bench, tool, picks, callers[0])}
            alone = _figures(await warm_then_in_turn(sides, advance))
            report[tool] = {way: {"1": alone[way]} for way in sides}
            for way in sides:
                await at_once(_crowd(bench, tool, way, callers, WARM_UP_EACH), lambda _: None)
                gc.collect()
                figures = await at_once(_crowd(bench, tool, way, callers, each), advance)
                report[tool][way][str(CALLERS)] = asdict(figures)
    return report


def _crowd(bench: Bench, tool: str, way: str, callers: list[over_http.Caller], each: int) -> list[list[Job]]:
    picks = [bench.picks(each, sorted(bench.tokens)) for _ in callers]
    if way == ENGINE:
        return [engine_jobs(bench, tool, own) for own in picks]
    return [http_jobs(bench, tool, own, caller) for own, caller in zip(picks, callers, strict=True)]


async def give_tokens(bench: Bench, below: int) -> None:
    """Some tenants, among those that the baseline knows too, get a token; all calls but the growth's are theirs."""
    chosen = bench.rng.sample(range(below), min(below, GUESTS))
    async with bench.phase("tokens", len(chosen)) as advance:
        for tenant in chosen:
            secret, _ = await bench.engine.access.create_token(load.tenant_name(tenant), load.BUTLER, Role.BUTLER)
            bench.tokens[tenant] = secret
            advance(1)


# --- how many rows one tenant may have ------------------------------------------------------------------------------


async def limit_search(bench: Bench) -> Report:
    """One tenant grows until a read takes far too long."""
    tenant = await load.unused_large_tenant(bench.owner)
    await load.add_tenants(bench.owner, replace(bench.shape, facts=0), bench.texts, tenant, tenant, lambda _: None)
    steps: list[Report] = []
    async with bench.phase("one large tenant", len(LIMITS)) as advance:
        for before, rows in itertools.pairwise((0, *LIMITS)):
            await load.grow_tenant(bench.owner, bench.shape, tenant, (before, rows), lambda _: None)
            await load.settle(bench.owner)
            steps.append({"rows": rows, **await _limit_step(bench, tenant)})
            advance(1)
            if max(steps[-1][tool]["p50"] for tool in (CONTEXT, SEARCH)) > ENOUGH * LIMIT_MS:
                break
    return {"steps": steps, "crosses": {tool: crossing(steps, tool) for tool in (CONTEXT, SEARCH)}}


async def _limit_step(bench: Bench, tenant: int) -> Report:
    least, most = LIMIT_ROUNDS
    picks = bench.picks(2 * least + most, [tenant])
    sides = {tool: engine_jobs(bench, tool, picks) for tool in (CONTEXT, SEARCH)}
    began = time.perf_counter()
    await warm_then_in_turn({tool: jobs[: 2 * least] for tool, jobs in sides.items()}, lambda _: None, least)
    fits = LIMIT_SECONDS / (time.perf_counter() - began) * 2 * least
    rounds = int(max(least, min(most, fits)))
    taken = await in_turn({tool: jobs[2 * least :][:rounds] for tool, jobs in sides.items()}, lambda _: None)
    return _figures(taken)


def crossing(steps: Sequence[Report], tool: str) -> int | None:
    """At how many rows p95 passes the limit, on the line between two measurements; None if it does not."""
    for below, above in itertools.pairwise(steps):
        low, high = below[tool]["p95"], above[tool]["p95"]
        if low <= LIMIT_MS < high:
            rows: float = below["rows"] + (LIMIT_MS - low) / (high - low) * (above["rows"] - below["rows"])
            return round(rows)
    return None


# --- running --------------------------------------------------------------------------------------------------------


async def run(arguments: argparse.Namespace) -> None:
    RESULTS.mkdir(exist_ok=True)
    began = time.perf_counter()
    report: Report = {"machine": machine(), "arguments": {k: str(v) for k, v in vars(arguments).items()}}
    with tempfile.TemporaryDirectory(prefix="butler-speed-") as scratch:
        data_dir = arguments.data_dir or Path(scratch)
        settings = load_settings(environ={"BUTLER_MEMORY_DATA_DIR": str(data_dir)})
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        async with open_engine(settings, progress=console.print) as engine:
            with Progress(*columns, console=console) as progress:
                bench = await prepared(engine, settings, arguments, progress)
                await measured(bench, data_dir, report)
                await bench.owner.close()
    report |= {"seconds": round(time.perf_counter() - began, 1), "degraded": dict(bench.degraded)}
    report["targets"] = targets(report)
    show(report, console)
    (RESULTS / "speed.json").write_text(json.dumps(report, indent=2) + "\n")
    charts.speed(report, RESULTS / "speed.png", console.print)
    console.print(f"{report['seconds']:.0f} s. Written to {RESULTS}")


async def prepared(engine: Engine, settings: Settings, arguments: argparse.Namespace, progress: Progress) -> Bench:
    """Texts and vectors; made with two threads, which the server does not have."""
    size = max(POOL, arguments.facts, *(LIMITS if arguments.limit_search else ()))
    size += size % load.STRIDE == 0
    task = progress.add_task("texts", total=corpus.EMBEDDED_FACTS + corpus.EPISODES + corpus.RULES)
    model = await MiniLmEmbedder.open(settings.env.model_cache, threads=2)
    texts = await corpus.make_corpus(model, size, arguments.seed, lambda count: progress.advance(task, count))
    await model.close()
    await engine.embedder.embed(["load the model"])
    gc.collect()
    gc.freeze()  # our own texts must not make the engine's garbage collections longer
    limits = settings.memory.facts
    shape = load.Shape(
        *(arguments.facts, size, datetime.now(UTC), engine.embedder.version),
        *(limits.retrieval_confidence_threshold, limits.expiry_confidence_threshold),
    )
    owner = await load.connect(engine.urls.owner)
    return Bench(engine, owner, arguments, shape, texts, progress, random.Random(arguments.seed))


async def measured(bench: Bench, data_dir: Path, report: Report) -> None:
    arguments = bench.arguments
    there = await load.loaded_tenants(bench.owner)
    if there not in (0, arguments.tenants):
        raise SystemExit(f"{data_dir} holds {there} tenants: give it --tenants {there}, or use another --data-dir.")
    await load.fill_pool(bench.owner, bench.texts)
    if there:
        console.print("The database is loaded already: growth is not measured.")
    else:
        await load_and_grow(bench, report)
    report["facts"] = arguments.tenants * arguments.facts
    report["database_mb"] = round(await load.database_bytes(bench.owner) / 1e6)
    async with AsyncExitStack() as stack:
        beside = await _baseline(bench, stack, report)
        await give_tokens(bench, beside.tenants if beside else arguments.tenants)
        url, pid = stack.enter_context(over_http.up(data_dir))
        token = next(iter(bench.tokens.values()))
        callers = await stack.enter_async_context(over_http.callers(url, CALLERS, token))
        report["compare"] = await compare(bench, beside, callers[0])
        report["tools"] = await one_and_many(bench, callers)
        report["memory"] = memory_mb(pid)
    if arguments.limit_search:
        report["limit"] = await limit_search(bench)


async def _baseline(bench: Bench, stack: AsyncExitStack, report: Report) -> baseline.Baseline | None:
    tenants = min(bench.arguments.tenants, bench.arguments.baseline_facts // bench.arguments.facts)
    if not tenants:
        return None
    began = time.perf_counter()
    async with bench.phase("baseline's indexes", tenants * bench.arguments.facts) as advance:
        beside = await baseline.build(bench.engine.urls.owner, tenants, advance)
    stack.push_async_callback(beside.close)
    picks = bench.picks(100, range(tenants))
    vectors = await bench.engine.embedder.embed([prompt for _, prompt in picks])
    questions = [(tenant, vector) for (tenant, _), vector in zip(picks, vectors, strict=True)]
    report["baseline"] = {
        "rows": beside.rows,
        "recall": {variant: round(await beside.recall(variant, questions), 3) for variant in baseline.VARIANTS},
        "build_seconds": round(time.perf_counter() - began, 1),
    }
    return beside


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--facts", type=int, default=1000, help="per tenant")
    parser.add_argument("--rounds", type=int, default=320, help="calls per measurement")
    parser.add_argument(
        "--growth", action=argparse.BooleanOptionalAction, default=True, help="measure at 10 and 100 tenants on the way"
    )
    parser.add_argument("--baseline-facts", type=int, default=200_000, help="rows of the baseline's table; 0: none")
    parser.add_argument("--limit-search", action="store_true", help="how many facts may one tenant have?")
    parser.add_argument("--data-dir", type=Path, help="load into this directory and keep it")
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(run(parse()))
