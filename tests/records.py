"""Result records for tests, with everything that does not matter filled in."""

from typing import Any

from hothead.bench.head_results import Ceiling, HeadBench, HeadBenchConfig, HeadSeries, HeadTiming
from hothead.bench.roofline import head_work
from hothead.bench.schema import (
    Answer,
    Failure,
    Header,
    Machine,
    ModelIdentity,
    PromptSetIdentity,
    Settings,
    VocabIdentity,
)
from hothead.bench.stats import Estimate


def header(methods: tuple[str, ...] = ("plain", "full"), repeats: int = 1, **changes: Any) -> Header:
    """A header; ``changes`` go to its settings."""
    settings = {
        "num_steps": 4,
        "slots": 16,
        "policy": "on_miss",
        "max_new_tokens": 64,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 0,
    }
    return Header(
        versions={"hothead": "0.1.0"},
        machine=Machine(cpu="a CPU", cores=2, threads=2, memory_gib=8.0),
        target=ModelIdentity(name="target"),
        tokenizer_fingerprint="f" * 64,
        draft=ModelIdentity(name="draft"),
        vocab=VocabIdentity(size=10, target_vocab_size=100, digest="d" * 64),
        dtype="bfloat16",
        device="cpu",
        prompt_set=PromptSetIdentity(name="prompts", prompts=2, digest="e" * 64),
        settings=Settings(methods=methods, repeats=repeats, **{**settings, **changes}),
    )


def answer(method: str, prompt_id: str = "1", turn: int = 0, repeat: int = 0, **changes: Any) -> Answer:
    """An answer of 11 tokens in 5 rounds and 1 second."""
    values = {
        "group": "qa",
        "equality": "reference" if method == "plain" else "equal",
        "finish_reason": "length",
        "prompt_tokens": 7,
        "new_tokens": 11,
        "rounds": 5,
        "misses": 1,
        "rows_copied": 2,
        "prefill_s": 0.25,
        "decode_s": 1.0,
        "sections_s": {"draft_head": 0.25, "target_verify": 0.75},
        "ids_digest": "a" * 32,
    }
    return Answer(prompt_id=prompt_id, turn=turn, repeat=repeat, method=method, **{**values, **changes})


def failure(method: str, prompt_id: str = "1", turn: int = 0, repeat: int = 0) -> Failure:
    return Failure(prompt_id=prompt_id, group="qa", turn=turn, repeat=repeat, method=method, error="ContextOverflow: x")


def block(prompt_id: str) -> tuple[Answer, ...]:
    return answer("plain", prompt_id), answer("full", prompt_id)


def head_bench(batches: tuple[int, ...] = (1, 8), with_ceiling: bool = True) -> HeadBench:
    """A head of 1,000 rows of 100 values, read at 40 of 50 GB/s: pruned ones take time in proportion to their rows."""
    timings = []
    for batch in batches:
        full_s = head_work(batch, 100, 1000, 2).bytes_moved / 40e9
        for variant, size, slots in (("full", 1000, 0), ("static", 250, 0), ("static+slots", 250, 50)):
            share = (size + slots) / 1000
            timings.append(
                HeadTiming(
                    variant=variant,
                    size=size,
                    slots=slots,
                    batch=batch,
                    rows=size + slots,
                    rounds=20,
                    median_s=Estimate(share * full_s, 0.9 * share * full_s, 1.1 * share * full_s),
                    times_full=Estimate(share, 0.9 * share, 1.1 * share),
                )
            )
        if batch == batches[0]:
            update = {"batch": batch, "rows": 4, "rounds": 20, "median_s": Estimate(1e-6), "times_full": Estimate(0.2)}
            timings.append(HeadTiming(variant="slot update", size=250, slots=50, **update))
    ceiling = Ceiling(read_bytes_per_s=50e9, gemm_flops_per_s=200e9, buffer_bytes=1 << 29, gemm_size=1024)
    head = HeadSeries(
        vocab_size=1000,
        hidden_size=100,
        dtype="bfloat16",
        weights="random",
        ceiling=ceiling if with_ceiling else None,
        timings=tuple(timings),
    )
    return HeadBench(
        versions={"hothead": "0.1.0"},
        machine=header().machine,
        device="cpu",
        config=HeadBenchConfig(sizes=(250,), slots=50, batches=batches, repeats=20),
        heads=(head,),
    )
