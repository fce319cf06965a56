"""The plugin in vLLM, from ``hothead bench server``: the tables of ``runs/measure_vllm``, over all prompts."""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "measure_vllm"))
import tables


def in_vllm(results: Path) -> Sequence[str]:
    """Each run of servers."""
    blocks: list[str] = []
    for name, title in tables.SPEED:
        if (results / name).exists():
            blocks += tables.speed_section(results / name, title, by_group=False, heading="###")
    opening = ("## In vLLM", "Prefill included. Groups, texts and more are in [Results in vLLM](vllm_results.md).")
    return [*opening, *blocks] if blocks else ()
