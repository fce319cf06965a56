"""Starting a peer's server and asking it; what goes wrong is one line."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from hothead.bench.servers import free_port, running, wait_until_healthy
from hothead.errors import HotheadError

TIMEOUT_S = 600.0


@contextmanager
def started(name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[httpx.Client]:
    """Run ``command --port N`` until the block ends; gives what asks the server.

    Raises:
        InputError: it ends, or does not answer.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with running([*command, "--port", str(port)], log, environment) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(name, url, process, log)
        with client_of(url) as client:
            yield client


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
