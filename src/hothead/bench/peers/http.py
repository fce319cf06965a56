"""Starting a peer's server, waking and asking it; what goes wrong is one line."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from hothead.bench.compare import Decoder, Stream
from hothead.bench.servers import asleep, free_port, running, wait_until_healthy
from hothead.engine.sampling import SamplingParams
from hothead.errors import HotheadError

TIMEOUT_S = 600.0
GREETINGS = 3


@dataclass(frozen=True)
class SleepingServer:
    """A peer's server, which stands still unless it is awake, and what asks it."""

    decoder: Decoder
    client: httpx.Client
    let_run: Callable[[], AbstractContextManager[None]]

    def stream(self, prompt: Any, params: SamplingParams | None = None) -> Stream:
        return self.decoder.stream(prompt, params)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Running, and with an open connection: one that outlived its timeout in sleep is closed on waking."""
        with self.let_run():
            for _ in range(GREETINGS):
                try:
                    self.client.get("/health")
                    break
                except httpx.TransportError:
                    continue  # that connection was closed; if it was not that, asking says what it is
            yield


@contextmanager
def started(
    name: str,
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    make_decoder: Callable[[httpx.Client], Decoder],
) -> Iterator[SleepingServer]:
    """Run ``command --port N`` until the block ends, asleep unless it is asked.

    Args:
        make_decoder: what asks the server, made while it is awake.

    Raises:
        InputError: it ends, or does not answer.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with running([*command, "--port", str(port)], log, environment) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(name, url, process, log)
        with client_of(url) as client:
            yield SleepingServer(make_decoder(client), client, asleep(process))


def client_of(url: str) -> httpx.Client:
    """One connection, kept open: setting up anew would cost a short answer a third of its time."""
    return httpx.Client(base_url=url, timeout=TIMEOUT_S)


def post(client: httpx.Client, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A server's JSON answer.

    Raises:
        HotheadError: none came, or it was no JSON object.
    """
    try:
        reply = client.post(path, json=body)
    except httpx.HTTPError as error:
        raise HotheadError(f"{path}: {type(error).__name__} {error}") from error
    if not reply.is_success:
        raise HotheadError(f"{path}: status {reply.status_code}, {reply.text.strip()[:200]}")
    try:
        document = reply.json()
    except ValueError as error:
        raise HotheadError(f"{path}: the answer is not JSON ({reply.text[:80]!r})") from error
    if not isinstance(document, dict):
        raise HotheadError(f"{path}: expected a JSON object; found {type(document).__name__}")
    return document
