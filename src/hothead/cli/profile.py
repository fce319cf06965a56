"""``--profile``: a trace for a viewer, and where a round's time goes."""

from pathlib import Path
from typing import Annotated

from hothead.cli.common import say
from hothead.cli.engine_options import option
from hothead.engine.trace import Trace
from hothead.report.profile import SpanCost

ProfileOption = Annotated[Path | None, option("Write a trace, the parts of a pass too.", metavar="FILE")]


def span_costs(trace: Trace, device: str) -> dict[str, SpanCost]:
    """By track, of those that ran rounds."""
    import torch

    from hothead.engine.stopwatch import span_cost_s

    us_per_span = 1e6 * span_cost_s(torch.device(device))
    return {track.name: SpanCost(track.spans / track.rounds, us_per_span) for track in trace.tracks if track.rounds}


def write_trace(trace: Trace, path: Path) -> None:
    """Write the trace, and say what is in it."""
    trace.write(path)
    left_out = f"; {trace.left_out} later ones left out" if trace.left_out else ""
    say(f"{path}: {len(trace.events)} spans{left_out}, for ui.perfetto.dev or chrome://tracing")
