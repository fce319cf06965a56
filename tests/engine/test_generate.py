"""The loop on toy models: the same text whatever drafts, and everything that ends an answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hothead.dynamic import DynamicConfig
from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.engine.tree import DraftShape
from hothead.errors import ContextOverflow, InputError, TokenizerMismatch
from hothead.models.draft import Draft
from hothead.models.target import Target
from hothead.models.toy import toy_causal_lm, toy_eagle, toy_standalone, toy_target
from hothead.vocab import DraftVocab

PROMPT = [5, 9, 200, 31, 77, 64, 3, 90]
LONG = SamplingParams(max_new_tokens=60, ignore_eos=True)


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target()


@pytest.fixture(scope="module", params=["eagle", "standalone"])
def draft(request: pytest.FixtureRequest, target: Target) -> Draft:
    return toy_eagle(target) if request.param == "eagle" else toy_standalone(target)


def hot_vocab(target: Target, rows: int = 128) -> DraftVocab:
    ids = np.random.default_rng(1).permutation(320)
    return DraftVocab(np.sort(ids[:rows]), 320, target.tokenizer_fingerprint, next_target_ids=ids[rows : rows + 40])


def dynamics() -> dict[str, DynamicConfig | None]:
    return {
        "static": None,
        "dynamic": DynamicConfig(16, "on_miss+prompt"),
        "target_topk": DynamicConfig(16, "on_miss+target_topk:4"),
        "full_refresh": DynamicConfig(0, "full_refresh", np.arange(320)),
    }


def test_plain_decoding_is_transformers_own_greedy_text(target: Target) -> None:
    model = toy_causal_lm().eval()
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=60, do_sample=False, eos_token_id=None)
    found = SpeculativeDecoder(target).generate(PROMPT, LONG)
    assert found.target_ids == expected[0, len(PROMPT) :].tolist()
    assert found.stats.acceptance_length == 1
    assert found.stats.rounds == 59


SHAPES = [
    (1,),
    (4,),
    (7,),
    (4, 2),
    (3, 4, 12),
    (6, 8, 32),
    (6, 1, None, 0.1),
    (4, 3, 12, 0.05),
    (6, 1, None, 0.1, 0.05),
    (4, 3, 12, 0.05, 0.1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("method", ["full", *dynamics()])
def test_greedy_text_is_plain_text(target: Target, draft: Draft, method: str, shape: tuple) -> None:
    vocab = None if method == "full" else hot_vocab(target)
    decoder = SpeculativeDecoder(target, draft, vocab, dynamics().get(method), DraftShape(*shape))
    plain = SpeculativeDecoder(target)
    lengths = []
    for prompt in (PROMPT, PROMPT[::-1], [1]):  # the dynamic state goes on from prompt to prompt
        found, expected = decoder.generate(prompt, LONG), plain.generate(prompt, LONG)
        assert found.target_ids == expected.target_ids
        assert found.text == expected.text
        lengths.append(found.stats.acceptance_length)
    if draft.name == "causal_lm":
        assert max(lengths) > 1.1, "nothing is accepted: this test would prove little"


def test_a_wider_tree_is_accepted_more(target: Target) -> None:
    draft = toy_standalone(target, noise=0.15)
    lengths = [
        SpeculativeDecoder(target, draft, shape=DraftShape(3, *shape)).generate(PROMPT, LONG).stats.acceptance_length
        for shape in ((), (2, 8), (4, 24))
    ]
    assert lengths[0] < lengths[1] < lengths[2]


@pytest.mark.parametrize(("shape", "shortest"), [((4,), (1,)), ((4, 2, 7), (1, 2, 3))], ids=str)
def test_an_unsure_draft_stops(target: Target, shape: tuple, shortest: tuple) -> None:
    """Rounds between those of one level, for a draft that is never sure enough, and those of all levels."""
    draft = toy_standalone(target, noise=0.02)

    def rounds(shape: DraftShape) -> int:
        return SpeculativeDecoder(target, draft, shape=shape).generate(PROMPT, LONG).stats.rounds

    fixed = DraftShape(*shape)
    assert rounds(replace(fixed, p_min=1.0)) == rounds(DraftShape(*shortest))
    assert rounds(replace(fixed, p_min=1e-9)) == rounds(fixed)
    assert rounds(fixed) < rounds(replace(fixed, p_min=0.3)) < rounds(DraftShape(*shortest))


@pytest.mark.parametrize("shape", [(4,), (4, 2, 7)], ids=str)
def test_unlikely_tokens_are_not_verified(target: Target, shape: tuple) -> None:
    draft, fixed, widths = toy_standalone(target, noise=0.02), DraftShape(*shape), {}
    for least in (0.0, 1e-9, 0.3, 1.0):
        decoder = SpeculativeDecoder(target, draft, shape=replace(fixed, verify_p_min=least))
        widths[least] = verified(decoder)
    assert widths[0.0] == widths[1e-9] == {fixed.width}
    assert widths[1.0] == {2}  # the last committed token and the likeliest one
    assert min(widths[0.3]) == 2 < max(widths[0.3]) <= fixed.width
    assert len(widths[0.3]) > 2


def verified(decoder: SpeculativeDecoder) -> set[int]:
    """How many tokens the target's passes took, the prompt's and the last rounds apart (which may be cut short)."""
    counts: list[int] = []
    forward = decoder.target.forward

    def counted(target_ids, *arguments, **keywords):  # type: ignore[no-untyped-def]
        counts.append(len(target_ids))
        return forward(target_ids, *arguments, **keywords)

    decoder.target.forward = counted  # type: ignore[method-assign]
    try:
        decoder.generate(PROMPT, LONG)
    finally:
        del decoder.target.forward
    return set(counts[1:])


def test_the_draft_never_proposes_what_is_not_hot(target: Target) -> None:
    vocab = hot_vocab(target, rows=64)
    draft = toy_standalone(target, noise=0.0)  # agrees with the target whenever it may
    decoder = SpeculativeDecoder(target, draft, vocab)
    result = decoder.generate(PROMPT, LONG)
    assert result.stats.misses > 0
    full = SpeculativeDecoder(target, draft).generate(PROMPT, LONG)
    assert full.stats.misses == 0
    assert full.stats.acceptance_length > 4.5  # k + 1 each round, but for the last
    assert result.stats.acceptance_length < full.stats.acceptance_length


def test_dynamic_slots_win_back_misses(target: Target) -> None:
    draft = toy_standalone(target, noise=0.0)
    vocab = DraftVocab(np.arange(64), 320, target.tokenizer_fingerprint)
    static = SpeculativeDecoder(target, draft, vocab)
    dynamic = SpeculativeDecoder(target, draft, vocab, DynamicConfig(64))
    for _ in range(2):
        s, d = static.generate(PROMPT, LONG).stats, dynamic.generate(PROMPT, LONG).stats
    assert d.misses < s.misses
    assert d.acceptance_length > s.acceptance_length


def test_stats_add_up(target: Target, draft: Draft) -> None:
    stats = SpeculativeDecoder(target, draft, hot_vocab(target), DynamicConfig(8)).generate(PROMPT, LONG).stats
    assert stats.prompt_tokens == len(PROMPT)
    assert stats.new_tokens == 60
    assert sum(stats.sections_s.values()) == pytest.approx(stats.decode_s, rel=0.01)
    assert all(seconds > 0 for seconds in stats.sections_s.values())


def test_streaming_gives_the_text_in_pieces(target: Target, draft: Draft) -> None:
    decoder = SpeculativeDecoder(target, draft)
    stream = decoder.stream([{"role": "user", "content": "hi"}], LONG)
    chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == stream.result.text
    assert [i for chunk in chunks for i in chunk.target_ids] == stream.result.target_ids
    assert len(chunks) == stream.result.stats.rounds + 1


def test_an_end_token_ends_the_answer(target: Target, draft: Draft) -> None:
    ids = SpeculativeDecoder(target).generate(PROMPT, LONG).target_ids
    target.model.generation_config.eos_token_id = ids[20]
    try:
        for decoder in (SpeculativeDecoder(target), SpeculativeDecoder(target, draft)):
            result = decoder.generate(PROMPT, SamplingParams(max_new_tokens=60))
            assert result.finish_reason == "stop"
            assert result.target_ids == ids[: ids.index(ids[20]) + 1]
    finally:
        target.model.generation_config.eos_token_id = None


def test_stop_strings_end_the_text_before_them(target: Target, draft: Draft) -> None:
    text = SpeculativeDecoder(target).generate(PROMPT, LONG).text
    stop = text[10:13]
    params = SamplingParams(max_new_tokens=60, ignore_eos=True, stop=("never there", stop))
    for decoder in (SpeculativeDecoder(target), SpeculativeDecoder(target, draft)):
        result = decoder.generate(PROMPT, params)
        assert result.text == text[: text.index(stop)]
        assert result.finish_reason == "stop"


def test_the_context_is_a_wall(target: Target, draft: Draft) -> None:
    prompt = [7] * 240  # of 256
    params = SamplingParams(max_new_tokens=100, ignore_eos=True)
    expected = SpeculativeDecoder(target).generate(prompt, params)
    assert len(expected.target_ids) == 16
    assert expected.finish_reason == "context"
    found = SpeculativeDecoder(target, draft, shape=DraftShape(7)).generate(prompt, params)
    assert found.target_ids == expected.target_ids
    with pytest.raises(ContextOverflow, match="256 tokens"):
        SpeculativeDecoder(target).generate([7] * 256)


@pytest.mark.parametrize("prompt", [[], "", [320], [-1]])
def test_prompts_that_cannot_be_read(target: Target, prompt: list) -> None:
    with pytest.raises(InputError):
        SpeculativeDecoder(target).generate(prompt)


def test_wrong_parts_are_refused(target: Target, draft: Draft) -> None:
    with pytest.raises(InputError, match="needs a draft"):
        SpeculativeDecoder(target, vocab=hot_vocab(target))
    with pytest.raises(TokenizerMismatch):
        SpeculativeDecoder(target, draft, DraftVocab(np.arange(64), 320, "another"))
    with pytest.raises(TokenizerMismatch):
        SpeculativeDecoder(target, draft, DraftVocab(np.arange(64), 300))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"max_new_tokens": 0},
        {"draft_sampling": "eager"},
        {"stop": ("",)},
    ],
)
def test_sampling_params_are_checked(wrong: dict) -> None:
    with pytest.raises(InputError):
        SamplingParams(**wrong)


def test_seeds_repeat_a_sampled_text(target: Target, draft: Draft) -> None:
    decoder = SpeculativeDecoder(target, draft, hot_vocab(target))
    params = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, seed=3, max_new_tokens=30, ignore_eos=True)
    assert decoder.generate(PROMPT, params).target_ids == decoder.generate(PROMPT, params).target_ids
