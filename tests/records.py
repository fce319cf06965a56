"""Result records for tests, with everything that does not matter filled in."""

from typing import Any

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
