"""A private PostgreSQL in the data directory, shared by every process that uses it.

    start.lock    exclusive while a process looks for the server and starts it
    users.lock    shared by every process that uses the server
    keeper.lock   held by the keeper, which stops the server when users.lock is free (see keeper.py)

The last user out stops the server itself and waits for it. The keeper is there for users that die without
a word. Always users.lock before start.lock: whoever stops the server holds users.lock exclusively.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import psycopg

from butler_memory.errors import ButlerMemoryError, SetupError, Unavailable
from butler_memory.postgres import cluster_files, keeper
from butler_memory.postgres.cluster_files import ADMIN_ROLE, PORT, Progress, private_file
from butler_memory.postgres.keeper import Cluster

START_TIMEOUT_SECONDS = 120  # crash recovery replays at most a checkpoint's distance of WAL (1 GB)
PROGRESS_EVERY_SECONDS = 5
CONNECT_TIMEOUT_SECONDS = 10
POLL_SECONDS = 0.02
ORPHANS_EXIT_SECONDS = 10  # backends of a killed postmaster notice within a moment, but end their statement
LOOK_AFTER_SECONDS = 1.0  # a look is one read of the pid file
TRY_AGAIN_SECONDS = 10.0  # after a start that failed: its reason does not pass in a second

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EmbeddedServer:
    """A running server, which stays up at least until `release` is called."""

    data_dir: Path
    host: str
    cluster: Cluster
    _password: str = field(repr=False)
    _users: IO[bytes] = field(repr=False)

    def admin_conninfo(self, dbname: str = "postgres") -> dict[str, Any]:
        """The superuser's libpq parameters: for provisioning only, since it bypasses row-level security."""
        return self.conninfo(ADMIN_ROLE, self._password, dbname)

    def admin_url(self, dbname: str = "postgres") -> str:
        return self.url(ADMIN_ROLE, self._password, dbname)

    def conninfo(self, user: str, password: str, dbname: str) -> dict[str, Any]:
        return {"host": self.host, "port": PORT, "user": user, "password": password, "dbname": dbname}

    def url(self, user: str, password: str, dbname: str) -> str:
        """The same as a URL; the socket's directory is an argument, as slashes cannot stand in a host."""
        who, secret, database = (quote(part, safe="") for part in (user, password, dbname))
        return f"postgresql://{who}:{secret}@/{database}?host={quote(self.host, safe='')}&port={PORT}"

    def is_running(self) -> bool:
        """By pid file, or by socket: a server in another container has a pid that means nothing here."""
        return self.cluster.server_pid() is not None or _listens(self.host)

    def is_lost(self) -> bool:
        """Down, though its data is still there."""
        return not self.is_running() and (self.cluster.path / "PG_VERSION").exists()

    async def release(self) -> None:
        """Give it up; the last user stops the server and waits until it is down. Safe to call twice."""
        await asyncio.to_thread(self.release_now)

    def release_now(self) -> None:
        if self._users.closed:
            return
        with self._users:
            if _try_lock(self._users):
                stopped = self.cluster.stop()
            else:
                # Returns at once beside other users, and waits if somebody else is just stopping the server.
                fcntl.flock(self._users, fcntl.LOCK_SH)
                return
        if not stopped:
            raise Unavailable("The database server is still shutting down.")


async def ensure_running(
    data_dir: Path, *, progress: Progress = lambda _: None, extra_settings: Mapping[str, str] | None = None
) -> EmbeddedServer:
    """Join the data directory's server, starting (and first creating) it if need be.

    `progress` is called from a worker thread. `extra_settings` count only when this call starts the server.
    """
    starting = asyncio.ensure_future(asyncio.to_thread(ensure_running_now, data_dir, progress, extra_settings or {}))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # A thread cannot be stopped halfway: what it brings up is given up here.
        with suppress(ButlerMemoryError):
            await (await starting).release()
        raise


@asynccontextmanager
async def embedded_server(
    data_dir: Path, *, progress: Progress = lambda _: None, extra_settings: Mapping[str, str] | None = None
) -> AsyncIterator[EmbeddedServer]:
    server = await ensure_running(data_dir, progress=progress, extra_settings=extra_settings)
    try:
        yield server
    finally:
        await server.release()


@asynccontextmanager
async def looked_after(server: EmbeddedServer) -> AsyncIterator[None]:
    """Inside, a server that is gone (killed by a person, or for its memory) is started again."""
    watch = asyncio.create_task(_look_after(server))
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.wait([watch])


async def _look_after(server: EmbeddedServer) -> None:
    pause = LOOK_AFTER_SECONDS
    while True:
        await asyncio.sleep(pause)
        pause = LOOK_AFTER_SECONDS
        if await asyncio.to_thread(server.is_lost):
            log.warning("the database server is gone; starting it again")
            try:
                # The same data, socket and passwords: the pools find it by themselves. We stay its user.
                await (await ensure_running(server.data_dir)).release()
            except ButlerMemoryError as error:
                log.error("the database server did not start: %s", error.message)
                pause = TRY_AGAIN_SECONDS


