"""Servers stand still unless they are asked, children and all, and end whatever happens: real processes and signals."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hothead.bench.peers.http import started
from hothead.bench.peers.llama_cpp import LlamaDecoder
from hothead.bench.servers import asleep, running, start_servers

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")

# A server that answers any GET, and whose connections live a second; its child renames itself, as vLLM's engine does.
SERVER = """
import http.server, subprocess, sys
from pathlib import Path

if sys.argv[1:] == ["child"]:
    Path("/proc/self/comm").write_text("renamed")
    while True:
        pass
child = subprocess.Popen([sys.executable, __file__, "child"])
Path(__file__).with_name("pid").write_text(str(child.pid))

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, timeout = "HTTP/1.1", 0.3

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return path


def child_of(program: Path) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if (pid := program.with_name("pid")).is_file() and (text := pid.read_text()):
            return int(text)
        time.sleep(0.02)
    raise AssertionError("the server has started no child")


def state(pid: int) -> str:
    """The kernel's letter; "" for a process that is gone. A signal takes a moment."""
    time.sleep(0.1)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


@pytest.fixture
def server(program: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with running([sys.executable, str(program), "0"], program.with_name("log")) as process:
        yield process, child_of(program)


def test_it_and_its_children_stand_still_unless_awake(server: tuple[subprocess.Popen[bytes], int]) -> None:
    process, child = server
    assert state(child) in "RS"
    awake = asleep(process)
    for _ in range(2):
        assert (state(process.pid), state(child)) == ("T", "T")
        with awake():
            assert state(process.pid) in "RS"
            assert state(child) in "RS"
    with pytest.raises(KeyboardInterrupt), awake():
        raise KeyboardInterrupt
    assert (state(process.pid), state(child)) == ("T", "T")


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_closing_ends_what_is_asleep(program: Path, error: type[BaseException] | None) -> None:
    began = time.monotonic()
    try:
        with running([sys.executable, str(program), "0"], program.with_name("log")) as process:
            child = child_of(program)
            asleep(process)
            assert state(process.pid) == "T"
            if error is not None:
                raise error
    except (RuntimeError, KeyboardInterrupt):
        pass
    assert process.returncode is not None
    assert state(child) in ("", "Z")
    assert time.monotonic() - began < 20  # by its own exit, not after the grace


def test_waking_what_has_ended_raises_nothing(tmp_path: Path) -> None:
    with running([sys.executable, "-c", ""], tmp_path / "log") as process:
        process.wait()
        with asleep(process)():
            pass


def test_a_peers_server_wakes_with_an_open_connection(program: Path) -> None:
    """It closes what has been silent for 0.3 s: as it wakes, just when it is asked."""

    def make(client: httpx.Client) -> LlamaDecoder:
        assert client.get("/metrics").is_success  # awake while it is made
        return LlamaDecoder(None, client)  # type: ignore[arg-type]

    with started("toy", [sys.executable, str(program)], program.with_name("log"), {}, make) as peer:
        child = child_of(program)
        for _ in range(5):
            assert state(child) == "T"
            time.sleep(0.4)
            with peer.awake():
                assert peer.client.get("/metrics").is_success
    assert state(child) in ("", "Z")


def test_several_servers_sleep_and_wake_one_at_a_time(program: Path) -> None:
    class Config:
        def command(self, port: int) -> list[str]:
            return [sys.executable, str(program), str(port)]

    with start_servers({"a": Config(), "b": Config()}, program.parent) as (first, second):  # type: ignore[dict-item]
        for one, other in ((first, second), (second, first)):
            with one.awake():
                assert httpx.get(one.url).is_success
                with pytest.raises(httpx.TimeoutException):
                    httpx.get(other.url, timeout=0.2)
