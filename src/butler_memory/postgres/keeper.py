"""Run the tools of one cluster, and stop its server when the last user is gone.

As a program it is the *keeper*: it waits for the users' lock to become free, whatever ended the users
(SIGKILL included), stops the server and exits. So it imports the standard library only and is run by path
with ``python -I -S``: a process that idles for weeks should cost little.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, NamedTuple

STOP_TIMEOUT_SECONDS = 120  # a fast shutdown writes one checkpoint: long only on a slow, busy disk
RECOVERY_POLL_SECONDS = 1

# Naming the directory by where we stand, not by its path, makes any path work: a quote or '$' never meets
# the shell that initdb and pg_ctl use, and directories above it may be closed to the server's account.
HERE = "/proc/self/cwd" if sys.platform == "linux" else ""


class Cluster(NamedTuple):
    """A data directory, the binaries for it, and the account to become when we are root."""

    path: Path
    binaries: Path
    uid: int | None = None
    gid: int | None = None

    def spawn(
        self, tool: str, *args: str, cwd: Path | None = None, output: IO[bytes] | int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a tool on the directory, untouched by the terminal's Ctrl-C and the caller's PG* variables."""
        directory = cwd or self.path
        return subprocess.Popen(
            [str(self.binaries / tool), "-D", HERE or str(directory), *args],
            cwd=directory,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def server_pid(self) -> int | None:
        """The running server's pid; None if the pid file's is dead or now belongs to another program."""
        try:
            pid = int((self.path / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None
        return pid if _works_in(pid, self.path) else None

    def is_recovering(self) -> bool:
        """Running, but not yet ready: the pid file's eighth line is the server's own word on its state."""
        if self.server_pid() is None:
            return False
        lines = (self.path / "postmaster.pid").read_text().splitlines()
        return len(lines) < 8 or lines[7].strip() == "starting"

    def stop(self) -> bool:
        """Stop the server and wait; False when it is still shutting down after the time limit."""
        if self.server_pid() is None:
            return True
        with self.spawn("pg_ctl", "stop", "-m", "fast", "-w", "-t", str(STOP_TIMEOUT_SECONDS)) as pg_ctl:
            pg_ctl.wait()
        return self.server_pid() is None


def _works_in(pid: int, directory: Path) -> bool:
    if sys.platform == "linux":
        try:
            return os.path.samefile(f"/proc/{pid}/cwd", directory)
        except OSError:  # dead, or another user's: not our server
            return False
    command = ["ps", "-p", str(pid), "-o", "comm="]
    return "postgres" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


def keep(users_lock: Path, keeper_fd: int, cluster: Cluster) -> None:
    """Outlive the users, then end the server."""
    with users_lock.open("rb") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        # A recovery that outlasts its user's patience must not begin again from the start each time.
        while cluster.is_recovering():
            fcntl.flock(users, fcntl.LOCK_UN)
            time.sleep(RECOVERY_POLL_SECONDS)
            fcntl.flock(users, fcntl.LOCK_EX)
        cluster.stop()
        # First give up being the keeper, then let users in: the next one must see that it needs a new keeper.
        os.close(keeper_fd)


def main(users_lock: str, keeper_fd: str, path: str, binaries: str, uid: str = "", gid: str = "") -> None:
    """Detach from the user that started us, which may end long before the last one does."""
    if os.fork():
        os._exit(0)
    account = (int(uid), int(gid)) if uid else (None, None)
    keep(Path(users_lock), int(keeper_fd), Cluster(Path(path), Path(binaries), *account))


if __name__ == "__main__":
    main(*sys.argv[1:])
