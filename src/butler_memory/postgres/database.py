"""Pools and transactions. The tenant is set inside each transaction and dies with it (G1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from pgvector.psycopg import register_vector_async
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from butler_memory.errors import SetupError, Unavailable
from butler_memory.postgres.provision import Urls, check_server
from butler_memory.postgres.seam import PASSING, Contended, explained_connect, translated

Conn = AsyncConnection[DictRow]
T = TypeVar("T")

APP_CONNECTIONS = 10
WORKER_CONNECTIONS = 3
WAIT_FOR_CONNECTION_SECONDS = 5.0
STATEMENT_TIMEOUT = "15s"
# Streaming all events of a tenant takes longer than any other read, and may wait for who reads it.
STREAMING = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;"
    " SET LOCAL statement_timeout = '5min'; SET LOCAL idle_in_transaction_session_timeout = '5min'"
)
# A close waits this long for reads that were left, and then breaks their connections.
CLOSE_WITHIN_SECONDS = 1.0
# First try, one retry for each thing that passes by itself, and a few for heavy contention on one row.
TRIES = 5


class Database:
    """Runs work in one transaction, as the application for one tenant or as the worker for none."""

    def __init__(self, app: AsyncConnectionPool[Conn], worker: AsyncConnectionPool[Conn]) -> None:
        self._app = app
        self._worker = worker
        self._left: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(cls, urls: Urls) -> Database:
        schema = await check_application(urls)
        await _checked_role(urls.worker, "BUTLER_MEMORY_WORKER_URL")
        app = _pool(urls.app, schema, APP_CONNECTIONS)
        worker = _pool(urls.worker, schema, WORKER_CONNECTIONS)
        await app.open()
        await worker.open()
        return cls(app, worker)

    async def close(self) -> None:
        await _ended(self._left)
        await self._app.close()
        await self._worker.close()

    async def run(self, tenant: str, work: Callable[[Conn], Awaitable[T]]) -> T:
        """`work` in one transaction of one tenant; done again if another transaction was in its way."""
        if not tenant:
            raise Unavailable("No tenant is set.", reason="no_tenant")
        return await _in_turn(self._app, tenant, work)

    async def snapshot(self, tenant: str, work: Callable[[Conn], Awaitable[T]]) -> T:
        """`work` that streams what one tenant had at one moment (L3); done again from the start like any other."""
        if not tenant:
            raise Unavailable("No tenant is set.", reason="no_tenant")
        return await _in_turn(self._app, tenant, work, STREAMING)

    async def read(self, tenant: str, work: Callable[[Conn], Awaitable[T]]) -> T:
        """`work` that only reads: its first statement travels with the one that sets the tenant.

        Who is cancelled leaves at once: ending the query on a server that is silent takes the driver ten seconds.
        """
        if not tenant:
            raise Unavailable("No tenant is set.", reason="no_tenant")
        try:
            return await self._leavable(_read_once(self._app, tenant, work))
        except PoolTimeout:
            raise Unavailable("The database does not answer.", reason="no_connection") from None
        except psycopg.InterfaceError as error:
            raise Unavailable("The database connection was lost.", reason="connection_lost") from error
        except psycopg.Error as error:
            raise translated(error) from None

    async def _leavable(self, reading: Coroutine[Any, Any, T]) -> T:
        """The read keeps its connection until that is clean or broken, also when nobody waits any more (G1)."""
        task = asyncio.create_task(reading)
        try:
            return await asyncio.shield(task)
        finally:
            if not task.done():
                self._left.add(task)
                task.add_done_callback(self._left.discard)
                task.cancel()

    async def run_as_worker(self, work: Callable[[Conn], Awaitable[T]]) -> T:
        return await _in_turn(self._worker, "", work)


async def _ended(left: set[asyncio.Task[Any]]) -> None:
    """They are cancelled already; cancelled again, the driver no longer waits for the server."""
    for _ in range(2):
        if left:
            await asyncio.wait(left, timeout=CLOSE_WITHIN_SECONDS)
        for task in left:
            task.cancel()


async def _in_turn(
    pool: AsyncConnectionPool[Conn], tenant: str, work: Callable[[Conn], Awaitable[T]], opening: str = ""
) -> T:
    for attempt in range(1, TRIES + 1):
        try:
            return await _once(pool, tenant, work, opening)
        except (Contended, *PASSING) as error:
            if attempt == TRIES:
                raise Unavailable("Too many writers on the same memory.", reason="contended") from error
        except psycopg.InterfaceError as error:
            raise Unavailable("The database connection was lost.", reason="connection_lost") from error
        except psycopg.Error as error:
            raise translated(error) from None
    raise AssertionError("unreachable")


async def _once(pool: AsyncConnectionPool[Conn], tenant: str, work: Callable[[Conn], Awaitable[T]], opening: str) -> T:
    try:
        # After a restart of the server all pooled connections are dead: leave them one by one, then a new one comes.
        for _ in range(pool.max_size + 1):
            async with _connection(pool) as conn:
                if await _began(conn, tenant, opening):
                    return await work(conn)
    except PoolTimeout:
        raise Unavailable("The database does not answer.", reason="no_connection") from None
    raise Unavailable("The database connection was lost.", reason="connection_lost")


async def _read_once(pool: AsyncConnectionPool[Conn], tenant: str, work: Callable[[Conn], Awaitable[T]]) -> T:
    """Reading twice does no harm, so a dead connection is simply left for the next."""
    for _ in range(pool.max_size + 1):
        async with _connection(pool) as conn:
            try:
                async with conn.pipeline():
                    await conn.execute("SELECT set_config('memory.tenant', %s, true)", [tenant])
                    return await work(conn)
            except psycopg.OperationalError:
                if not conn.closed:
                    raise
    raise Unavailable("The database connection was lost.", reason="connection_lost")


@asynccontextmanager
async def _connection(pool: AsyncConnectionPool[Conn]) -> AsyncIterator[Conn]:
    """Of the pool. Before Python 3.12 its `asyncio.wait_for` swallows a cancellation that comes with the connection,
    and who was told to stop would go on for ever.
    """
    before = _cancelled()
    async with pool.connection(timeout=WAIT_FOR_CONNECTION_SECONDS) as conn:
        if _cancelled() > before:
            raise asyncio.CancelledError
        yield conn


def _cancelled() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


async def _began(conn: Conn, tenant: str, opening: str) -> bool:
    """Opens the transaction; nothing has been done yet, so a dead connection can simply be left."""
    try:
        if opening:
            await conn.execute(opening)
        await conn.execute("SELECT set_config('memory.tenant', %s, true)", [tenant])
    except psycopg.OperationalError:
        await conn.close()
        return False
    return True


def _pool(conninfo: str, vector_schema: str, size: int) -> AsyncConnectionPool[Conn]:
    path = sql.Identifier(vector_schema).as_string(None)

    async def configure(conn: Conn) -> None:
        # In another zone the first and last hours of the calendar fall on days that Python does not have (L6).
        await conn.execute(
            f"SET search_path = pg_catalog, {path}; SET statement_timeout = '{STATEMENT_TIMEOUT}';"
            " SET idle_in_transaction_session_timeout = '60s'; SET timezone = 'UTC'; SET jit = off;"
            " SET work_mem = '32MB'"  # a read of a large tenant stays in memory
        )
        await register_vector_async(conn)
        await conn.commit()

    return AsyncConnectionPool(
        conninfo,
        connection_class=AsyncConnection[DictRow],
        kwargs={"row_factory": dict_row},
        configure=configure,
        min_size=1,
        max_size=size,
        open=False,
    )


async def check_application(urls: Urls) -> str:
    """Where pgvector lives; refuses a role that row-level security would not bind."""
    return await _checked_role(urls.app, "BUTLER_MEMORY_DATABASE_URL")


async def _checked_role(conninfo: str, variable: str) -> str:
    async with await explained_connect(conninfo) as conn:
        await check_server(conn)
        await _check_rights(conn, variable)
        return await _vector_schema(conn)


async def _check_rights(conn: AsyncConnection[Any], variable: str) -> None:
    """Not too many, and not too few. Before the first migration there is nothing to have rights on."""
    found = await conn.execute(
        """
        SELECT r.rolsuper OR r.rolbypassrls OR coalesce(pg_has_role(r.oid, c.relowner, 'MEMBER'), false),
               c.oid IS NULL OR has_schema_privilege(n.oid, 'USAGE')
        FROM pg_roles r
        LEFT JOIN pg_namespace n ON n.nspname = 'memory'
        LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'facts'
        WHERE r.rolname = current_user
        """
    )
    row = await found.fetchone()
    recovery = "Run 'butler-memory db provision --admin-url ...' and use the URL that it prints."
    if row is None or row[0]:
        raise SetupError(
            f"{variable} names a superuser, the owner, or a role that bypasses row-level security.", recovery=recovery
        )
    if not row[1]:
        raise SetupError(f"The role in {variable} has no rights on the schema 'memory'.", recovery=recovery)


async def _vector_schema(conn: AsyncConnection[Any]) -> str:
    found = await conn.execute(
        "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'"
    )
    row = await found.fetchone()
    if row is None:
        raise SetupError(
            "The database has no pgvector extension.", recovery="Run 'butler-memory db provision' or CREATE EXTENSION."
        )
    return str(row[0])
