"""Some categories of a Spec-Bench file: the first so many of each."""

import json
from argparse import ArgumentParser
from pathlib import Path

from hothead.files import write_text


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--categories", nargs="+", required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    kept: dict[str, list[str]] = {category: [] for category in args.categories}
    for line in args.prompts.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        lines = kept.get(record["category"])
        if lines is not None and len(lines) < args.first:
            # "coding" would be filed under mt_bench; a group of its own is what is wanted here.
            lines.append(json.dumps({**record, "category": f"{record['category']} (out of domain)"}))
    write_text(args.output, "\n".join(line for lines in kept.values() for line in lines) + "\n")


if __name__ == "__main__":
    main()
