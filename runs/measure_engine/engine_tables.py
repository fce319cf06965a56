"""What the files of runs/measure_engine in a folder say, as Markdown: every number comes from there.

    python runs/measure_engine/engine_tables.py results

runs/measure_demo_draft/tables.py puts the same sections into docs/results.md.
"""

import sys
from argparse import ArgumentParser
from pathlib import Path

from hothead.bench.schema import read_results
from hothead.bench.summary import WHOLE_ANSWER, summarize
from hothead.report import engine as report
from hothead.report.compare import Table, breakdown_table, headline

sys.path.insert(0, str(Path(__file__).parent))
import shapes

TITLES = {
    "engines_spec_bench_bf16.jsonl": "The engine beside other engines",
    "qwen_human_eval_bf16.jsonl": "Qwen2.5-Coder on HumanEval, a map counted on code",
    "qwen_chat_bf16.jsonl": "Qwen2.5-Coder on GSM8K and chat, a map counted on chat",
}
SHAPES = "draft_shapes_bf16.jsonl"


def markdown(table: Table) -> str:
    """A table as Markdown."""
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    return "\n".join("| " + " | ".join(cell.strip() for cell in line) + " |" for line in lines)


def engine_section(title: str, path: Path) -> list[str]:
    """Whole answers per group, what a round is made of, and the losses."""
    results = read_results(path)
    summaries = summarize(results, WHOLE_ANSWER)
    parts = [f"## {title}", f"`results/{path.name}`. {headline(results)}."]
    if summaries:
        parts += [markdown(report.speed_table(summaries)), "Time per round, ms, all groups; decoding alone:"]
        parts.append(markdown(breakdown_table(summaries[-1])))
    return [*parts, "\n".join(f"- {line}" for line in report.remarks(results))]


def sections(results: Path) -> list[str]:
    """Of the files that are there."""
    parts: list[str] = []
    for name, title in TITLES.items():
        if (path := results / name).exists():
            parts += engine_section(title, path)
    if (path := results / SHAPES).exists():
        parts += ["## Trees and chains", f"`results/{SHAPES}`. " + shapes.table(path)]
    return parts


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    print("\n\n".join(sections(parser.parse_args().results)))


if __name__ == "__main__":
    main()
