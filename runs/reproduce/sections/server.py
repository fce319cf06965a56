"""The plugin in vLLM, from ``hothead bench server``."""

from collections.abc import Sequence
from pathlib import Path

from layout import MISSING, between, percent, table

from hothead.bench.server import Wave, read_waves, summarize

FILES = "vllm_*.jsonl"
OVERALL = "overall"


def in_vllm(results: Path) -> Sequence[str]:
    """Each run of servers, over all prompts."""
    blocks: list[str] = []
    for path in sorted(results.glob(FILES)):
        header, waves = read_waves(path)
        rows = [
            (
                row.config,
                between(row.rate, ".1f"),
                between(row.versus.get("plain")),
                between(row.versus.get("full")),
                MISSING if row.acceptance is None else f"{row.acceptance:.2f}",
                percent(row.missed),
                percent(row.same_text, 0),
                str(row.errors),
            )
            for row in summarize(waves)
            if row.group == OVERALL
        ]
        load = header.load
        columns = ("", "tokens/s", "over plain", "over full", "acceptance", "missed, %", "same text, %", "errors")
        blocks += [
            f"`results/{path.name}`. {_prompts(waves)} prompts of {header.prompt_set}, {load.concurrency} at a time, "
            f"up to {load.max_tokens} tokens, temperature {load.temperature:g}; {header.machine.cpu}, "
            f"{header.machine.cores} cores.",
            table(columns, rows),
        ]
    return ["## In vLLM", "Prefill included. More in [vllm.md](vllm.md).", *blocks] if blocks else ()


def _prompts(waves: Sequence[Wave]) -> int:
    """How many each configuration was asked."""
    return sum(wave.prompts for wave in waves if wave.config == waves[0].config)
