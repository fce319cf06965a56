"""docs/eagle3.md from the files that run.sh wrote to results/: every number in its tables comes from there."""

import hashlib
from argparse import ArgumentParser
from pathlib import Path

from hothead.bench.schema import FULL, PLAIN, Results, read_results
from hothead.bench.server import Row, Wave, read_waves, summarize
from hothead.bench.summary import OVERALL, count_equality
from hothead.bench.summary import summarize as summarize_engine
from hothead.files import write_text
from hothead.report.compare import Table

COLUMNS = ("", "tokens", "acceptance length", "same text")
INTRODUCTION = """# One EAGLE-3 draft, every engine

`drafts/smollm2-135m-instruct-eagle3` is a real EAGLE-3 draft for SmolLM2-135M-Instruct, trained by
`runs/train_eagle3_draft`: three of the target's layers fused, one layer, and a head of 16,384 rows with `d2t` and `t2d`
in the public layout. Here it and the same draft pruned to 4,096 rows (`hothead prune`) run in hothead's own engine, in
stock vLLM (no plugin is loaded), in vLLM with the plugin, which prunes the unpruned draft at load, and in llama.cpp's
`llama-server --spec-type draft-eagle3`.

```sh
hothead prune drafts/smollm2-135m-instruct-eagle3 --size 4096 -o pruned \\
  --ranking drafts/smollm2-135m-instruct-eagle/ranking.safetensors
vllm serve TARGET --speculative-config '{"method": "eagle3", "model": "pruned", "num_speculative_tokens": 4}'

python convert_hf_to_gguf.py drafts/smollm2-135m-instruct-eagle3 --target-model-dir TARGET --outfile draft.gguf
hothead prune draft.gguf --size 4096 -o pruned.gguf --ranking drafts/smollm2-135m-instruct-eagle/ranking.safetensors
llama-server -m target.gguf -md pruned.gguf --spec-type draft-eagle3 --spec-draft-n-max 4
```

`convert_hf_to_gguf.py` is llama.cpp's. This page is made by `runs/measure_eagle3/run.sh`, which needs llama.cpp's
source tree, a built `llama-server` and an environment with vLLM:

```sh
export LLAMA_CPP=llama.cpp LLAMA_BIN=llama.cpp/build/bin
runs/measure_eagle3/run.sh texts prompts/demo.jsonl   # float32: texts and acceptance
runs/measure_eagle3/run.sh times prompts/demo.jsonl   # bfloat16: times
```"""


