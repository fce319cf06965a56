"""The runner: order, turns, repeats, errors in place, and going on after an interruption."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import header

from hothead.bench.compare import Comparison, check_methods, decoder_makers, ids_digest, prompt_ids, sampling_params
from hothead.bench.log import ResultLog
from hothead.bench.order import shuffled
from hothead.bench.prompts import Prompt
from hothead.bench.schema import METHODS, Answer, Failure, read_results
from hothead.dynamic import DynamicConfig
from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.engine.tree import DraftShape
from hothead.errors import InputError
from hothead.models.target import Target
from hothead.models.toy import toy_standalone, toy_target
from hothead.tokenizer import chat_ids
from hothead.vocab import DraftVocab

PROMPTS = (Prompt("1", "mt_bench", ("Hello.", "Again.")), Prompt("2", "qa", ("Who?",)), Prompt("3", "qa", ("Why?",)))
TOO_LONG = Prompt("4", "qa", ("x" * 400, "never asked"))


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target()


class Setup:
    """A comparison on toy models, and a record of which method answered when."""

    def __init__(
        self,
        target: Target,
        prompts: Sequence[Prompt] = PROMPTS,
        methods: tuple[str, ...] = METHODS,
        path: Path | None = None,
        repeats: int = 1,
        **settings: Any,
    ) -> None:
        head = header(methods, repeats, **{"max_new_tokens": 20, **settings})
        ids = np.random.default_rng(1).permutation(320)
        vocab = DraftVocab(np.sort(ids[:192]), 320, target.tokenizer_fingerprint, ids[192:220])
        makers = decoder_makers(
            methods, target, toy_standalone(target), vocab, DynamicConfig(16), np.arange(320), shape=DraftShape(4)
        )
        self.made: dict[str, list[SpeculativeDecoder]] = {name: [] for name in methods}
        self.order: list[str] = []
        self.target = target
        self.log = ResultLog(head, path)
        watched = {name: self._watch(name, make) for name, make in makers.items()}
        self.comparison = Comparison(target, watched, prompts, head.settings, self.log)

    def _watch(self, name: str, make: Any) -> Any:
        def watched() -> SpeculativeDecoder:
            decoder = make()
            stream = decoder.stream
            decoder.stream = lambda *arguments: (self.order.append(name), stream(*arguments))[1]
            self.made[name].append(decoder)
            return decoder

        return watched

    def run(self) -> list[Any]:
        return list(self.comparison.run())


def test_every_method_answers_every_turn_with_plain_decodings_text(target: Target) -> None:
    setup = Setup(target, repeats=2)
    blocks = setup.run()
    assert len(blocks) == setup.comparison.num_blocks == 8
    answers = setup.log.results.answers
    assert len(answers) == 8 * len(METHODS)
    assert not setup.log.results.failures
    for answer in answers:
        assert answer.equality == ("reference" if (answer.method, answer.repeat) == ("plain", 0) else "equal")
        assert (answer.target_ids is not None) == (answer.equality == "reference")
    digests = {(a.prompt_id, a.turn): set() for a in answers}
    for answer in answers:
        digests[answer.prompt_id, answer.turn].add(answer.ids_digest)
    assert all(len(found) == 1 for found in digests.values())
    assert len(set.union(*digests.values())) == 4  # ... and different prompts have different answers


def test_what_is_recorded_is_what_the_engine_says(target: Target) -> None:
    setup = Setup(target, methods=("plain", "full"))
    setup.run()
    ids = prompt_ids(target, PROMPTS[1])
    expected = SpeculativeDecoder(target, toy_standalone(target), shape=DraftShape(4)).generate(
        ids, SamplingParams(max_new_tokens=20)
    )
    plain, full = setup.log.blocks["2", 0, 0]
    assert isinstance(plain, Answer) and isinstance(full, Answer)
    assert plain.target_ids == tuple(expected.target_ids)
    assert plain.text == expected.text
    assert full.ids_digest == ids_digest(expected.target_ids)
    stats = expected.stats
    assert (full.prompt_tokens, full.new_tokens, full.rounds) == (len(ids), stats.new_tokens, stats.rounds)
    assert full.decode_s > 0 and full.prefill_s > 0
    assert sum(full.sections_s.values()) == pytest.approx(full.decode_s)
    assert plain.rounds == plain.decoded_tokens == plain.new_tokens - 1


def test_the_second_turn_follows_plain_decodings_first_answer(target: Target) -> None:
    setup = Setup(target, PROMPTS[:1], methods=("plain", "full"))
    setup.run()
    first, second = (setup.log.blocks["1", turn, 0][0] for turn in (0, 1))
    assert isinstance(first, Answer) and isinstance(second, Answer)
    messages = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "Again."},
    ]
    assert second.prompt_tokens == len(chat_ids(target.tokenizer, messages))


def test_the_order_is_drawn_for_every_block(target: Target) -> None:
    methods = ("plain", "full", "static")
    setup = Setup(target, PROMPTS, methods=methods, repeats=2)
    setup.run()
    order = setup.order[len(methods) :]  # the warm-up
    blocks = [order[at : at + 3] for at in range(0, len(order), 3)]
    assert blocks == [shuffled(methods, 0, *block) for block in setup.log.blocks]
    assert len({block[0] for block in blocks}) > 1


def test_a_decoder_is_awake_from_before_it_is_asked_until_its_result_is_read(target: Target) -> None:
    happened: list[str] = []

    class Sleeping:
        """Plain decoding that writes down when it was awake."""

        def __init__(self) -> None:
            self._decoder = SpeculativeDecoder(target)

        def stream(self, prompt: Any, params: SamplingParams | None = None) -> Any:
            happened.append("asked")
            stream = self._decoder.stream(prompt, params)

            class Watched:
                def __iter__(self) -> Any:
                    return iter(stream)

                @property
                def result(self) -> Any:
                    happened.append("read")
                    return stream.result

            return Watched()

        @contextmanager
        def awake(self) -> Iterator[None]:
            happened.append("wakes")
            yield
            happened.append("sleeps")

    setup = Setup(target, PROMPTS[1:], methods=("plain",))
    setup.comparison._makers = {"plain": Sleeping}
    setup.run()
    assert happened == ["wakes", "asked", "sleeps"] + 2 * ["wakes", "asked", "read", "sleeps"]


def test_what_a_method_learns_in_the_warm_up_is_forgotten(target: Target) -> None:
    setup = Setup(target, methods=("plain", "dynamic"))
    setup.run()
    assert [len(made) for made in setup.made.values()] == [2, 2]
    measured = setup.made["dynamic"][1]
    copied = sum(a.rows_copied for a in setup.log.results.answers if a.method == "dynamic")
    assert measured.hot is not None
    assert measured.hot.rows_copied == copied > 0


def test_a_prompt_that_does_not_fit_is_an_error_in_its_place(target: Target) -> None:
    setup = Setup(target, (TOO_LONG, PROMPTS[1]), methods=("plain", "full"))
    setup.run()
    failures = setup.log.results.failures
    assert [(f.turn, f.method) for f in failures] == [(0, "plain"), (0, "full"), (1, "plain"), (1, "full")]
    assert failures[0].error.startswith("ContextOverflow: the prompt has")
    assert failures[2].error == "turn 1 has no answer to go on from"
    assert [answer.prompt_id for answer in setup.log.results.answers] == ["2", "2"]


def test_one_method_that_fails_leaves_the_others_their_answers(target: Target) -> None:
    setup = Setup(target, PROMPTS[1:], methods=("plain", "full", "static"))
    watched = setup.comparison._makers["full"]

    def broken() -> SpeculativeDecoder:
        decoder = watched()

        def stream(*arguments: Any) -> Any:
            raise RuntimeError("out of memory")

        decoder.stream = stream  # type: ignore[method-assign]
        return decoder

    setup.comparison._makers = {**setup.comparison._makers, "full": broken}
    setup.comparison._warm_up = lambda: None  # type: ignore[method-assign]
    setup.run()
    outcomes = setup.log.blocks["2", 0, 0]
    assert [type(outcome) for outcome in outcomes] == [Answer, Failure, Answer]
    assert outcomes[1].error == "RuntimeError: out of memory"  # type: ignore[union-attr]


def test_a_wrong_text_is_found(target: Target) -> None:
    setup = Setup(target, PROMPTS[1:2], methods=("plain", "full"))
    watched = setup.comparison._makers["full"]

    def liar() -> SpeculativeDecoder:
        decoder = watched()
        stream = decoder.stream
        decoder.stream = lambda ids, params: stream([*ids, 65], params)  # type: ignore[method-assign]
        return decoder

    setup.comparison._makers = {**setup.comparison._makers, "full": liar}
    setup.run()
    full = setup.log.blocks["2", 0, 0][1]
    assert isinstance(full, Answer)
    assert full.equality == "different"
    assert full.difference is not None
    assert full.target_ids is not None and full.text is not None


def test_an_interrupted_run_goes_on_where_it_ended(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = Setup(target, path=path, methods=("plain", "full"))
    run = first.comparison.run()
    next(run)  # turn 1 of prompt 1 is done
    run.close()
    assert list(read_results(path).blocks) == [("1", 0, 0)]
    second = Setup(target, path=path, methods=("plain", "full"))
    assert [(block.prompt.id, block.turn) for block in second.run()] == [("1", 1), ("2", 0), ("3", 0)]
    whole = Setup(target, methods=("plain", "full"))
    whole.run()
    found = read_results(path)
    assert len(found.sessions) == 2
    same = lambda answers: [(a.prompt_id, a.turn, a.method, a.ids_digest, a.equality) for a in answers]  # noqa: E731
    assert same(found.answers) == same(whole.log.results.answers)
    third = Setup(target, path=path, methods=("plain", "full"))
    assert third.run() == []
    assert third.order == []  # nothing is warmed up for nothing


def test_sampled_texts_are_not_compared_and_repeats_differ(target: Target) -> None:
    setup = Setup(target, PROMPTS[1:2], methods=("plain", "full"), repeats=2, temperature=1.0)
    setup.run()
    answers = setup.log.results.answers
    assert [a.equality for a in answers] == ["reference", "sampled", "sampled", "sampled"]
    plain = [a.ids_digest for a in answers if a.method == "plain"]
    assert plain[0] != plain[1]


def test_a_model_without_a_template_is_given_text(target: Target) -> None:
    tokenizer = target.tokenizer
    template, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        found = prompt_ids(target, PROMPTS[0], ["So."])
    finally:
        tokenizer.chat_template = template
    assert found == list(tokenizer("Hello.\nSo.\nAgain.")["input_ids"])
    assert prompt_ids(target, PROMPTS[1], raw=True) == list(tokenizer("Who?")["input_ids"])


@pytest.mark.parametrize(
    ("names", "has", "said"),
    [
        (("plain", "turbo"), (True, True, True), "no method is called 'turbo'"),
        (("plain", "full", "full"), (True, True, True), "named twice"),
        (("full",), (True, True, True), "plain must be among the methods"),
        (("plain", "full"), (False, False, False), "full needs a draft"),
        (("static", "plain"), (True, False, False), "static needs a draft vocabulary"),
        (("plain", "full_refresh"), (True, True, False), "full_refresh recounts from a ranking"),
    ],
)
def test_methods_that_cannot_run_are_refused(names: tuple[str, ...], has: tuple[bool, bool, bool], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_methods(names, *has)


def test_settings_reach_the_engine() -> None:
    params = sampling_params(header(seed=7, temperature=0.5, top_k=3).settings, repeat=2)
    assert (params.seed, params.temperature, params.top_k, params.max_new_tokens) == (9, 0.5, 3, 64)
