"""Where the milliseconds go: by section, always; by part of the verify pass and into a trace, on request."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from hothead.engine.trace import Trace, Track
from hothead.spans import LISTENERS, NOTHING, PART_OF, PROFILE_LABELS, SECTION_LABELS, span


class Stopwatch:
    """Adds up wall time by section. On a GPU each section ends in a synchronisation, so measure or run fast."""

    def __init__(self, device: torch.device) -> None:
        self._synchronize = torch.cuda.synchronize if device.type == "cuda" else None
        self.seconds = dict.fromkeys(SECTION_LABELS, 0.0)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time the body as part of ``name``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self._synchronize is not None:
                self._synchronize()
            self.seconds[name] += time.perf_counter() - start

    def note(self, name: str, start_s: float, **args: Any) -> None:
        """Something that began at ``start_s`` of ``time.perf_counter`` ends: of interest to a trace alone."""

    def close(self, total_s: float) -> dict[str, float]:
        """Book what no section took of ``total_s`` as other, and return the seconds by section."""
        self.seconds["other"] = 0.0
        self.seconds["other"] = max(0.0, total_s - sum(self.seconds.values()))
        return self.seconds


class Profiler(Stopwatch):
    """A stopwatch that also takes the spans inside a section, one at a time in a process, and fills a trace.

    A span's time less that of the spans inside it goes to its part (``PART_OF``), or to what it is in. On a GPU every
    span begins and ends in a synchronisation; inside a graph capture, which allows none, and inside compiled code none
    is taken, so that such code is one part as a whole.
    """

    def __init__(self, device: torch.device, track: Track) -> None:
        super().__init__(device)
        self.seconds = dict.fromkeys(PROFILE_LABELS, 0.0)
        self._track = track
        self._open: list[_Span] = []  # outermost first
        self._self_ns = dict.fromkeys((*PROFILE_LABELS, "target_verify"), 0)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        with _Span(self, name):
            yield

    def note(self, name: str, start_s: float, **args: Any) -> None:
        self._track.add(name, int(start_s * 1e9), time.perf_counter_ns(), args)
        self._track.rounds += name == "round"

    def close(self, total_s: float) -> dict[str, float]:
        # What is in the verify pass and in none of its parts is the loop's own Python.
        self.seconds |= {name: self._self_ns[name] / 1e9 for name in self.seconds}
        return super().close(total_s)


class _Span(AbstractContextManager[None]):
    """A section, or a span inside one."""

    __slots__ = ("_inside_ns", "_name", "_parent", "_part", "_profiler", "_start_ns")

    def __init__(self, profiler: Profiler, name: str) -> None:
        self._profiler, self._name = profiler, name

    def __enter__(self) -> None:
        profiler = self._profiler
        self._inside_ns = 0
        if profiler._open:
            self._parent: _Span | None = profiler._open[-1]
            self._part: str = PART_OF.get((self._parent._part, self._name), self._parent._part)
        else:
            self._parent, self._part = None, self._name
            _listening.append(profiler)
            LISTENERS.append(_inner_span)
        profiler._open.append(self)
        if profiler._synchronize is not None:
            profiler._synchronize()
        self._start_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        profiler = self._profiler
        if profiler._synchronize is not None:
            profiler._synchronize()
        end_ns = time.perf_counter_ns()
        elapsed_ns = end_ns - self._start_ns
        profiler._open.pop()
        profiler._self_ns[self._part] += elapsed_ns - self._inside_ns
        if self._parent is None:
            LISTENERS.pop()
            _listening.pop()
        else:
            self._parent._inside_ns += elapsed_ns
        profiler._track.add(self._name, self._start_ns, end_ns)


_listening: list[Profiler] = []  # the last one takes the spans; beside LISTENERS, so that what is there stays the same


def _inner_span(name: str) -> AbstractContextManager[None]:
    """What :func:`hothead.spans.span` opens inside a section."""
    if torch.compiler.is_compiling():
        return NOTHING
    profiler = _listening[-1]
    if profiler._synchronize is not None and torch.cuda.is_current_stream_capturing():
        return NOTHING
    return _Span(profiler, name)


def span_cost_s(device: torch.device, count: int = 2000) -> float:
    """What a span costs the round it is in: the mean of ``count`` empty ones, in seconds."""
    profiler = Profiler(device, Trace(max_events=count + 1).track("empty"))
    with profiler.section("other"):
        start = time.perf_counter()
        for _ in range(count):
            with span("empty"):
                pass
        return (time.perf_counter() - start) / count
