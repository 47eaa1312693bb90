"""The embedded server: starts, is shared, survives, leaves nothing running and nothing private in its log."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from butler_memory.errors import SetupError
from butler_memory.postgres import cluster_files
from butler_memory.postgres.cluster_files import log_tail
from butler_memory.postgres.keeper import Cluster
from butler_memory.postgres.server import EmbeddedServer, embedded_server, ensure_running

FAST = {"fsync": "off"}
SECRET = "violet-heron-4711"
DEADLINE_SECONDS = 15

# A user in a process of its own: says the server's pid, then holds it until its stdin ends.
USER = """
import asyncio, sys
from pathlib import Path
from butler_memory.postgres.server import embedded_server
async def main():
    async with embedded_server(Path(sys.argv[1]), extra_settings={"fsync": "off"}) as server:
        print(server.cluster.server_pid(), flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


def user_process(data_dir: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", USER, str(data_dir)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said_pid(user: subprocess.Popen[str]) -> int:
    assert user.stdout
    return int(user.stdout.readline())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def processes_of(data_dir: Path) -> list[str]:
    """Command lines that work in the data directory or name it: servers, backends, keepers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            at_work = os.readlink(entry / "cwd").startswith(str(data_dir))
        except OSError:  # ended meanwhile, or not ours
            continue
        if int(entry.name) != os.getpid() and (at_work or str(data_dir) in command):
            found.append(command)
    return found


def connect(server: EmbeddedServer) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(**server.admin_conninfo(), autocommit=True)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """Every test ends with the proof that nothing is left running."""
    yield tmp_path
    wait_until(lambda: not processes_of(tmp_path))
    for link in Path(tempfile.gettempdir()).glob(f"butler-memory-{os.geteuid()}-*"):
        if link.is_symlink() and link.readlink().is_relative_to(tmp_path):
            link.unlink()


async def test_starts_twice_with_pgvector_and_without_a_port(data_dir: Path) -> None:
    began = time.perf_counter()
    async with embedded_server(data_dir) as server:
        first = time.perf_counter() - began
        with connect(server) as connection:
            connection.execute("CREATE EXTENSION vector")
            connection.execute("CREATE TABLE kept (v halfvec(3))")
            connection.execute("INSERT INTO kept VALUES ('[1,2,3]')")
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
            assert connection.execute("SHOW data_checksums").fetchone() == ("on",)
        assert not tcp_sockets(server.cluster)
    began = time.perf_counter()
    async with embedded_server(data_dir) as server:
        second = time.perf_counter() - began
        with psycopg.connect(server.admin_url()) as connection:
            assert connection.execute("SELECT v <-> '[1,2,3]' FROM kept").fetchone() == (0.0,)
    sys.stdout.write(f"first start {first:.2f} s, second {second:.2f} s\n")


def tcp_sockets(cluster: Cluster) -> set[str]:
    """The server's sockets that the kernel lists as TCP."""
    descriptors = Path(f"/proc/{cluster.server_pid()}/fd").iterdir()
    inodes = {os.readlink(fd).removeprefix("socket:[").rstrip("]") for fd in descriptors}
    tables = [Path(f"/proc/net/{table}") for table in ("tcp", "tcp6")]
    rows = [row.split() for table in tables if table.exists() for row in table.read_text().splitlines()[1:]]
    return {row[9] for row in rows} & inodes


@pytest.mark.parametrize("name", ["a b", "zoë ünï 日本", 'it\'s "$HOME" `x`', "comma,comma", "long/" + "x" * 120])
async def test_any_data_path_works(data_dir: Path, name: str) -> None:
    async with embedded_server(data_dir / name, extra_settings=FAST) as server:
        with connect(server) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        async with await psycopg.AsyncConnection.connect(server.admin_url()) as other:
            assert await (await other.execute("SELECT 2")).fetchone() == (2,)


async def test_the_password_is_needed_and_private(data_dir: Path) -> None:
    async with embedded_server(data_dir, extra_settings=FAST) as server:
        assert (data_dir / "postgres-password").stat().st_mode & 0o777 == 0o600
        assert (data_dir / "postgres").stat().st_mode & 0o777 == 0o700
        assert server.admin_conninfo()["password"] not in repr(server)
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(**{**server.admin_conninfo(), "password": "wrong"})


async def test_a_pid_file_with_a_reused_pid_is_not_a_server(data_dir: Path) -> None:
    async with embedded_server(data_dir, extra_settings=FAST) as server:
        pid_file = server.cluster.path / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
    bystander = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=subprocess.PIPE)
    for pid in (os.getpid(), bystander.pid):
        pid_file.write_text("\n".join([str(pid), *lines[1:]]) + "\n")
        (server.cluster.path / ".s.PGSQL.5432.lock").write_text(f"{pid}\n")
        async with embedded_server(data_dir, extra_settings=FAST) as server:
            assert server.cluster.server_pid() not in (None, pid)
    assert bystander.returncode is None
    bystander.kill()
    await bystander.wait()


async def test_an_acknowledged_write_survives_sigkill_of_the_postmaster(data_dir: Path) -> None:
    async with embedded_server(data_dir) as server:
        with connect(server) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
        killed = server.cluster.server_pid()
        assert killed
        os.kill(killed, signal.SIGKILL)
        async with embedded_server(data_dir) as again:
            assert again.cluster.server_pid() not in (None, killed)
            with connect(again) as connection:
                assert connection.execute("SELECT n FROM kept").fetchone() == (1,)


async def test_processes_share_one_server_and_the_last_one_stops_it(data_dir: Path) -> None:
    users = [user_process(data_dir) for _ in range(2)]
    first, second = await asyncio.gather(*(asyncio.to_thread(said_pid, user) for user in users))
    assert first == second
    users[0].communicate()
    async with embedded_server(data_dir) as server:
        assert server.cluster.server_pid() == first
    assert server.is_running()
    users[1].communicate()
    assert not server.is_running()
    assert [user.returncode for user in users] == [0, 0]


async def test_a_killed_user_leaves_no_server_behind(data_dir: Path) -> None:
    user = user_process(data_dir)
    await asyncio.to_thread(said_pid, user)
    assert processes_of(data_dir)
    user.kill()
    user.communicate()
    await asyncio.to_thread(wait_until, lambda: not processes_of(data_dir))


async def test_ctrl_c_in_the_terminal_does_not_reach_the_server(data_dir: Path) -> None:
    async with embedded_server(data_dir, extra_settings=FAST) as server:
        pid = server.cluster.server_pid()
        assert pid
        assert os.getsid(pid) != os.getsid(0)
        assert os.getpgid(pid) != os.getpgid(0)


async def test_release_can_be_called_twice(data_dir: Path) -> None:
    server = await ensure_running(data_dir, extra_settings=FAST)
    await server.release()
    await server.release()
    assert not server.is_running()


async def test_an_interrupted_initdb_is_redone(data_dir: Path) -> None:
    half = data_dir / "postgres.new" / "cluster"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    async with embedded_server(data_dir, extra_settings=FAST) as server:
        assert server.is_running()
        assert not (data_dir / "postgres.new").exists()


async def test_another_major_is_refused_with_what_to_do(data_dir: Path) -> None:
    async with embedded_server(data_dir, extra_settings=FAST) as server:
        pass
    (server.cluster.path / "PG_VERSION").write_text("16\n")
    with pytest.raises(SetupError, match="PostgreSQL 16") as refused:
        await ensure_running(data_dir)
    assert "Dump" in refused.value.recovery


async def test_a_foreign_directory_is_not_overwritten(data_dir: Path) -> None:
    (data_dir / "postgres").mkdir()
    (data_dir / "postgres" / "thesis.txt").write_text("years of work")
    with pytest.raises(SetupError, match="not a PostgreSQL cluster"):
        await ensure_running(data_dir)
    assert (data_dir / "postgres" / "thesis.txt").read_text() == "years of work"


async def test_a_data_directory_that_cannot_be_made_is_a_setup_error(data_dir: Path) -> None:
    (data_dir / "file").touch()
    with pytest.raises(SetupError, match="Not a directory"):
        await ensure_running(data_dir / "file" / "inside")


async def test_a_start_failure_says_what_the_server_said(data_dir: Path) -> None:
    with pytest.raises(SetupError, match="shared_buffrs"):
        await ensure_running(data_dir, extra_settings={"shared_buffrs": "1"})


async def test_failing_statements_leave_no_content_in_the_log(data_dir: Path) -> None:
    async with embedded_server(data_dir, extra_settings=FAST) as server:
        with connect(server) as connection:
            connection.execute("CREATE TABLE t (k text UNIQUE, n int CHECK (n > 0))")
            connection.execute("INSERT INTO t VALUES (%s, 1)", (SECRET,))
            for statement in (
                f"INSERT INTO t VALUES ('{SECRET}', 1)",  # DETAIL: Key (k)=(...) already exists
                f"INSERT INTO t VALUES ('{SECRET}x', 0)",  # DETAIL: Failing row contains (...)
                f"INSERT INTO t VALUES ('y', '{SECRET}')",  # the message itself quotes the input
                f"SELECT {SECRET}",
            ):
                with pytest.raises(psycopg.Error):
                    connection.execute(statement)
            with pytest.raises(psycopg.errors.UniqueViolation):
                connection.execute("INSERT INTO t VALUES (%s, 1)", (SECRET,))
    log = (data_dir / "postgres.log").read_text()
    assert "ready to accept connections" in log
    assert SECRET not in log
    assert "violet" not in log


def test_a_reported_log_tail_has_only_lines_about_the_server(tmp_path: Path) -> None:
    log = tmp_path / "postgres.log"
    log.write_text(
        'old\n2026 [1] LOG:  starting\n2026 [1] ERROR:  bad: "x"\n2026 [1] DETAIL:  x\nx\n2026 [1] FATAL:  no\n'
    )
    assert log_tail(log, len("old\n")).splitlines() == ["2026 [1] LOG:  starting", "2026 [1] FATAL:  no"]


def test_binaries_below_a_closed_directory_are_copied_once_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_files, "COPIES", tmp_path / "copies")
    package = tmp_path / "closed" / "pgserver"
    for file in (package / cluster_files.BIN / "postgres", package.parent / "pgserver.libs" / "libpq.so"):
        file.parent.mkdir(parents=True)
        file.touch(mode=0o700)
    said: list[str] = []
    copies = [cluster_files._reachable_copy(package, said.append) for _ in range(2)]
    assert copies[0] == copies[1]
    assert len(said) == 1
    needed = (copies[0] / cluster_files.BIN / "postgres", copies[0].parent / "pgserver.libs" / "libpq.so")
    for path in (tmp_path / "copies", copies[0], *needed):
        assert path.stat().st_mode & 0o777 == 0o755