def markdown(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table as Markdown."""
    table = Table("", columns, tuple(rows))
    return "\n".join("| " + " | ".join(line) + " |" for line in (table.columns, ("---",) * len(columns), *table.rows))


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def engine_text_rows(runs: dict[str, Results]) -> list[tuple[str, ...]]:
    """Of hothead's engine: plain once, then each draft."""
    rows = []
    for draft, results in runs.items():
        overall = next(group for group in summarize_engine(results) if group.name == OVERALL)
        for method in overall.methods:
            answers = [answer for answer in results.answers if answer.method == method.method]
            tokens = str(sum(answer.new_tokens for answer in answers))
            if method.method == FULL:
                counts = count_equality(answers)
                same = f"{counts.equal} of {counts.compared}"
                rows.append((f"hothead {draft}", tokens, number(method.acceptance_length), same))
            elif draft == "full":
                rows.append(("hothead plain", tokens, "-", "-"))
    return rows


def server_text_rows(waves: list[Wave]) -> list[tuple[str, ...]]:
    """Of each server; same text as the plain server of the same engine."""
    plain = {(w.config.rpartition(" ")[0], w.wave): w.digests for w in waves if w.config.endswith(" plain")}
    rows = []
    for row in overall_rows(waves):
        mine = [wave for wave in waves if wave.config == row.config]
        engine = row.config.rpartition(" ")[0]
        pairs = [pair for w in mine for pair in zip(w.digests, plain[engine, w.wave], strict=True)]
        same = f"{sum(one == other for one, other in pairs)} of {len(pairs)}"
        tokens = str(sum(wave.tokens for wave in mine))
        rows.append((row.config, tokens, number(row.acceptance), "-" if row.config == f"{engine} plain" else same))
    return rows


def overall_rows(waves: list[Wave]) -> list[Row]:
    """One summary a configuration, over all groups."""
    order = list(dict.fromkeys(wave.config for wave in waves))
    return sorted((r for r in summarize(waves) if r.group == OVERALL), key=lambda r: order.index(r.config))


def engine_time_rows(runs: dict[str, Results]) -> list[tuple[str, ...]]:
    """Tokens per second with prefill, as a server's, and what one drafted token costs."""
    rows = []
    for draft, results in runs.items():
        overall = next(group for group in summarize_engine(results) if group.name == OVERALL)
        rates = {}
        for method in overall.methods:
            answers = [answer for answer in results.answers if answer.method == method.method]
            seconds = sum(answer.prefill_s + answer.decode_s for answer in answers)
            rates[method.method] = sum(answer.new_tokens for answer in answers) / seconds
            steps, ms = results.header.settings.num_steps, method.ms_per_round
            step = ms["draft_steps"] / (steps - 1) + ms["draft_head"] / steps if method.method == FULL else None
            name = PLAIN if method.method == PLAIN else draft
            if name != PLAIN or draft == "full":
                times = rates[method.method] / rates[PLAIN] if method.method != PLAIN else 1.0
                cells = (number(rates[method.method], 1), number(times), number(method.acceptance_length))
                rows.append((f"hothead {name}", *cells, number(step)))
    return rows


def server_time_rows(waves: list[Wave]) -> list[tuple[str, ...]]:
    """Tokens per second as a client sees them."""
    rows = overall_rows(waves)
    plain = {row.config.rpartition(" ")[0]: row.rate.value for row in rows if row.config.endswith(" plain")}
    return [
        (
            row.config,
            number(row.rate.value, 1),
            number(row.rate.value / plain[row.config.rpartition(" ")[0]]),
            number(row.acceptance),
            "-",
        )
        for row in rows
    ]


def agreement(engine: Results, servers: dict[str, list[Wave]]) -> str:
    """How many of plain decoding's answers are the same in hothead and in each server, in a sentence."""
    ours = {
        hashlib.sha256((answer.text or "").encode()).hexdigest()[:16]
        for answer in engine.answers
        if answer.method == PLAIN
    }
    parts = []
    for name, waves in servers.items():
        theirs = [digest for wave in waves if wave.config == f"{name} plain" for digest in wave.digests]
        parts.append(f"{sum(digest in ours for digest in theirs)} of {len(theirs)} in {name}")
    return f"Plain decoding's answers that are hothead's own to the last character: {', '.join(parts)}."


def setting(results: Results) -> str:
    """What was asked, in a sentence."""
    header = results.header
    return (
        f"{header.prompt_set.prompts} prompts of `{header.prompt_set.name}`, up to {header.settings.max_new_tokens} "
        f"tokens, greedy, k = {header.settings.num_steps}, one request at a time; {header.machine.cpu}, "
        f"{header.machine.cores} cores"
    )


def sections(results: Path, dtype: str) -> list[str]:
    """The part of one run, of the engines whose files are there.

    Raises:
        ValueError: the engines were asked different prompts, or for different lengths.
    """
    paths = {draft: results / f"eagle3_engine_{draft}_{dtype}.jsonl" for draft in ("full", "pruned")}
    engine = {draft: read_results(path) for draft, path in paths.items() if path.exists()}
    files = [results / f"eagle3_{name}_{dtype}.jsonl" for name in ("vllm", "llama.cpp")]
    servers = {path.stem.split("_")[1]: read_waves(path) for path in files if path.exists()}
    if "full" not in engine:
        return []
    asked = engine["full"].header
    for header, _ in servers.values():
        ours = (asked.prompt_set.digest, asked.settings.max_new_tokens)
        if (header.prompts_digest, header.load.max_tokens) != ours:
            raise ValueError(f"the {dtype} results were not asked the same; run run.sh again")
    waves = {name: found for name, (_, found) in servers.items()}
    named = ", ".join(f"`results/{path.name}`" for path in (*paths.values(), *files) if path.exists())
    if dtype == "float32":
        rows = engine_text_rows(engine) + [row for found in waves.values() for row in server_text_rows(found)]
        return [
            "## The same text, float32",
            f"{named}. {setting(engine['full'])}. Same text: answers equal to plain decoding's in the same engine.",
            markdown(COLUMNS, rows),
            *([agreement(engine["full"], waves)] if waves else []),
        ]
    columns = ("", "tokens/s", "x plain", "acceptance length", "draft step, ms")
    rows = engine_time_rows(engine) + [row for found in waves.values() for row in server_time_rows(found)]
    return [
        "## How fast, bfloat16",
        f"{named}. {setting(engine['full'])}. Tokens per second are of whole answers, prefill included; a draft step "
        "is the layer and the head, once each, where the engine tells it.",
        markdown(columns, rows),
    ]


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    parts = [INTRODUCTION, *sections(args.results, "float32"), *sections(args.results, "bfloat16")]
    write_text(args.output, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
