"""What the traffic did to the vocabulary: counters for Prometheus and the log, and a ranking of what was emitted.

The counts arise in the worker, the metrics endpoint is in the API server. They share a file of numbers; a collector
reads it whenever Prometheus asks. vLLM kills its workers when it is stopped, and the file outlives them: the process
that started them saves from it what they could not. No text and no order of tokens is kept anywhere.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from multiprocessing.util import Finalize
from pathlib import Path

import numpy as np

from hothead.errors import InputError, TokenizerMismatch
from hothead.ranking.counts import Counts
from hothead.ranking.ranking import Source, TokenRanking
from hothead.tokenizer import Tokenizer, fingerprint, tokenizer_size
from hothead.vllm_plugin.drafter import COUNTERS, HotDrafter

SAVE_EVERY_S = 30.0
READ_EVERY_S = 1.0  # reading a counter waits for an accelerator; once a second is nothing

HELP = {
    "observed": "Tokens the target emitted.",
    "missed": "Emitted tokens that the draft could not propose: outside its hot vocabulary.",
    "accepted": "Emitted tokens that were drafted; all of them were hot.",
    "inserted": "Rows of the LM head copied into dynamic slots.",
}


def counter_file(instance_id: str, engine: int) -> Path:
    """Where the worker of an engine leaves its counters."""
    return Path(tempfile.gettempdir()) / f"hothead-{instance_id}-{engine}.counters"


class CounterFile:
    """int64 in a file that another process reads while they change: the four counters, then ``emitted``.

    Args:
        vocab_size: length of ``emitted``; 0 where nothing is recorded.
    """

    def __init__(self, path: Path, vocab_size: int = 0) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)  # never through somebody's link
        os.ftruncate(handle, 8 * (len(COUNTERS) + vocab_size))
        os.close(handle)
        self._values = np.memmap(path, dtype=np.int64, mode="r+", shape=(len(COUNTERS) + vocab_size,))

    def write(self, counters: np.ndarray, emitted: np.ndarray | None = None) -> None:
        self._values[: len(COUNTERS)] = counters
        if emitted is not None:
            self._values[len(COUNTERS) :] = emitted

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def _read(path: Path) -> np.ndarray:
    """What a counter file holds; zeros, and nothing emitted, before its worker has started."""
    try:
        values = np.frombuffer(path.read_bytes(), dtype=np.int64)
    except OSError:
        values = np.zeros(0, dtype=np.int64)
    return values if len(values) >= len(COUNTERS) else np.zeros(len(COUNTERS), dtype=np.int64)


def read_counters(path: Path) -> dict[str, int]:
    """The counters of one engine by name; zeros before its worker has started."""
    return dict(zip(COUNTERS, _read(path)[: len(COUNTERS)].tolist(), strict=True))


class Collector:
    """Serves the counters of a server's engines as ``vllm:hothead_*_tokens_total``.

    Args:
        model_name: vLLM's own label.
        files: the counter file of each engine, by its index.
    """

    _name = "vllm:hothead"  # vLLM unregisters collectors so named when it makes its own anew

    def __init__(self, model_name: str, files: dict[int, Path]) -> None:
        self._model_name = model_name
        self._files = files

    def collect(self) -> Iterator[object]:
        """Prometheus calls this."""
        from prometheus_client.core import CounterMetricFamily

        values = {engine: read_counters(path) for engine, path in self._files.items()}
        for name in COUNTERS:
            family = CounterMetricFamily(f"vllm:hothead_{name}_tokens", HELP[name], labels=["model_name", "engine"])
            for engine, counters in values.items():
                family.add_metric([self._model_name, str(engine)], counters[name])
            yield family


class TrafficRecorder:
    """Keeps a ``TokenRanking`` of what a server emits, in a file that a restart goes on with.

    Args:
        path: the ranking; an existing one of the same tokenizer is added to.
        tokenizer: the target's.

    Raises:
        InputError: the file is there and is something else.
        TokenizerMismatch: it is of another tokenizer.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self.path = path
        self._tokenizer = tokenizer
        self._size = tokenizer_size(self._tokenizer)
        self._before: TokenRanking | None = None
        self._saved = 0
        if path.exists():
            self._before = TokenRanking.load(path)
            try:
                self._before.check_tokenizer(fingerprint(self._tokenizer))
            except TokenizerMismatch as error:
                raise TokenizerMismatch(f"record_counts {path}: {error}") from error

    def save(self, emitted: np.ndarray) -> None:
        """Write the ranking with ``emitted``, int64 [V], counted since the start; nothing new writes nothing."""
        total = int(emitted.sum())
        if total == self._saved:
            return
        counts = Counts(emitted[: self._size].copy())
        source = Source(("vllm traffic",), "output", 0, total)
        ranking = TokenRanking.from_counts(counts, self._tokenizer, source)
        if self._before is not None:
            ranking = TokenRanking.merge(self._before, ranking)
        ranking.save(self.path)
        self._saved = total


