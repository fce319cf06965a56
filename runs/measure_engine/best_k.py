"""From a trial of many chain lengths to the methods worth measuring: each kind at the k that was fastest.

python runs/measure_engine/best_k.py out/trial.jsonl        prints plain,full k=3,static k=4,...
"""

from argparse import ArgumentParser
from pathlib import Path

from hothead.bench.methods import parse_method
from hothead.bench.schema import PLAIN, read_results
from hothead.bench.summary import WHOLE_ANSWER, summarize


def best_of_each_kind(path: Path) -> list[str]:
    """Names of methods, plain first."""
    fastest: dict[str, tuple[float, str]] = {}
    for method in summarize(read_results(path), WHOLE_ANSWER)[-1].methods:
        kind = parse_method(method.method).kind
        fastest[kind] = max(fastest.get(kind, (0.0, "")), (method.tokens_per_s.value, method.method))
    return [PLAIN, *(name for kind, (_, name) in fastest.items() if kind != PLAIN)]


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    print(",".join(best_of_each_kind(parser.parse_args().results)))
