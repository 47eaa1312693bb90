"""The composition root: chooses the parts and starts them in order. Tests call it with other parts."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from secrets import token_hex

from butler_memory.access import Access
from butler_memory.consolidation.readers import EpisodeReader, ModelReader, NoReader, OfflineReader
from butler_memory.consolidation.run import Consolidation
from butler_memory.domain.clock import Clock, system_clock
from butler_memory.domain.kinds import JobName, TriggerClass
from butler_memory.domain.ranking import Fusion, Recipe
from butler_memory.domain.schedule import Timetable
from butler_memory.embedding import model_store
from butler_memory.embedding.counting import TokenCounter, token_counter
from butler_memory.embedding.lazy import LazyEmbedder
from butler_memory.embedding.models import Models
from butler_memory.embedding.ports import Embedder
from butler_memory.embedding.stoppable import in_stoppable_thread
from butler_memory.errors import SetupError, Unavailable
from butler_memory.llm.choose import model_of
from butler_memory.memory import Memory
from butler_memory.postgres import access as access_table
from butler_memory.postgres.database import Database, check_application
from butler_memory.postgres.provision import ROLES, Urls, new_passwords, provision, urls_for
from butler_memory.postgres.schema_version import schema_is_current
from butler_memory.postgres.server import disk_problems_explained, ensure_running, looked_after
from butler_memory.postgres.text_configs import text_configs
from butler_memory.retrieval.reader import Reader
from butler_memory.retrieval.references import References
from butler_memory.retrieval.served_log import ServedLog
from butler_memory.security.principal import Principal
from butler_memory.settings import Settings
from butler_memory.upkeep.cleanup import clean_up
from butler_memory.upkeep.decay_sweep import decay_sweep
from butler_memory.upkeep.job import Job
from butler_memory.upkeep.late_vectors import embed_missing
from butler_memory.upkeep.reembed import notice, reembed
from butler_memory.workers.workers import Workers
from butler_memory.writing.desk import Desk
from butler_memory.writing.vectors import Vectors

Progress = Callable[[str], None]
MAKE_UP_EVERY_SECONDS = 60.0
# A changed model is noticed at once; this looks after what may have slipped through.
REEMBED_CRON = "0 5 * * *"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Engine:
    settings: Settings
    memory: Memory
    reader: Reader
    desk: Desk
    access: Access
    database: Database
    embedder: Embedder
    models: Models
    urls: Urls
    clock: Clock
    consolidation: Consolidation
    jobs: Sequence[Job]
    workers: Workers


def silent(_: str) -> None:
    """Shows nothing."""


@asynccontextmanager
async def open_engine(
    settings: Settings,
    *,
    progress: Progress = silent,
    embedder: Embedder | None = None,
    older: Sequence[Embedder] = (),
    clock: Clock | None = None,
    episode_reader: EpisodeReader | None = None,
) -> AsyncIterator[Engine]:
    """Database, schema, model and engine; everything is closed again on the way out, in reverse order.

    `older`: models that tenants may still answer from until they are re-embedded (L5).
    """
    _check_clock(settings)
    clock = clock or system_clock(settings.env.clock_offset)
    counter = await in_stoppable_thread(lambda stop: _token_counter(settings, progress, stop))
    async with AsyncExitStack() as stack:
        urls = await ready_database(settings, stack, progress)
        database = await Database.open(urls)
        stack.push_async_callback(database.close)
        await _check_cardinality_choice(database, settings)
        await _check_text_config(database, settings)
        if embedder is None:
            embedder = LazyEmbedder(settings.env.model_cache, settings.env.model_path)
            stack.push_async_callback(embedder.close)
        models = Models(embedder, older)
        await notice(database, models, clock())
        vectors = Vectors(models, database, settings.memory.retrieval.text_config)
        stack.push_async_callback(vectors.close)
        times = timetable(settings)
        desk = Desk(database, vectors, settings.memory, times)
        references, served = References(database), ServedLog(database)
        stack.push_async_callback(references.close)
        stack.push_async_callback(served.close)
        retrieval = settings.memory.retrieval
        recipe = Recipe(fusion=Fusion(retrieval.fusion), k=retrieval.k)
        reader = Reader(database, models, settings.memory, references, served, counter, recipe)
        access = Access(database, clock, embedder, many_valued=settings.memory.facts.many_valued)
        episode_reader = episode_reader or _episode_reader(settings)
        stack.push_async_callback(episode_reader.close)
        consolidation = Consolidation(desk, episode_reader, times)
        memory = Memory(desk, reader, clock, times)
        jobs = jobs_of(desk, models, consolidation)
        workers = Workers(database, jobs if settings.memory.enabled else [], times, clock)
        yield Engine(
            settings,
            memory,
            reader,
            desk,
            access,
            database,
            embedder,
            models,
            urls,
            clock,
            consolidation,
            jobs,
            workers,
        )


def _episode_reader(settings: Settings) -> EpisodeReader:
    """A backend that is set up wrongly keeps episodes waiting; it does not keep the memory from starting (E2)."""
    backend = settings.memory.consolidation.backend
    if backend == "offline":
        return OfflineReader()
    try:
        return ModelReader(model_of(settings))
    except SetupError as error:
        log.warning("consolidation waits: %s %s", error.message, error.recovery)
        return NoReader(backend, error)


def timetable(settings: Settings) -> Timetable:
    schedule = settings.butler.schedule
    crons = {
        JobName.CONSOLIDATE: schedule.consolidate.cron,
        JobName.DECAY_SWEEP: schedule.decay_sweep.cron,
        JobName.EPISODE_CLEANUP: schedule.episode_cleanup.cron,
        JobName.REEMBED: REEMBED_CRON,
    }
    return Timetable(crons, settings.memory.schedule.timezone)


def jobs_of(desk: Desk, models: Models, consolidation: Consolidation) -> list[Job]:
    """The engine's jobs. They always exist: settings move their times, and nothing takes them away (J1)."""
    return [
        Job(JobName.CONSOLIDATE, consolidation.run, consolidation.shards_at_once),
        Job(JobName.DECAY_SWEEP, partial(decay_sweep, desk)),
        Job(JobName.EPISODE_CLEANUP, partial(clean_up, desk)),
        Job(JobName.REEMBED, partial(reembed, desk.database, models)),
    ]


