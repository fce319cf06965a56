"""Starting servers for a comparison, stopping those that are not asked, and ending them whatever happens."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import httpx

from hothead.bench.server import Server
from hothead.errors import InputError
from hothead.vllm_plugin.launch import ServerConfig

START_S = 900.0
STOP_S = 30.0


@contextmanager
def start_servers(configs: Mapping[str, ServerConfig], logs: Path) -> Iterator[list[Server]]:
    """Start one server a configuration, one after another, each asleep once it is ready, and end them all at the end.

    Args:
        logs: a folder; each server's output goes to ``NAME.log`` in it.

    Raises:
        InputError: one ends, or does not answer within ``START_S``; its last line is quoted.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        servers = []
        for name, config in configs.items():
            port = free_port()
            command = config.command(port)
            log = logs / f"{name}.log"
            process = stack.enter_context(running(command, log))
            url = f"http://127.0.0.1:{port}"
            wait_until_healthy(name, url, process, log)
            servers.append(Server(name, url, tuple(command), asleep(process)))
        yield servers


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and its children, in a session of their own, ended on the way out.

    Args:
        environment: variables beside our own.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        try:
            yield process
        finally:
            # A shell's background job ignores SIGINT, and its children with it.
            ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            for sign in (signal.SIGTERM if ignores else signal.SIGINT, signal.SIGKILL):
                try:
                    os.killpg(process.pid, signal.SIGCONT)  # it may be asleep
                    os.killpg(process.pid, sign)
                    process.wait(STOP_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
                except ProcessLookupError:
                    break
            process.wait()
            with suppress(ProcessLookupError):  # a child that outlived it
                os.killpg(process.pid, signal.SIGKILL)


def asleep(process: subprocess.Popen[bytes]) -> Callable[[], AbstractContextManager[None]]:
    """Make what :func:`running` started stand still, its children too, and give what lets it run for a block.

    A server that has answered goes on spinning for a while, each thread on a core that whoever is asked next needs.
    """

    def send(sign: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended: asking it says so
            os.killpg(process.pid, sign)

    @contextmanager
    def awake() -> Iterator[None]:
        send(signal.SIGCONT)
        try:
            yield
        finally:
            send(signal.SIGSTOP)

    send(signal.SIGSTOP)
    return awake


def wait_until_healthy(name: str, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server answers.

    Raises:
        InputError: it ended, or took too long.
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise InputError(f"the {name} server ended with status {process.returncode}: {_last_error(log)} ({log})")
        try:
            if httpx.get(f"{url}/health", timeout=5.0).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise InputError(f"the {name} server does not answer after {START_S:.0f} s; its output is in {log}")


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line]
    return (telling or lines or ["no output"])[-1]