def ensure_running_now(data_dir: Path, progress: Progress, extra: Mapping[str, str]) -> EmbeddedServer:
    data_dir = data_dir.expanduser().resolve()
    with disk_problems_explained(data_dir):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        users = private_file(data_dir / "users.lock")
        try:
            fcntl.flock(users, fcntl.LOCK_SH)
            with private_file(data_dir / "start.lock") as starting:
                fcntl.flock(starting, fcntl.LOCK_EX)
                return _join(data_dir, users, progress, extra)
        except BaseException:
            users.close()
            raise


@contextmanager
def disk_problems_explained(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise SetupError(
            f"The data directory cannot be used: {error.strerror}: {error.filename or data_dir}.",
            recovery="Free some space and start again." if full else "Check its owner, or choose another.",
        ) from error


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _join(data_dir: Path, users: IO[bytes], progress: Progress, extra: Mapping[str, str]) -> EmbeddedServer:
    cluster = cluster_files.open_cluster(data_dir, progress)
    password = cluster_files.read_password(data_dir)
    # Before the server: if we die in between, somebody is there to stop it.
    _ensure_keeper(data_dir, cluster)
    server = EmbeddedServer(data_dir, cluster_files.socket_dir(cluster.path), cluster, password, users)
    if not _comes_up(server, progress):
        _start(cluster, data_dir / "postgres.log", progress, extra)
        if not _comes_up(server, progress):
            raise Unavailable("The database server ended right after its start.", recovery="Start again.")
    return server


def _ensure_keeper(data_dir: Path, cluster: Cluster) -> None:
    """The lock passes to the keeper with the file descriptor, so there is no moment with two or none."""
    with private_file(data_dir / "keeper.lock") as lock:
        if not _try_lock(lock):
            return
        account = () if cluster.uid is None else (str(cluster.uid), str(cluster.gid))
        files = (data_dir / "users.lock", lock.fileno(), cluster.path, cluster.binaries)
        subprocess.run(
            [sys.executable, "-I", "-S", keeper.__file__, *map(str, files), *account],
            check=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )


def _start(cluster: Cluster, log: Path, progress: Progress, extra: Mapping[str, str]) -> None:
    cluster_files.write_settings(cluster, extra)
    log_start = cluster_files.rotate_log(log)
    deadline = time.monotonic() + ORPHANS_EXIT_SECONDS
    while not _launch(cluster, log, progress):
        said = cluster_files.log_tail(log, log_start)
        if cluster.server_pid() is not None:
            raise _still_recovering()
        if "still in use" not in said or time.monotonic() > deadline:
            raise SetupError(
                f"The database server did not start. Its log says:\n{said}",
                recovery=f"Correct what the last lines name, often disk space or permissions. All of it: {log}",
            )
        time.sleep(POLL_SECONDS)


def _launch(cluster: Cluster, log: Path, progress: Progress) -> bool:
    cluster_files.disown_stale_pid(cluster)
    with (
        log.open("ab") as output,
        cluster.spawn("pg_ctl", "start", "-w", "-t", str(START_TIMEOUT_SECONDS), output=output) as pg_ctl,
    ):
        while True:
            try:
                return pg_ctl.wait(PROGRESS_EVERY_SECONDS) == 0
            except subprocess.TimeoutExpired:
                progress("the database server is recovering")


def _comes_up(server: EmbeddedServer, progress: Progress) -> bool:
    """Wait for an answer; False if there is no server. One that we find may be recovering, or on its way out."""
    began = told = time.monotonic()
    while not _answers(server):
        now = time.monotonic()
        if not server.is_running():
            return False
        if now - began > START_TIMEOUT_SECONDS:
            raise _still_recovering()
        if now - told > PROGRESS_EVERY_SECONDS:
            progress("the database server is recovering")
            told = now
        time.sleep(POLL_SECONDS)
    return True


def _listens(directory: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(f"{directory}/.s.PGSQL.{PORT}") == 0


def _answers(server: EmbeddedServer) -> bool:
    try:
        psycopg.connect(**server.admin_conninfo(), connect_timeout=CONNECT_TIMEOUT_SECONDS).close()
    except psycopg.OperationalError as error:
        if "password authentication failed" in str(error):
            raise SetupError(
                f"The database server refuses the password in {server.data_dir}.",
                recovery="Restore the file postgres-password from the backup that has the cluster.",
            ) from None
        return False
    return True


def _still_recovering() -> Unavailable:
    return Unavailable(
        f"The database server is still recovering after {START_TIMEOUT_SECONDS} s.",
        recovery="Nothing is lost. Start again; the recovery goes on from where it is.",
    )
