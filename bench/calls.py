"""The calls that the speed bench times: each of ours in process and over HTTP, the floor, and the baseline's."""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.progress import Progress

import corpus
import load
import over_http
from baseline import Baseline
from butler_memory.bootstrap import Engine
from butler_memory.mcp_server.tools import TOOLS
from butler_memory.memory import Memory
from measure import Advance, Job

CONTEXT, SEARCH, RECALL = "memory_context", "memory_search", "memory_recall"
STORE_FACT, STORE_EPISODE = "memory_store_fact", "memory_store_episode"
TOOL_NAMES = (CONTEXT, SEARCH, RECALL, STORE_FACT, STORE_EPISODE)

Pick = tuple[int, str]  # a tenant and a prompt


@dataclass
class Bench:
    """What all parts work with."""

    engine: Engine
    owner: load.Owner
    arguments: argparse.Namespace
    shape: load.Shape
    texts: corpus.Corpus
    progress: Progress
    rng: random.Random
    tokens: dict[int, str] = field(default_factory=dict)
    degraded: Counter[str] = field(default_factory=Counter)
    # What is written must be new in a kept database too.
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(time.time_ns() // 1_000_000))

    @property
    def rounds(self) -> int:
        return int(self.arguments.rounds)

    def picks(self, count: int, tenants: Sequence[int]) -> list[Pick]:
        """Random tenants; every prompt of the pool before one comes again."""
        shuffled = self.rng.sample(self.texts.prompts, len(self.texts.prompts))
        prompts = itertools.islice(itertools.cycle(shuffled), count)
        return [(self.rng.choice(tenants), prompt) for prompt in prompts]

    @asynccontextmanager
    async def phase(self, title: str, total: int) -> AsyncIterator[Advance]:
        task = self.progress.add_task(title, total=total)
        yield lambda count: self.progress.advance(task, count)
        self.progress.update(task, completed=total)

    def note(self, call: str, answer: Mapping[str, Any]) -> None:
        """A degraded answer is quick for the wrong reason: it must be seen."""
        if answer.get("status") == "degraded":
            self.degraded[call] += 1


def asked(bench: Bench, tool: str, prompt: str) -> dict[str, Any]:
    """The arguments of one call; writes are about somebody new each time."""
    if tool == CONTEXT:
        return {"trigger_prompt": prompt}
    if tool == SEARCH:
        return {"query": prompt}
    if tool == RECALL:
        return {"topic": prompt}
    number = next(bench.numbers)
    if tool == STORE_EPISODE:
        return {"content": f"{prompt} We settled it in session {number}."}
    fact = bench.rng.choice(bench.texts.facts)
    subject = f"visitor {number}"
    return {"subject": subject, "predicate": fact.predicate, "content": fact.content, "source_kind": "user_stated"}


def engine_jobs(bench: Bench, tool: str, picks: Sequence[Pick], memory: Memory | None = None) -> list[Job]:
    spec = next(spec for spec in TOOLS if spec.name == tool)
    target = memory or bench.engine.memory

    def job(tenant: int, prompt: str) -> Job:
        who, arguments = load.principal(tenant), asked(bench, tool, prompt)

        async def call() -> None:
            bench.note(f"{tool} in process", await spec.call(target, who, arguments))

        return call

    return [job(*pick) for pick in picks]


def http_jobs(bench: Bench, tool: str, picks: Sequence[Pick], caller: over_http.Caller) -> list[Job]:
    def job(tenant: int, prompt: str) -> Job:
        token, arguments = bench.tokens[tenant], asked(bench, tool, prompt)

        async def call() -> None:
            answer = await caller.call(token, tool, arguments)
            bench.note(f"{tool} over HTTP", answer.structured_content or answer.meta)

        return call

    return [job(*pick) for pick in picks]


async def floor_jobs(bench: Bench, picks: Sequence[Pick]) -> list[Job]:
    """The least that an answer could cost: the prompt's vector, and one row by its key as the application role."""
    engine = bench.engine
    keys = {tenant: await load.some_fact(bench.owner, tenant) for tenant in {tenant for tenant, _ in picks}}

    def job(tenant: int, prompt: str) -> Job:
        key = [load.tenant_name(tenant), keys[tenant]]

        async def by_key(conn: Any) -> Any:
            found = await conn.execute("SELECT id FROM memory.facts WHERE tenant_id = %s AND id = %s", key)
            return await found.fetchone()

        async def call() -> None:
            await engine.embedder.embed([prompt])
            await engine.database.read(load.tenant_name(tenant), by_key)

        return call

    return [job(*pick) for pick in picks]


def baseline_jobs(bench: Bench, beside: Baseline, variant: str, picks: Sequence[Pick]) -> list[Job]:
    def job(tenant: int, prompt: str) -> Job:
        async def call() -> None:
            vector = (await bench.engine.embedder.embed([prompt]))[0]
            await beside.search(variant, tenant, prompt, vector)

        return call

    return [job(*pick) for pick in picks]


async def warm(jobs: Sequence[Job]) -> None:
    for job in jobs:
        await job()
    gc.collect()