def _token_counter(settings: Settings, progress: Progress, stop: threading.Event) -> TokenCounter:
    env = settings.env
    return token_counter(
        settings.memory.retrieval.tokenizer,
        lambda: model_store.prepare(env.model_cache, env.model_path, progress, stop).tokenizer,
    )


async def ready_database(settings: Settings, stack: AsyncExitStack, progress: Progress) -> Urls:
    """The server that the environment names, or the embedded one, started here; its schema up to date."""
    env = settings.env
    if env.database_url:
        urls = _named_urls(settings)
        if not await schema_is_current(urls):
            await _migrate_named(urls, progress)
        return urls
    server = await ensure_running(env.data_dir, progress=progress)
    stack.push_async_callback(server.release)
    await stack.enter_async_context(looked_after(server))
    with disk_problems_explained(env.data_dir):
        passwords = await asyncio.to_thread(_kept_passwords, env.data_dir)
    urls = urls_for(server.admin_url(), settings.butler.db.name, passwords)
    if not await schema_is_current(urls):
        await provision(server.admin_url(), settings.butler.db.name, passwords)
        await _migrate(urls, progress)
    return urls


async def _migrate(urls: Urls, progress: Progress) -> None:
    from butler_memory.postgres.migrate import migrate  # imports SQLAlchemy, which most starts do not need

    progress("Bringing the schema up to date")
    await migrate(urls)


