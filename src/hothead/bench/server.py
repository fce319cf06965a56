"""Comparing servers: the same prompts to each in turn, wave by wave, with acceptance from their own metrics.

A wave is a few prompts of one group, answered with so many requests in flight. Every configuration answers a wave
before the next wave begins, in an order drawn anew each time, so that what the machine does meanwhile hits all of them;
servers that were started for it stand still while others answer. A rate is completion tokens over a wave's wall time,
prefill included: what a client sees.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from hothead.bench.machine import this_machine, versions
from hothead.bench.order import shuffled
from hothead.bench.prompts import Prompt, prompts_digest
from hothead.bench.schema import Machine
from hothead.bench.stats import Estimate, Sample, rate, rate_ratio
from hothead.errors import InputError

FORMAT = "hothead.bench_server"
VERSION = 1
WAVES_DEEP = 4  # a wave holds this many prompts for each request in flight, so that few slots idle at its end
TIMEOUT_S = 600.0

# What to read of a server's metrics page, under which name.
METRICS = {
    "drafts": ("vllm:spec_decode_num_drafts_total", "llamacpp:spec_decode_num_drafts_total"),
    "accepted": ("vllm:spec_decode_num_accepted_tokens_total", "llamacpp:spec_decode_num_accepted_tokens_total"),
    "observed": ("vllm:hothead_observed_tokens_total",),
    "missed": ("vllm:hothead_missed_tokens_total",),
    "inserted": ("vllm:hothead_inserted_tokens_total",),
}
ACCEPT_LENGTH = "sglang:spec_accept_length"  # SGLang tells the mean only
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/-])/[\w.+-]+(?:/[\w.+-]+)*")
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)$", re.MULTILINE)


class Record(BaseModel):
    """Frozen; an unknown or missing field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Load(Record):
    """How the servers are asked."""

    concurrency: int
    temperature: float
    max_tokens: int
    seed: int = 0
    ignore_eos: bool = False


class Header(Record):
    """The first line of a result file."""

    kind: Literal["header"] = "header"
    format: str = FORMAT
    version: int = VERSION
    versions: dict[str, str]
    machine: Machine
    commands: dict[str, list[str]]  # by configuration; empty for a server that was running already
    load: Load
    prompt_set: str
    prompts_digest: str


class Wave(Record):
    """One configuration's answers to one wave."""

    kind: Literal["wave"] = "wave"
    config: str
    group: str
    wave: int
    prompts: int
    tokens: int
    seconds: float
    digests: list[str]  # of each answer's text
    counters: dict[str, float]  # what the wave added to METRICS
    accept_length: float | None = None  # where the server tells only that
    errors: list[str] = []


@dataclass(frozen=True)
class Server:
    """A configuration and where it answers: ``http://host:port``; it need answer only inside ``awake()``."""

    name: str
    url: str
    command: tuple[str, ...] = ()
    awake: Callable[[], AbstractContextManager[None]] = nullcontext


def waves_of(prompts: Sequence[Prompt], concurrency: int) -> Iterator[tuple[str, list[Prompt]]]:
    """Each group in pieces: single prompts for one request at a time, else ``WAVES_DEEP`` for each in flight."""
    size = 1 if concurrency == 1 else WAVES_DEEP * concurrency
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.group, []).append(prompt)
    for group, members in groups.items():
        yield from ((group, members[start : start + size]) for start in range(0, len(members), size))


def portable(word: str) -> str:
    """A word of a command as it can be published: of every absolute path in it only the last part."""
    return ABSOLUTE_PATH.sub(lambda found: found[0].rstrip("/").rsplit("/", 1)[-1], word)


def run(
    servers: Sequence[Server],
    prompts: Sequence[Prompt],
    load: Load,
    output: Path,
    prompt_set: str,
    on_wave: Callable[[Wave], None] | None = None,
) -> list[Wave]:
    """Ask every server every wave; each line is written to ``output`` as soon as it is known.

    Raises:
        InputError: a server does not answer at all.
    """
    header = Header(
        versions=versions(),
        machine=this_machine("cpu"),
        commands={server.name: [portable(word) for word in server.command] for server in servers},
        load=load,
        prompt_set=prompt_set,
        prompts_digest=prompts_digest(prompts),
    )
    waves: list[Wave] = []
    with output.open("w", encoding="utf-8") as file:
        file.write(header.model_dump_json() + "\n")
        for server in servers:  # the first answer of a server pays for what it sets up
            with server.awake():
                asyncio.run(_answer_wave(server, prompts[:1], load))
        for number, (group, members) in enumerate(waves_of(prompts, load.concurrency)):
            for server in shuffled(servers, load.seed, number):
                with server.awake():
                    wave = measure_wave(server, group, number, members, load)
                file.write(wave.model_dump_json() + "\n")
                file.flush()
                waves.append(wave)
                if on_wave is not None:
                    on_wave(wave)
    return waves


def measure_wave(server: Server, group: str, number: int, members: Sequence[Prompt], load: Load) -> Wave:
    """Have ``server`` answer ``members``, all their turns."""
    before = read_metrics(server.url)
    started = time.perf_counter()
    answers = asyncio.run(_answer_wave(server, members, load))
    seconds = time.perf_counter() - started
    after = read_metrics(server.url)
    return Wave(
        config=server.name,
        group=group,
        wave=number,
        prompts=len(members),
        tokens=sum(tokens for _, tokens, _ in answers),
        seconds=seconds,
        digests=[hashlib.sha256(text.encode()).hexdigest()[:16] for text, _, _ in answers],
        counters={name: after[name] - before[name] for name in METRICS if name in after and name in before},
        accept_length=after.get(ACCEPT_LENGTH),
        errors=[error for _, _, error in answers if error],
    )


