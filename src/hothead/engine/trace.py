"""A trace of spans as a file that trace viewers open (ui.perfetto.dev, chrome://tracing).

The Trace Event Format, its JSON object form: complete events ("X") with start and duration in microseconds, which nest
by time, on one named thread a track.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hothead.files import atomic_path

FORMAT, VERSION = "hothead.trace", 1
MAX_EVENTS = 500_000  # about 50 MB of JSON; viewers grow slow, and a long run would fill the memory


class Event(NamedTuple):
    """A span of time on the clock of ``time.perf_counter_ns``."""

    name: str
    track: int
    start_ns: int
    end_ns: int
    args: dict[str, Any] | None


class Trace:
    """What happened when, on as many tracks as there are methods.

    Args:
        max_events: events past these are left out of the file, which says so.

    Attributes:
        tracks: in the order in which they were asked for; number 1 first.
        left_out: events that did not fit.
    """

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self.tracks: list[Track] = []
        self.events: list[Event] = []
        self.left_out = 0
        self._max_events = max_events

    def track(self, name: str) -> "Track":
        """A new track."""
        self.tracks.append(Track(self, name, len(self.tracks) + 1))
        return self.tracks[-1]

    def add(self, event: Event) -> None:
        """Keep ``event`` if there is room."""
        if len(self.events) < self._max_events:
            self.events.append(event)
        else:
            self.left_out += 1

    def write(self, path: Path) -> None:
        """Write the trace to ``path``, compressed if it ends in ``.gz``.

        Raises:
            InputError: the file cannot be written.
        """
        with atomic_path(path) as temporary:
            opened = gzip.open if Path(path).suffix == ".gz" else open
            with opened(temporary, "wt", encoding="utf-8") as file:
                about = {"format": FORMAT, "version": VERSION, "events_left_out": self.left_out}
                file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n')
                file.write(",\n".join(json.dumps(event) for event in self._documents()))
                file.write("\n]}\n")

    def _documents(self) -> Iterator[dict[str, Any]]:
        of_all = {"ph": "M", "pid": 1}
        yield {**of_all, "tid": 0, "name": "process_name", "args": {"name": "hothead"}}
        for track in self.tracks:
            yield {**of_all, "tid": track.number, "name": "thread_name", "args": {"name": track.name}}
        origin = min((event.start_ns for event in self.events), default=0)
        for event in sorted(self.events, key=lambda e: (e.start_ns, -e.end_ns)):
            found = {
                "ph": "X",
                "pid": 1,
                "tid": event.track,
                "name": event.name,
                "cat": "engine",
                "ts": (event.start_ns - origin) / 1000,
                "dur": (event.end_ns - event.start_ns) / 1000,
            }
            yield found if event.args is None else {**found, "args": event.args}


class Track:
    """One row of a trace: a method's.

    Attributes:
        spans: how many were timed, those that did not fit included.
        rounds: how many of them were rounds.
    """

    def __init__(self, trace: Trace, name: str, number: int) -> None:
        self._trace = trace
        self.name, self.number = name, number
        self.spans = self.rounds = 0

    def add(self, name: str, start_ns: int, end_ns: int, args: dict[str, Any] | None = None) -> None:
        """Append a span."""
        self.spans += 1
        self._trace.add(Event(name, self.number, start_ns, end_ns, args))
