"""Draw learning curves from the JSON-lines logs of train.py."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "logs",
        type=Path,
        nargs="+",
        help="log files; the stem names the curve; the first one's chain steps are drawn",
    )
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    args = parser.parse_args()
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4), constrained_layout=True)
    for path in args.logs:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        train = [r for r in rows if "ce" in r]
        held = [r for r in rows if r.get("event") == "held_out"]
        window = 10
        ce = [
            sum(r["ce"][0] for r in train[max(0, i - window) : i + 1]) / min(window + 1, i + 1)
            for i in range(len(train))
        ]
        left.plot([r["tokens"] / 1e6 for r in train], ce, label=path.stem)
        # a held-out row's positions are those of the last training row before it
        x = [max((r["tokens"] for r in train if r["step"] <= h["step"]), default=0) / 1e6 for h in held]
        for j in range(4 if path == args.logs[0] else 0):
            middle.plot(x, [r["top1"][j] for r in held], marker=".", label=f"chain step {j + 1}")
        right.plot(x, [r["acceptance"]["overall"] for r in held], marker=".", label=path.stem)
    left.set(
        xlabel="trained positions (millions)",
        ylabel="cross entropy, chain step 1 (nats)",
        title="Training loss",
    )
    middle.set(xlabel="trained positions (millions)", ylabel="top-1 accuracy", title="Held out, chain steps 1 to 4")
    right.set(
        xlabel="trained positions (millions)",
        ylabel="tokens a verify pass, k = 4",
        title="Held-out greedy answers",
    )
    for axis in (left, middle, right):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
