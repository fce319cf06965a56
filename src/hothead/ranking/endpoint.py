"""Letting a running OpenAI-compatible server (vLLM, SGLang, llama.cpp, ...) answer prompts, many at a time."""

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hothead.errors import InputError
from hothead.ranking.answers import Answer, AnswerLog, Prompt
from hothead.ranking.generate import Sampling

KEY_VARIABLES = ("HOTHEAD_API_KEY", "OPENAI_API_KEY")
TRY_AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504))
UNANSWERABLE = frozenset((400, 413, 422))  # this prompt, not the server: too long, or refused
RETRY_AFTER_MAX_S = 120.0


@dataclass(frozen=True)
class Endpoint:
    """A server to ask.

    Args:
        url: of the API, such as ``http://localhost:8000/v1``.
        model: the server's name of the model; "" takes the first that the server lists.
        concurrency: requests in flight at once.
        tries: of each request, before the run stops; the wait between them doubles from ``backoff_s``.
    """

    url: str
    model: str = ""
    concurrency: int = 16
    timeout_s: float = 300.0
    tries: int = 6
    backoff_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise InputError(f"{self.url}: not the URL of a server (http://host:port/v1)")
        if self.concurrency < 1 or self.tries < 1:
            raise InputError(f"concurrency and tries must be at least 1, found {self.concurrency} and {self.tries}")

    def path(self, name: str) -> str:
        return f"{self.url.rstrip('/').removesuffix('/chat/completions')}/{name}"


def endpoint_settings(model: str, sampling: Sampling) -> dict[str, Any]:
    """What an answer depends on besides its prompt: the key under which it is logged."""
    return {"server_model": model, **asdict(sampling)}


def find_model(endpoint: Endpoint) -> str:
    """The model to ask for: the given one, or the first that the server lists.

    Raises:
        InputError: the server cannot be reached, or lists none.
    """
    if endpoint.model:
        return endpoint.model

    async def ask() -> Any:
        async with _client(endpoint) as client:
            return await _request(client, endpoint, "GET", "models")

    reply = asyncio.run(ask())
    try:
        return str(reply["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(f"{endpoint.path('models')}: lists no model; name one with --model") from error


def ask_endpoint(
    prompts: Sequence[Prompt],
    endpoint: Endpoint,
    model: str,
    log: AnswerLog,
    sampling: Sampling,
    on_answers: Callable[[list[Answer]], None] | None = None,
) -> None:
    """Have the server answer every turn that ``log`` has no answer to, and log each answer as it arrives.

    A request that fails is tried again, after the time the server asks for if it does. A prompt that the server
    calls unanswerable (400, 413, 422) is logged as skipped.

    Raises:
        InputError: the server cannot be reached, or refuses (wrong key, unknown model). What was answered is logged.
    """
    waiting = [
        (key, prompt) for key, prompt in zip(log.keys(prompts), prompts, strict=True) if not log.is_done(key, prompt)
    ]

    async def converse(client: Any, key: str, prompt: Prompt) -> None:
        while not log.is_done(key, prompt):
            answers = log.answers(key)
            body = {
                "model": model,
                "messages": prompt.messages([answer.text for answer in answers]),
                "temperature": sampling.temperature,
                "max_tokens": sampling.max_tokens,
                "seed": sampling.seed,
            }
            answer = _answer(await _request(client, endpoint, "POST", "chat/completions", body), endpoint)
            log.add(key, len(answers), answer)
            if on_answers:
                on_answers([answer])

    async def ask_all() -> None:
        queue = iter(waiting)

        async def worker(client: Any) -> None:
            for key, prompt in queue:
                await converse(client, key, prompt)

        async with _client(endpoint) as client, asyncio.TaskGroup() as group:
            for _ in range(min(endpoint.concurrency, len(waiting))):
                group.create_task(worker(client))

    try:
        asyncio.run(ask_all())
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


def _client(endpoint: Endpoint) -> Any:
    import httpx

    key = next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(endpoint.timeout_s, connect=min(30.0, endpoint.timeout_s)),
        limits=httpx.Limits(max_connections=endpoint.concurrency),
    )


async def _request(client: Any, endpoint: Endpoint, method: str, name: str, body: Any = None) -> Any:
    """One request with its retries; the reply's JSON, or ``{"skipped": why}`` for an unanswerable prompt."""
    import httpx

    url, problem = endpoint.path(name), ""
    for attempt in range(endpoint.tries):
        wait = endpoint.backoff_s * 2**attempt * random.uniform(0.5, 1.0)
        try:
            reply = await client.request(method, url, json=body)
            if reply.is_success:
                return reply.json()
            problem = f"{reply.status_code} {' '.join(reply.text.split())[:200]}"
            if reply.status_code in UNANSWERABLE and body is not None:
                return {"skipped": problem}
            if reply.status_code not in TRY_AGAIN:
                raise InputError(f"{url}: the server refuses ({problem})")
            wait = max(wait, _retry_after_s(reply.headers.get("retry-after", "")))
        except httpx.TransportError as error:
            problem = f"{type(error).__name__} {error}".strip()
        except httpx.InvalidURL as error:
            raise InputError(f"{url}: not a URL ({error})") from error
        except ValueError as error:
            problem = f"the reply is not JSON ({error})"
        if attempt + 1 < endpoint.tries:
            await asyncio.sleep(wait)
    raise InputError(
        f"{url}: no answer in {endpoint.tries} tries ({problem}); "
        "the answers so far are kept, run the same command again to go on"
    )


def _retry_after_s(header: str) -> float:
    return min(float(header), RETRY_AFTER_MAX_S) if header.replace(".", "", 1).isdigit() else 0.0


def _answer(reply: Any, endpoint: Endpoint) -> Answer:
    if isinstance(reply, dict) and "skipped" in reply:
        return Answer(skipped=reply["skipped"])
    try:
        choice = reply["choices"][0]
        message = choice["message"]
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        text = thought + (message.get("content") or "")
        return Answer(None, text, finished=choice.get("finish_reason") == "stop")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"{endpoint.url}: not a chat completion (no choices[0].message in the reply)") from error