async def _migrate_named(urls: Urls, progress: Progress) -> None:
    if not urls.owner:
        await check_application(urls)  # a connection that does not work is the likelier reason
        raise SetupError(
            "The database schema does not fit this version, and BUTLER_MEMORY_OWNER_URL is not set.",
            recovery="Set it, or run 'butler-memory db migrate' where it is set.",
        )
    await _migrate(urls, progress)


def _named_urls(settings: Settings) -> Urls:
    env = settings.env
    if not env.worker_url:
        raise SetupError(
            "BUTLER_MEMORY_DATABASE_URL is set, but BUTLER_MEMORY_WORKER_URL is not.",
            recovery="Run 'butler-memory db provision --admin-url ...' and set the lines that it prints.",
        )
    return Urls(owner=env.owner_url, app=env.database_url, worker=env.worker_url)


def _kept_passwords(data_dir: Path) -> dict[str, str]:
    """The roles' passwords of this data directory: made once, readable only by its owner."""
    file = data_dir / "roles.json"
    if not file.exists():
        # Written whole under another name, then linked: of two first starts, one wins and both read the same.
        draft = data_dir / f"roles.{token_hex(8)}.new"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            json.dump(new_passwords(), new)
        with suppress(FileExistsError):
            os.link(draft, file)
        draft.unlink()
    try:
        kept: dict[str, str] = json.loads(file.read_bytes())
    except ValueError:
        kept = {}
    if not isinstance(kept, dict) or sorted(kept) != sorted(ROLES):
        raise SetupError(f"{file} is damaged.", recovery="Remove the file and start again: new passwords are made.")
    return kept


def _check_clock(settings: Settings) -> None:
    if settings.env.clock_offset != timedelta(0) and not is_loopback(settings.env.host):
        raise SetupError(
            "BUTLER_MEMORY_CLOCK_OFFSET is for tests and demos: it works only on a loopback address.",
            recovery="Unset it, or bind to 127.0.0.1.",
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _check_cardinality_choice(database: Database, settings: Settings) -> None:
    chosen = settings.memory.facts.many_valued
    known = await database.run_as_worker(access_table.many_valued_choices)
    if known - {chosen}:
        raise SetupError(
            f"facts.many_valued is {str(chosen).lower()}, but this database was started with the opposite.",
            recovery="It is fixed at the first start: set it back, or use another database.",
        )


async def _check_text_config(database: Database, settings: Settings) -> None:
    """PostgreSQL's to know, so it is asked at the start: otherwise each write would fail."""
    chosen = settings.memory.retrieval.text_config
    known = await database.run_as_worker(text_configs)
    if chosen not in known:
        raise SetupError(
            f"retrieval.text_config is '{chosen}', which is no text search configuration of this database.",
            recovery=f"It has: {', '.join(known)}.",
        )


def require_enabled(settings: Settings) -> None:
    if not settings.memory.enabled:
        raise SetupError(
            "The memory is switched off (enabled = false).", recovery="Set enabled = true in [butler.memory]."
        )


def restricted(who: Principal, settings: Settings) -> Principal:
    """The environment may make maintenance of a session, and never a session of maintenance (E5)."""
    if TriggerClass(settings.env.trigger_class) is TriggerClass.MAINTENANCE:
        return replace(who, trigger_class=TriggerClass.MAINTENANCE)
    return who


async def make_up_for_vectors(engine: Engine) -> None:
    """Runs beside a server for as long as it lives."""
    while True:
        try:
            await notice(engine.database, engine.models, engine.clock())
            made = await embed_missing(engine.database, engine.models)
            if made:
                log.info("made up for %d missing vectors", made)
        except Unavailable as error:
            log.debug("vectors still missing: %s", error.reason)
        except Exception as error:  # noqa: BLE001  nobody would start this loop again
            log.warning("vectors still missing: %s", type(error).__name__)
        await asyncio.sleep(MAKE_UP_EVERY_SECONDS)
