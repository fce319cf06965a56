"""transformers' generate beside our engine, on toy models: the same greedy text, counted the same way."""

from pathlib import Path

import pytest
from records import header

from hothead.bench.compare import Comparison, decoder_makers
from hothead.bench.log import ResultLog
from hothead.bench.peers.base import Peers, Setup
from hothead.bench.prompts import Prompt
from hothead.bench.schema import ASSISTED, LOOKUP, TRANSFORMERS, VLLM_DRAFT, Answer, Failure
from hothead.bench.summary import WHOLE_ANSWER, summarize
from hothead.dynamic import DynamicConfig
from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.engine.tree import DraftShape
from hothead.errors import HotheadError
from hothead.models.loading import load_draft, load_target
from hothead.models.toy import save_toy_eagle, save_toy_target

IN_PROCESS = (TRANSFORMERS, ASSISTED, LOOKUP)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = tmp_path_factory.mktemp("peers")
    spec = str(save_toy_target(folder / "target"))
    draft_spec = str(save_toy_target(folder / "draft"))  # the same weights: always right
    target = load_target(spec, "float32")
    return Setup(target, spec, load_draft(draft_spec, target), draft_spec, "float32", threads=1, logs=folder / "logs")


@pytest.mark.parametrize("name", IN_PROCESS)
@pytest.mark.parametrize("text", ["Hello.", "abcabcabcabcabc"])
def test_the_text_is_our_engines_and_the_passes_are_counted(setup: Setup, name: str, text: str) -> None:
    ids = list(setup.target.tokenizer(text)["input_ids"])
    params = SamplingParams(max_new_tokens=40)
    plain = SpeculativeDecoder(setup.target).generate(ids, params)
    with Peers((name,), setup).open() as makers:
        result = makers[name]().stream(ids, params).result
    assert result.target_ids == plain.target_ids
    assert result.finish_reason == plain.finish_reason
    assert result.text.startswith(plain.text[:-1])  # ours holds back bytes that are no character yet
    stats = result.stats
    assert (stats.prompt_tokens, stats.new_tokens) == (len(ids), len(plain.target_ids))
    assert stats.prefill_s > 0 and stats.decode_s > 0
    if name == TRANSFORMERS:
        assert stats.rounds == stats.new_tokens - 1
    elif name == ASSISTED:  # its draft is the target itself
        assert stats.rounds < stats.new_tokens / 2
    else:
        assert 0 < stats.rounds <= stats.new_tokens


def test_an_answer_goes_on_past_its_end_when_asked_to(setup: Setup) -> None:
    ends = [
        ids
        for text in "abcdefgh"
        if SpeculativeDecoder(setup.target)
        .generate(ids := setup.target.tokenizer(text)["input_ids"], SamplingParams(max_new_tokens=100))
        .finish_reason
        == "stop"
    ]
    if not ends:
        pytest.skip("no toy answer ends by itself")
    with Peers((TRANSFORMERS,), setup).open() as makers:
        decoder = makers[TRANSFORMERS]()
        stopped = decoder.stream(ends[0], SamplingParams(max_new_tokens=100)).result
        whole = decoder.stream(ends[0], SamplingParams(max_new_tokens=100, ignore_eos=True)).result
    assert stopped.finish_reason == "stop" and stopped.target_ids[-1] in setup.target.end_target_ids
    assert len(whole.target_ids) == 100 and whole.target_ids[: len(stopped.target_ids)] == stopped.target_ids


def test_assisted_generation_needs_a_standalone_draft(setup: Setup, tmp_path: Path) -> None:
    eagle = str(save_toy_eagle(tmp_path / "eagle"))
    with_eagle = Setup(setup.target, setup.target_spec, load_draft(eagle, setup.target), eagle, "float32", 1)
    for other in (with_eagle, Setup(setup.target, setup.target_spec, None, None, "float32", 1)):
        peers = Peers((ASSISTED, LOOKUP), other)
        assert peers.words[ASSISTED] == ("?",) and peers.words[LOOKUP] == ("generate", "prompt_lookup_num_tokens=10")
        with peers.open() as makers, pytest.raises(HotheadError, match="needs a standalone draft"):
            makers[ASSISTED]().stream([1, 2], SamplingParams())


def test_a_run_with_peers_records_them_and_their_errors(setup: Setup) -> None:
    methods = ("plain", "full", *IN_PROCESS, VLLM_DRAFT)
    broken = Setup(
        setup.target, setup.target_spec, setup.draft, setup.draft_spec, "float32", 1, vllm_python=Path("/no/python")
    )
    head = header(methods, max_new_tokens=20)
    own = decoder_makers(("plain", "full"), setup.target, setup.draft, None, DynamicConfig(0), None, DraftShape(4))
    log = ResultLog(head)
    prompts = (Prompt("1", "qa", ("Who?", "And why?")), Prompt("2", "qa", ("How?",)))
    with Peers(methods[2:], broken).open() as makers:
        blocks = list(Comparison(setup.target, {**own, **makers}, prompts, head.settings, log).run())
    assert len(blocks) == 3
    for block in blocks:
        by_method = {outcome.method: outcome for outcome in block.outcomes}
        failed = by_method.pop(VLLM_DRAFT)
        assert isinstance(failed, Failure) and "--vllm-python /no/python: cannot be run" in failed.error
        answers = [outcome for outcome in by_method.values() if isinstance(outcome, Answer)]
        assert len(answers) == 5
        assert len({answer.ids_digest for answer in answers}) == 1
        assert len({answer.prompt_tokens for answer in answers}) == 1
        for answer in answers:
            assert answer.equality == ("reference" if answer.method == "plain" else "equal")
            assert answer.answer_s is not None
            assert answer.answer_s >= 0.9 * (answer.prefill_s + answer.decode_s) > 0
    overall = summarize(log.results, WHOLE_ANSWER)[-1]
    assert [method.method for method in overall.methods] == list(methods[:-1])
    for method in overall.methods[1:]:
        assert method.times_plain is not None and method.times_plain.value > 0
        assert method.same_text == 1