def read_metrics(url: str) -> dict[str, float]:
    """Of a server's ``/metrics``, the values behind ``METRICS``; empty where it has no such page."""
    try:
        reply = httpx.get(f"{url}/metrics", timeout=30.0, follow_redirects=True)
    except httpx.TransportError:
        return {}
    if not reply.is_success:
        return {}
    sums: dict[str, float] = {}
    for name, value in SAMPLE.findall(reply.text):
        sums[name] = sums.get(name, 0.0) + float(value)
    found = {key: sums[name] for key, names in METRICS.items() for name in names if name in sums}
    if ACCEPT_LENGTH in sums:
        found[ACCEPT_LENGTH] = sums[ACCEPT_LENGTH]
    return found


async def _answer_wave(server: Server, members: Sequence[Prompt], load: Load) -> list[tuple[str, int, str]]:
    """Text, tokens and error ("" for none) of each conversation, at most ``load.concurrency`` at once."""
    gate = asyncio.Semaphore(load.concurrency)
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        try:
            models = (await client.get(f"{server.url}/v1/models")).raise_for_status().json()
            model = models["data"][0]["id"]
        except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
            raise InputError(f"{server.name} at {server.url} does not list its model ({error})") from error

        async def converse(prompt: Prompt) -> tuple[str, int, str]:
            answers: list[str] = []
            tokens = 0
            async with gate:
                for _ in prompt.turns:
                    body: dict[str, Any] = {
                        "model": model,
                        "messages": prompt.messages(answers),
                        "temperature": load.temperature,
                        "max_tokens": load.max_tokens,
                        "seed": load.seed,
                    }
                    if load.ignore_eos:
                        body["ignore_eos"] = True
                    try:
                        reply = await client.post(f"{server.url}/v1/chat/completions", json=body)
                        reply.raise_for_status()
                        document = reply.json()
                        answers.append(document["choices"][0]["message"]["content"] or "")
                        tokens += int(document["usage"]["completion_tokens"])
                    except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError) as error:
                        return "\n".join(answers), tokens, f"{prompt.id}: {type(error).__name__} {error}"
            return "\n".join(answers), tokens, ""

        return list(await asyncio.gather(*(converse(prompt) for prompt in members)))


# --- reading it ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One configuration on one group (or on all)."""

    group: str
    config: str
    rate: Estimate  # tokens per second
    versus: dict[str, Estimate]  # by the configuration it is divided by
    acceptance: float | None  # tokens per round, the target's own included
    missed: float | None  # share of emitted tokens outside the hot vocabulary
    same_text: float | None  # share of answers equal to the first configuration's
    errors: int


def summarize(waves: Sequence[Wave]) -> list[Row]:
    """Rates and ratios for every group, then over all; configurations in the order they were given."""
    configs = list(dict.fromkeys(wave.config for wave in sorted(waves, key=lambda w: w.wave)))
    groups = list(dict.fromkeys(wave.group for wave in waves))
    rows = []
    for group in [*groups, "overall"]:
        chosen = {
            config: sorted(
                (w for w in waves if w.config == config and group in (w.group, "overall")), key=lambda w: w.wave
            )
            for config in configs
        }
        samples = {config: _sample(found) for config, found in chosen.items()}
        for config in configs:
            rows.append(
                Row(
                    group,
                    config,
                    rate(samples[config]),
                    {
                        other: rate_ratio(samples[config], samples[other])
                        for other in ("plain", "full")
                        if other in samples and other != config
                    },
                    _acceptance(chosen[config]),
                    _share(chosen[config], "missed", "observed"),
                    _same(chosen[config], chosen[configs[0]]) if config != configs[0] else None,
                    sum(len(wave.errors) for wave in chosen[config]),
                )
            )
    return rows


def read_waves(path: Path) -> tuple[Header, list[Wave]]:
    """Read a result file.

    Raises:
        InputError: not one, of another version, or damaged.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        header = Header.model_validate_json(lines[0])
        waves = [Wave.model_validate_json(line) for line in lines[1:]]
    except (OSError, IndexError, ValidationError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a result file of hothead bench server ({str(error).splitlines()[0]})") from error
    if (header.format, header.version) != (FORMAT, VERSION):
        raise InputError(f"{path}: {header.format} version {header.version}; this hothead reads {FORMAT} {VERSION}")
    return header, waves


def _sample(waves: Sequence[Wave]) -> Sample:
    return Sample(np.array([w.tokens for w in waves], dtype=float), np.array([w.seconds for w in waves]))


def _acceptance(waves: Sequence[Wave]) -> float | None:
    drafts = sum(wave.counters.get("drafts", 0.0) for wave in waves)
    if drafts:
        return 1 + sum(wave.counters.get("accepted", 0.0) for wave in waves) / drafts
    return next((wave.accept_length for wave in reversed(waves) if wave.accept_length), None)


def _share(waves: Sequence[Wave], part: str, whole: str) -> float | None:
    total = sum(wave.counters.get(whole, 0.0) for wave in waves)
    return sum(wave.counters.get(part, 0.0) for wave in waves) / total if total else None


def _same(waves: Sequence[Wave], reference: Sequence[Wave]) -> float:
    pairs = [(a, b) for one, other in zip(waves, reference, strict=True) for a, b in zip(one.digests, other.digests)]  # noqa: B905
    return sum(a == b for a, b in pairs) / max(1, len(pairs))
