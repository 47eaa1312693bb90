"""The doctor's looks, one function each. None writes; a failure is a finding, never an exception."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import json
import os
import platform
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta

from butler_memory.bootstrap import is_loopback, open_engine, timetable
from butler_memory.cli import model
from butler_memory.cli.database import embedded_urls, named_urls
from butler_memory.cli.findings import Finding, Status, fail, from_error, ok, warn
from butler_memory.domain.clock import system_clock
from butler_memory.domain.kinds import JobName
from butler_memory.embedding.lazy import LazyEmbedder
from butler_memory.errors import ButlerMemoryError
from butler_memory.llm.choose import model_of
from butler_memory.llm.claude_code import CLI
from butler_memory.postgres import access, embeddings, leases, stats
from butler_memory.postgres.database import Database, check_application
from butler_memory.postgres.leases import Shard
from butler_memory.postgres.provision import Urls, check_server
from butler_memory.postgres.schema_version import HEAD, schema_is_current
from butler_memory.postgres.seam import explained_connect
from butler_memory.postgres.server import ensure_running
from butler_memory.settings import Settings

Progress = Callable[[str], None]
OLDEST_PYTHON = (3, 11)
HEALTH_SECONDS = 2


def python() -> Finding:
    if sys.version_info < OLDEST_PYTHON:
        return fail("python", f"Python {platform.python_version()} is too old.", "Use Python 3.11 or newer.")
    return ok("python", f"Python {platform.python_version()}")


def enabled(settings: Settings) -> Finding:
    if settings.memory.enabled:
        return ok("enabled", "the memory is switched on")
    return warn("enabled", "The memory is switched off.", "Set enabled = true in [butler.memory].")


def data_dir(settings: Settings) -> Finding:
    place = settings.env.data_dir
    if not place.exists():
        return _new_place(settings)
    if not place.is_dir() or not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        return fail("data dir", f"{place} cannot be used.", "Check its owner and rights, or choose another --data-dir.")
    if place.stat().st_mode & 0o077:
        return warn("data dir", f"{place} is open to other users.", f"chmod 700 {shlex.quote(str(place))}")
    return ok("data dir", f"{place}, yours alone")


def _new_place(settings: Settings) -> Finding:
    place = settings.env.data_dir.absolute()
    parent = next(each for each in place.parents if each.exists())
    if os.access(parent, os.W_OK | os.X_OK):
        return ok("data dir", f"{place} will be made at the first start")
    return fail("data dir", f"{place} cannot be made.", f"Get the right to write in {parent}, or use --data-dir.")


def clock(settings: Settings) -> Finding:
    offset = settings.env.clock_offset
    if offset == timedelta(0):
        return ok("clock", "the machine's own")
    if not is_loopback(settings.env.host):
        return fail("clock", f"The clock is shifted by {offset} on a public address.", _UNSHIFT)
    return warn("clock", f"The clock is shifted by {offset}: for tests and demos only.", _UNSHIFT)


_UNSHIFT = "Unset BUTLER_MEMORY_CLOCK_OFFSET."


def port(settings: Settings) -> Finding:
    """Free, or served by us."""
    host, number = settings.env.host, settings.butler.port
    health = _health(host, number)
    if health:
        return health
    # As serve.listening does; importing that would bring the whole MCP server, a second of waiting.
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            return fail("port", f"Cannot listen on {host}:{number}: {error.strerror}.", _OTHER_PORT)
    return ok("port", f"{host}:{number} is free")


_OTHER_PORT = "Stop the program that has it, or choose another --port (BUTLER_MEMORY_PORT) or --host."


def _health(host: str, number: int) -> Finding | None:
    """None when nothing of ours answers there."""
    line = http.client.HTTPConnection(_reachable(host), number, timeout=HEALTH_SECONDS)
    try:
        line.request("GET", "/healthz")
        answer = line.getresponse()
        shape = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        line.close()
    if answer.status == http.client.OK and shape == {"status": "ok"}:
        return ok("port", f"a butler-memory serves on {host}:{number}")
    if isinstance(shape, dict) and shape.get("error") == "unavailable":
        return fail("port", f"The butler-memory on {host}:{number} has lost its database.", "Start 'up' again.")
    return None


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


async def database(settings: Settings, progress: Progress) -> list[Finding]:
    """From the server up to the rows; what stands on a failed look is not looked at."""
    found: list[Finding] = []
    try:
        async with AsyncExitStack() as stack:
            urls = await _urls(settings, stack, progress)
            if urls is None:
                return [warn("database", "There is no database yet.", "'butler-memory up' or doctor --fix makes it.")]
            found.append(await _reached(urls))
            found += await _roles(urls)
            if any(finding.status is Status.FAIL for finding in found):
                return found
            if not await schema_is_current(urls):
                return [*found, fail("schema", "The schema is not the one this version needs.", _MIGRATE)]
            found.append(ok("schema", f"revision {HEAD}"))
            found += await _contents(settings, urls, stack)
    except ButlerMemoryError as error:
        found.append(from_error("database", error))
    return found


_MIGRATE = "Run 'butler-memory db migrate'; if the database is newer than the code, upgrade butler-memory."


async def _urls(settings: Settings, stack: AsyncExitStack, progress: Progress) -> Urls | None:
    """None for a data directory that was never started."""
    if settings.env.database_url:
        return named_urls(settings)
    if not (settings.env.data_dir / "postgres" / "PG_VERSION").exists():
        return None
    server = await ensure_running(settings.env.data_dir, progress=progress)
    stack.push_async_callback(server.release)
    return embedded_urls(settings)


async def _reached(urls: Urls) -> Finding:
    async with await explained_connect(urls.app) as conn:
        await check_server(conn)
        version = conn.info.server_version
        return ok("server", f"PostgreSQL {version // 10_000}.{version % 10_000} answers")


async def _roles(urls: Urls) -> list[Finding]:
    schema = await check_application(urls)
    found = [ok("pgvector", f"in schema '{schema}'")]
    if not urls.worker:  # an empty address would mean whatever libpq finds on this machine
        return [*found, fail("roles", "BUTLER_MEMORY_WORKER_URL is not set.", _PROVISION)]
    try:
        await check_application(dataclasses.replace(urls, app=urls.worker))
        if urls.owner:
            await (await explained_connect(urls.owner)).close()
    except ButlerMemoryError as error:
        return [*found, fail("roles", f"The worker or owner role cannot be used. {error.message}", _PROVISION)]
    return [*found, ok("roles", "row-level security binds the application and the worker")]


_PROVISION = "Run 'butler-memory db provision --admin-url ...' and set the lines that it prints."


async def _contents(settings: Settings, urls: Urls, stack: AsyncExitStack) -> list[Finding]:
    opened = await Database.open(urls)
    stack.push_async_callback(opened.close)
    tenants = await opened.run_as_worker(access.tenants)
    tokens = await opened.run_as_worker(lambda conn: access.tokens(conn, None))
    valid = sum(token.revoked_at is None for token in tokens)
    missing = [await _without_vector(opened, tenant) for tenant in tenants]
    others = await opened.run_as_worker(lambda conn: embeddings.others(conn, LazyEmbedder.version))
    now = system_clock(settings.env.clock_offset)()
    times = timetable(settings)
    bounds = {job: times.late_before(job, now) for job in JobName}
    late = await opened.run_as_worker(lambda conn: leases.late(conn, bounds))
    kept = [await _kept(opened, tenant, now) for tenant in tenants]
    return [_tokens(len(tenants), valid), _vectors(sum(missing), len(others)), _jobs(late), _episodes(sum(kept))]


async def _without_vector(opened: Database, tenant: str) -> int:
    return await opened.run(tenant, lambda conn: stats.without_vector(conn, tenant))


async def _kept(opened: Database, tenant: str, now: datetime) -> int:
    return await opened.run(tenant, lambda conn: stats.kept_past_their_time(conn, tenant, now))


def _episodes(kept: int) -> Finding:
    if not kept:
        return ok("episodes", "none waits for longer than it should be kept")
    message = f"Kept past their time, as consolidation has not been able to read them: {kept}."
    return warn("episodes", message, "'butler-memory job history consolidate' says why; nothing is lost meanwhile.")


def _jobs(late: Sequence[Shard]) -> Finding:
    if not late:
        return ok("jobs", "each job runs when it should")
    named = ", ".join(f"{job} ({sum(s.job is job for s in late)})" for job in sorted({shard.job for shard in late}))
    return warn("jobs", f"Late by more than their period: {named}.", _RUN_JOBS)


_RUN_JOBS = "Keep 'butler-memory up' or 'worker' running; 'butler-memory job history' says how the last runs ended."


def _tokens(tenants: int, valid: int) -> Finding:
    if not valid:
        return warn(
            "tokens", "Nobody can connect: there is no valid token.", "'butler-memory up' makes the first ones."
        )
    return ok("tokens", f"{valid} valid, {tenants} tenant{'s' if tenants > 1 else ''}")


def _vectors(missing: int, others: int) -> Finding:
    if others:
        message = f"Another embedding model's vectors are still in use by {others} tenant{'s' if others > 1 else ''}."
        return warn("vectors", message, "A running 'up' makes new ones; 'butler-memory reembed --all' does it now.")
    if missing:
        return warn(
            "vectors",
            f"{missing} memories have no vector yet.",
            "A running 'up' makes up for them; 'butler-memory reembed --all' does it now.",
        )
    return ok("vectors", "every live memory has its vector")


def reader(settings: Settings) -> Finding:
    """Who reads episodes. A language model is not asked: that may cost money."""
    backend = settings.memory.consolidation.backend
    if backend == "offline":
        return ok("reader", "episodes are read without a language model")
    try:
        name = model_of(settings).name
    except ButlerMemoryError as error:
        return from_error("reader", error)
    if backend == "claude-code" and not shutil.which(CLI):
        return fail("reader", f"There is no '{CLI}' command.", "Install Claude Code, or choose another backend.")
    return ok("reader", f"episodes are read by {name} (not asked now)")


async def embedding_model(settings: Settings) -> Finding:
    """Checked byte for byte, then really used once."""
    if not await asyncio.to_thread(model.is_verified, settings):
        return warn("model", f"There is no intact model in {model.home(settings)}.", _GET_MODEL)
    embedder = LazyEmbedder(settings.env.model_cache, settings.env.model_path)
    try:
        await embedder.warm(lambda _: None)
        await embedder.embed(["doctor"])
    except ButlerMemoryError as error:
        return from_error("model", error)
    finally:
        await embedder.close()
    return ok("model", f"{embedder.version} works")


_GET_MODEL = (
    "'butler-memory doctor --fix' or 'up' fetches it; offline, BUTLER_MEMORY_MODEL_PATH names a directory with it. "
    "Until then search is by keyword only."
)


async def mend(settings: Settings, progress: Progress) -> list[Finding]:
    """What can be made is made: data directory, database, schema, model."""
    try:
        async with open_engine(settings, progress=progress) as engine:
            assert isinstance(engine.embedder, LazyEmbedder)
            await engine.embedder.warm(progress)
    except ButlerMemoryError as error:
        return [from_error("fix", error)]
    return [ok("fix", "database, schema and model are made")]
