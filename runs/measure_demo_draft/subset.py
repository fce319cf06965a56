"""Part of a Spec-Bench file: some categories as groups of their own, all but one, or one half of each group."""

import json
from argparse import ArgumentParser
from pathlib import Path

from hothead.bench.prompts import read_prompts
from hothead.files import write_text


def of_categories(lines: list[str], categories: list[str], first: int) -> list[str]:
    """The first so many of each category, which becomes a group ("coding" would be filed under mt_bench)."""
    kept: dict[str, list[str]] = {category: [] for category in categories}
    for line in lines:
        record = json.loads(line)
        found = kept.get(record["category"])
        if found is not None and len(found) < first:
            found.append(json.dumps({**record, "category": f"{record['category']} (out of domain)"}))
    return [line for found in kept.values() for line in found]


def without(lines: list[str], category: str) -> list[str]:
    """All of the others."""
    return [line for line in lines if json.loads(line)["category"] != category]


def half_of_groups(path: Path, lines: list[str], per_group: int, half: int) -> list[str]:
    """Every other one of the first ``per_group`` prompts of each group."""
    by_id = {str(json.loads(line)["question_id"]): line for line in lines}
    return [by_id[prompt.id] for prompt in read_prompts(path, per_group)[half::2]]


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--categories", nargs="+")
    parser.add_argument("--without", metavar="CATEGORY")
    parser.add_argument("--first", type=int, default=5, help="of each category")
    parser.add_argument("--per-group", type=int, default=10)
    parser.add_argument("--half", type=int, choices=(0, 1), default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    lines = args.prompts.read_text(encoding="utf-8").splitlines()
    if args.categories:
        kept = of_categories(lines, args.categories, args.first)
    elif args.without:
        kept = without(lines, args.without)
    else:
        kept = half_of_groups(args.prompts, lines, args.per_group, args.half)
    write_text(args.output, "\n".join(kept) + "\n")


if __name__ == "__main__":
    main()
