"""``hothead generate``: the engine's text, streamed or as JSON, and clear failures."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome, ToyFiles

from hothead import SamplingParams, SpeculativeDecoder, TokenRanking, load_draft, load_target
from hothead.tokenizer import chat_ids

Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def expected(toy_files: ToyFiles) -> dict[str, list[int]]:
    """Plain decoding's answers, straight from the engine."""
    target = load_target(toy_files.target, "float32")
    decoder = SpeculativeDecoder(target)
    params = SamplingParams(max_new_tokens=20)
    asked = {"chat": chat_ids(target.tokenizer, [{"role": "user", "content": "Hi."}]), "raw": "Hi."}
    return {name: decoder.generate(prompt, params).target_ids for name, prompt in asked.items()}


def test_json_has_text_ids_and_stats(run_cli: Run, toy_files: ToyFiles, expected: dict[str, list[int]]) -> None:
    outcome = run_cli("generate", *toy_files.engine_options, "-n", "20", "Hi.", "--json")
    assert outcome.status == 0, outcome.err
    (answer,) = json.loads(outcome.out)["answers"]
    assert answer["target_ids"] == expected["chat"]
    assert answer["prompt"] == "Hi."
    assert answer["finish_reason"] in ("length", "stop")
    assert answer["stats"]["new_tokens"] == len(answer["target_ids"])
    assert answer["stats"]["rounds"] > 0
    tokenizer = load_target(toy_files.target, "float32").tokenizer
    whole = tokenizer.decode(answer["target_ids"], skip_special_tokens=True)
    assert answer["text"].rstrip("\ufffd") == whole.rstrip("\ufffd")  # half a character at the end is not text


