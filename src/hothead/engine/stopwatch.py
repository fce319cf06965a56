"""Where the milliseconds go."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Every second of a generation after prefill belongs to one of these; "other" is what the rest leave.
SECTIONS = ("draft_head", "draft_steps", "draft_extend", "target_verify", "vocab_update", "other")


class Stopwatch:
    """Adds up wall time by section. On a GPU each section ends in a synchronisation, so measure or run fast."""

    def __init__(self, device: torch.device) -> None:
        self._synchronize = torch.cuda.synchronize if device.type == "cuda" else None
        self.seconds = dict.fromkeys(SECTIONS, 0.0)

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

    def close(self, total_s: float) -> None:
        """Book what no section took of ``total_s`` as other."""
        self.seconds["other"] = 0.0
        self.seconds["other"] = max(0.0, total_s - sum(self.seconds.values()))