def save_what_is_left(engines: Mapping[Path, TrafficRecorder | None]) -> None:
    """When a server ends: save the counts of engines that were killed before they could, and take their files away.

    Args:
        engines: what records for each counter file; an engine that ended by itself has left none.
    """
    for path, recorder in engines.items():
        if recorder is not None:
            recorder.save(_read(path)[len(COUNTERS) :])
        path.unlink(missing_ok=True)


class Reporter:
    """Carries a drafter's counters from its device to file, log and ranking; call :meth:`tick` once a step."""

    def __init__(
        self, drafter: HotDrafter, file: CounterFile, recorder: TrafficRecorder | None, log_every_s: float, log: object
    ) -> None:
        self._drafter = drafter
        self._file = file
        self._recorder = recorder
        self._log_every_s = log_every_s
        self._log = log
        self._emitted: np.ndarray | None = None
        self._logged = np.zeros(len(COUNTERS), dtype=np.int64)
        now = time.monotonic()
        self._read_at, self._logged_at, self._saved_at = 0.0, now, now
        self._read_every_s = 0.0 if drafter.counters.device.type == "cpu" else READ_EVERY_S
        Finalize(self, self.close, exitpriority=10)  # vLLM's workers leave without running atexit

    def tick(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if now - self._read_at < self._read_every_s:
            return
        self._read_at = now
        values = self._read()
        if now - self._logged_at >= self._log_every_s:
            self._logged_at = now
            self._log_line(values)
        if now - self._saved_at >= SAVE_EVERY_S:
            self._saved_at = now
            self._save()

    def _read(self) -> np.ndarray:
        """Bring the counters, int64 [4], and the counts here, and share them."""
        values = self._drafter.counters.cpu().numpy()
        if self._drafter.emitted is not None:
            self._emitted = self._drafter.emitted.cpu().numpy()
        self._file.write(values, self._emitted)
        return values

    def _log_line(self, values: np.ndarray) -> None:
        new = dict(zip(COUNTERS, (values - self._logged).tolist(), strict=True))
        self._logged = values.copy()
        if not new["observed"]:
            return
        hot = new["observed"] - new["missed"]
        self._log.info(  # type: ignore[attr-defined]
            "hothead: %d tokens emitted, %.1f%% outside the hot vocabulary; %.1f%% of the hot ones were accepted "
            "drafts; %d rows inserted",
            new["observed"],
            100 * new["missed"] / new["observed"],
            100 * new["accepted"] / max(1, hot),
            new["inserted"],
        )

    def _save(self) -> None:
        if self._recorder is None or self._emitted is None:
            return
        try:
            self._recorder.save(self._emitted)
        except InputError as error:  # a full disk is no reason to stop serving
            self._log.warning("hothead: %s", error)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Save the last counts and take the counter file away."""
        self._read()
        self._save()
        self._file.remove()