def test_ids_that_the_ranking_never_saw_are_told(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> None:
    seen = TokenRanking.load(toy_files.ranking)
    counts = seen.counts * (seen.counts > 1)  # the letters of a few texts
    TokenRanking(counts, seen.tokenizer_fingerprint).save(tmp_path / "few.safetensors")
    options = [str(tmp_path / "few.safetensors") if o == toy_files.ranking else o for o in toy_files.engine_options]
    outcome = run_cli("generate", *options, "-n", "4", "Hi.")
    unseen = 192 - int((counts > 0).sum())
    assert unseen > 0
    assert f"fewer than 192 ids; {unseen} of the draft vocabulary were filled in by id" in outcome.err


def test_text_streams_to_stdout_and_stats_to_stderr(run_cli: Run, toy_files: ToyFiles) -> None:
    as_json = run_cli("generate", *toy_files.engine_options, "-n", "20", "Hi.", "--json")
    outcome = run_cli("generate", *toy_files.engine_options, "-n", "20", "Hi.")
    assert outcome.out == json.loads(as_json.out)["answers"][0]["text"] + "\n"
    assert "20 tokens (length)" in outcome.err
    assert "acceptance length" in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_standard_input_and_raw_text(
    run_cli: Run, toy_files: ToyFiles, expected: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi."))
    outcome = run_cli("generate", *toy_files.engine_options, "-n", "20", "-", "--raw", "--json")
    assert json.loads(outcome.out)["answers"][0]["target_ids"] == expected["raw"]
    assert expected["raw"] != expected["chat"]


def test_a_file_of_prompts_has_all_turns_answered(run_cli: Run, toy_files: ToyFiles) -> None:
    outcome = run_cli("generate", *toy_files.engine_options, "-n", "5", "--prompts", toy_files.prompts, "--json")
    answers = json.loads(outcome.out)["answers"]
    assert [(a["prompt_id"], a["prompt"]) for a in answers] == [
        ("1", "Hello there."),
        ("1", "And once more?"),
        ("2", "Who?"),
        ("3", "Why, oh why?"),
    ]
    assert answers[1]["stats"]["prompt_tokens"] > answers[0]["stats"]["prompt_tokens"] + len("And once more?")


def test_plain_decoding_needs_no_draft(run_cli: Run, toy_files: ToyFiles, expected: dict[str, list[int]]) -> None:
    outcome = run_cli("generate", "--target", toy_files.target, "--dtype", "float32", "-n", "20", "Hi.", "--json")
    answer = json.loads(outcome.out)["answers"][0]
    assert answer["target_ids"] == expected["chat"]
    assert answer["stats"]["acceptance_length"] == 1


def test_one_token_has_no_speed(run_cli: Run, toy_files: ToyFiles) -> None:
    outcome = run_cli("generate", *toy_files.engine_options, "-n", "1", "Hi.", "--json")
    stats = json.loads(outcome.out)["answers"][0]["stats"]
    assert (stats["acceptance_length"], stats["tokens_per_s"]) == (None, None)


def test_sampling_options_reach_the_engine(run_cli: Run, toy_files: ToyFiles) -> None:
    def ids(*options: str) -> list[int]:
        outcome = run_cli("generate", *toy_files.engine_options, "-n", "20", "Hi.", "--json", *options)
        return json.loads(outcome.out)["answers"][0]["target_ids"]

    hot = ids("--temperature", "1", "--seed", "3")
    assert hot == ids("--temperature", "1", "--seed", "3")
    assert hot != ids("--temperature", "1", "--seed", "4")
    assert ids("--temperature", "1", "--seed", "3", "--top-k", "1") == ids()


def test_a_stop_text_ends_the_answer(run_cli: Run, toy_files: ToyFiles) -> None:
    def answer(*options: str) -> dict:
        outcome = run_cli("generate", *toy_files.engine_options, "-n", "20", "--raw", "Hello", "--json", *options)
        return json.loads(outcome.out)["answers"][0]

    text = answer()["text"]
    stop = next(c for c in text[3:] if c.isascii())
    stopped = answer("--stop", stop)
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == text[: text.index(stop)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a prompt (- for standard input) or --prompts FILE"),
        (["Hi.", "--prompts", "x"], "give a prompt (- for standard input) or --prompts FILE"),
        (["   "], "the prompt is empty"),
        (["--prompts", "missing.jsonl"], "missing.jsonl: no such file"),
        (["Hi.", "--temperature", "-1"], "temperature must be 0"),
        (["Hi.", "-n", "0"], "max_new_tokens must be at least 1"),
        (["Hi.", "--stop", ""], "an empty stop string"),
        (["x" * 400], "tokens and the target's context is 256"),
        (["Hi.", "--size", "many"], "--size"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run_cli: Run, toy_files: ToyFiles, arguments: list[str], said: str) -> None:
    outcome = run_cli("generate", *toy_files.engine_options, *arguments)
    assert outcome.status == 2
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert outcome.out == ""


def test_an_interruption_is_status_130(run_cli: Run, toy_files: ToyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SpeculativeDecoder, "stream", interrupted)
    assert run_cli("generate", *toy_files.engine_options, "Hi.").status == 130


def test_a_standalone_draft_of_another_tokenizer_is_refused(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> None:
    from hothead.models.toy import toy_causal_lm, toy_tokenizer

    toy_causal_lm().save_pretrained(tmp_path)
    toy_tokenizer(words=300).save_pretrained(tmp_path)
    outcome = run_cli("generate", "--target", toy_files.target, "--draft", str(tmp_path), "--dtype", "float32", "Hi.")
    assert outcome.status == 2
    assert "a standalone draft must use the same one" in outcome.err


def test_the_toy_draft_is_loadable_on_its_own(toy_files: ToyFiles) -> None:
    target = load_target(toy_files.target, "float32")
    assert load_draft(toy_files.draft, target).name == "eagle"


def test_a_profile_is_a_trace_and_a_table(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> None:
    options = [*toy_files.engine_options, "--engine-mode", "eager", "-n", "20", "--profile", str(tmp_path / "t.json")]
    outcome = run_cli("generate", *options, "Hi.")
    assert outcome.status == 0, outcome.err
    assert outcome.out == run_cli("generate", *toy_files.engine_options, "-n", "20", "Hi.").out
    for words in ("target attention", "target linears", "vocab update", "Python", "Taking these times", "dynamic"):
        assert words in outcome.err
    found = json.loads(run_cli("generate", *options, "--prompts", toy_files.prompts, "--json").out)
    (method,) = found["profile"]["methods"].values()
    assert list(found["profile"]["methods"]) == ["dynamic"]
    assert sum(method["ms"].values()) == pytest.approx(method["round_ms"])
    rounds = sum(answer["stats"]["rounds"] for answer in found["answers"])
    decode_s = sum(answer["stats"]["decode_s"] for answer in found["answers"])
    assert method["round_ms"] == pytest.approx(1000 * decode_s / rounds)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert len([event for event in events if event["name"] == "round"]) == rounds


@pytest.mark.parametrize(
    ("options", "method"),
    [
        (["--slots", "0"], "static"),
        (["--policy", "none"], "static"),
        (["--policy", "full_refresh"], "full_refresh"),
    ],
)
def test_a_profile_names_the_method(
    run_cli: Run, toy_files: ToyFiles, tmp_path: Path, options: list[str], method: str
) -> None:
    profile = ["--profile", str(tmp_path / "t.json"), "-n", "8", "--json"]
    outcome = run_cli("generate", *toy_files.engine_options, *options, *profile, "Hi.")
    assert list(json.loads(outcome.out)["profile"]["methods"]) == [method]
    alone = run_cli("generate", "--target", toy_files.target, "--dtype", "float32", *profile, "Hi.")
    assert list(json.loads(alone.out)["profile"]["methods"]) == ["plain"]


def test_a_profile_of_no_round_is_none(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> None:
    profile = ["--profile", str(tmp_path / "t.json"), "-n", "1"]
    assert json.loads(run_cli("generate", *toy_files.engine_options, *profile, "Hi.", "--json").out)["profile"] is None
    outcome = run_cli("generate", *toy_files.engine_options, *profile, "Hi.")
    assert (outcome.status, "target linears" in outcome.err) == (0, False)
