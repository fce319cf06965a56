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
def started(name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run ``command --port N`` until the block ends; gives the server's address.

    Raises:
        InputError: it ends, or does not answer.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with running([*command, "--port", str(port)], log, environment) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(name, url, process, log)
        yield url


def post(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A server's JSON answer.

    Raises:
        HotheadError: none came, or it was no JSON object.
    """
    try:
        reply = httpx.post(url, json=body, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        raise HotheadError(f"{url}: {type(error).__name__} {error}") from error
    if not reply.is_success:
        raise HotheadError(f"{url}: status {reply.status_code}, {reply.text.strip()[:200]}")
    try:
        document = reply.json()
    except ValueError as error:
        raise HotheadError(f"{url}: the answer is not JSON ({reply.text[:80]!r})") from error
    if not isinstance(document, dict):
        raise HotheadError(f"{url}: expected a JSON object; found {type(document).__name__}")
    return document
