"""The embedded engine beside other engines, and chains beside trees: ``runs/measure_engine``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from layout import shown

from hothead.bench.schema import read_results
from hothead.bench.summary import WHOLE_ANSWER, summarize
from hothead.report import engine as report
from hothead.report.compare import breakdown_table, headline
from sections.speed import at_best

sys.path.insert(0, str(Path(__file__).parents[2] / "measure_engine"))
import shapes

RUNS = {
    "engines_spec_bench_bf16.jsonl": "The engine beside other engines",
    "qwen_human_eval_own_bf16.jsonl": "Qwen2.5-Coder on HumanEval, a map with the target's own answers",
    "qwen_human_eval_bf16.jsonl": "Qwen2.5-Coder on HumanEval, a map counted on code",
    "qwen_human_eval_49152_bf16.jsonl": "Qwen2.5-Coder on HumanEval, a third of the rows",
    "qwen_chat_bf16.jsonl": "Qwen2.5-Coder on GSM8K and chat, a map counted on chat",
}
SHAPES = "draft_shapes_bf16.jsonl"


def side_by_side(results: Path) -> Sequence[str]:
    """Whole answers per group, what a round is made of, and the losses."""
    blocks: list[str] = []
    for name, title in RUNS.items():
        if not (path := results / name).exists():
            continue
        found = read_results(path)
        blocks += [f"## {title}", f"`results/{name}`. {headline(found)}."]
        if summaries := summarize(found, WHOLE_ANSWER):
            blocks += [shown(report.speed_table(summaries)), "Time per round, ms, all groups; decoding alone:"]
            blocks.append(shown(breakdown_table(summaries[-1])))
            blocks += [line for is_tree in (False, True) for line in at_best(found, summarize(found)[-1], is_tree)]
        blocks.append("\n".join(f"- {line}" for line in report.remarks(found)))
    return blocks


def trees_and_chains(results: Path) -> Sequence[str]:
    """Acceptance length and speed by the shape of what is drafted."""
    path = results / SHAPES
    return ("## Trees and chains", f"`results/{SHAPES}`. " + shapes.table(path)) if path.exists() else ()
