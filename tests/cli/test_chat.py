"""``hothead chat`` with lines from a pipe: turns, commands, an interrupted answer."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Outcome, ToyFiles

from hothead import SpeculativeDecoder
from hothead.engine.generate import GenerationStream

Chat = Callable[..., Outcome]


@pytest.fixture
def chat(run_cli: Chat, toy_files: ToyFiles, monkeypatch: pytest.MonkeyPatch) -> Chat:
    def run(lines: str, *options: str) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return run_cli("chat", *toy_files.engine_options, "-n", "8", *options)

    return run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The prompts that the decoder is given."""
    prompts: list[list[int]] = []
    stream = SpeculativeDecoder.stream

    def watched(self: SpeculativeDecoder, prompt: Any, params: Any = None) -> GenerationStream:
        prompts.append(list(prompt))
        return stream(self, prompt, params)

    monkeypatch.setattr(SpeculativeDecoder, "stream", watched)
    return prompts


def test_an_answer_a_line_with_its_speed(chat: Chat, run_cli: Chat, toy_files: ToyFiles) -> None:
    outcome = chat("Hi.\n\nAnd?\n")
    assert outcome.status == 0
    single = run_cli("generate", *toy_files.engine_options, "-n", "8", "Hi.", "--json")
    assert outcome.out.startswith(json.loads(single.out)["answers"][0]["text"] + "\n")
    stats = outcome.err.splitlines()
    assert len(stats) == 2  # an empty line asks nothing
    assert all("tokens/s, acceptance length" in line for line in stats)


def test_json_is_one_document_of_all_answers(chat: Chat) -> None:
    outcome = chat("Hi.\n/reset\nAnd?\n", "--json")
    answers = json.loads(outcome.out)["answers"]
    assert [answer["prompt"] for answer in answers] == ["Hi.", "And?"]
    assert all(answer["target_ids"] and answer["stats"]["prefill_s"] > 0 for answer in answers)


def test_each_turn_sees_those_before_it_until_reset(chat: Chat, asked: list[list[int]]) -> None:
    chat("Hi.\nAnd?\n/reset\nHi.\n")
    first, second, again = asked
    assert second[: len(first)] == first
    assert len(second) > len(first)
    assert again == first


def test_quit_leaves_and_unknown_commands_are_said(chat: Chat, asked: list[list[int]]) -> None:
    outcome = chat("/help me\n/quit\nHi.\n")
    assert outcome.status == 0
    assert asked == []
    assert "no command /help" in outcome.err
    assert outcome.out == ""


def test_a_system_prompt_comes_first_even_after_reset(chat: Chat, asked: list[list[int]], toy_files: ToyFiles) -> None:
    from hothead import load_tokenizer

    chat("Hi.\n/reset\nHo.\n", "--system", "Be brief.")
    tokenizer = load_tokenizer(toy_files.target)
    for prompt, line in zip(asked, ("Hi.", "Ho."), strict=True):
        text = tokenizer.decode(prompt)
        assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>")
        assert line in text


def test_an_interrupted_answer_stays_in_the_conversation(
    chat: Chat, asked: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = GenerationStream.__iter__
    interrupts = [True, False]

    def interrupted_once(self: GenerationStream) -> Iterator[Any]:
        for number, chunk in enumerate(rounds(self)):
            yield chunk
            if number == 2 and interrupts.pop(0):
                raise KeyboardInterrupt

    monkeypatch.setattr(GenerationStream, "__iter__", interrupted_once)
    outcome = chat("Hi.\nGo on.\n")
    assert outcome.status == 0
    assert "[stopped]" in outcome.err
    first_lines = outcome.err.splitlines()
    assert first_lines[0] == "[stopped]"
    assert "tokens/s" in first_lines[1]
    assert asked[1][: len(asked[0])] == asked[0]
    assert len(asked[1]) > len(asked[0]) + len("Go on.")  # what was said before the interruption


def test_a_conversation_that_no_longer_fits_goes_on_after_reset(chat: Chat) -> None:
    outcome = chat(f"{'x' * 300}\n/reset\nHi.\n")
    assert outcome.status == 0
    assert "/reset starts over]" in outcome.err
    assert "tokens/s" in outcome.err


def test_an_interruption_between_answers_is_status_130(
    run_cli: Chat, toy_files: ToyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(io.StringIO):
        def __next__(self) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert run_cli("chat", *toy_files.engine_options).status == 130
