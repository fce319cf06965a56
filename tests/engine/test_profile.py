"""Profiles on toy models: every part is timed, the parts add up, the trace is what viewers read, and off is off."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hothead import spans
from hothead.dynamic import DynamicConfig
from hothead.engine.generate import SpeculativeDecoder, Stats
from hothead.engine.sampling import SamplingParams
from hothead.engine.stopwatch import Profiler, span_cost_s
from hothead.engine.trace import Trace
from hothead.engine.tree import DraftShape
from hothead.models.target import Target
from hothead.models.toy import toy_causal_lm, toy_eagle, toy_standalone, toy_target, toy_tokenizer
from hothead.spans import PROFILE_LABELS, SECTION_LABELS, span
from hothead.vocab import DraftVocab

PROMPT = [5, 9, 200, 31, 77, 64, 3, 90]
LONG = SamplingParams(max_new_tokens=30, ignore_eos=True)
TARGET_PARTS = {"target_attention", "target_linears", "target_layers", "target_head", "sampling"}


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target()


def decoder_of(method: str, target: Target, shape: DraftShape | None = None) -> SpeculativeDecoder:
    if method == "plain":
        return SpeculativeDecoder(target)
    draft = toy_standalone(target) if method == "standalone" else toy_eagle(target)
    dynamics = {"dynamic": DynamicConfig(16), "refresh": DynamicConfig(0, "full_refresh", np.arange(320))}
    vocab = (
        DraftVocab(np.arange(128), 320, target.tokenizer_fingerprint) if method not in ("full", "standalone") else None
    )
    return SpeculativeDecoder(target, draft, vocab, dynamics.get(method), shape)


def profiled(decoder: SpeculativeDecoder, params: SamplingParams = LONG) -> tuple[Stats, Trace]:
    trace = Trace()
    decoder.profile = trace.track("method")
    return decoder.generate(PROMPT, params).stats, trace


@pytest.mark.parametrize("shape", [(4,), (3, 2, 6)], ids=str)
@pytest.mark.parametrize("method", ["plain", "full", "standalone", "static", "dynamic", "refresh"])
def test_every_part_is_timed_and_they_add_up(target: Target, method: str, shape: tuple[int, ...]) -> None:
    stats, _ = profiled(decoder_of(method, target, DraftShape(*shape)))
    expected = {*TARGET_PARTS, "other"}
    if method != "plain":
        expected |= {"draft_head", "draft_steps", "draft_extend"}
    if method in ("dynamic", "refresh"):
        expected.add("vocab_update")
    assert set(stats.sections_s) == set(PROFILE_LABELS)
    assert {name for name, seconds in stats.sections_s.items() if seconds > 0} == expected
    assert sum(stats.sections_s.values()) == pytest.approx(stats.decode_s, rel=1e-6)


def test_the_text_is_the_same_and_sampling_is_profiled_too(target: Target) -> None:
    decoder = decoder_of("static", target)
    plain = decoder.generate(PROMPT, LONG).target_ids
    decoder.profile = Trace().track("static")
    assert decoder.generate(PROMPT, LONG).target_ids == plain
    stats, _ = profiled(decoder, SamplingParams(temperature=1.0, seed=0, max_new_tokens=20, ignore_eos=True))
    assert stats.sections_s["sampling"] > 0


def test_without_a_profile_no_span_is_taken(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("hothead.packed.span", lambda name: (asked.append(name), span(name))[1])
    decoder = decoder_of("dynamic", target)
    stats = decoder.generate(PROMPT, LONG).stats
    assert asked, "the marks are there"
    assert set(stats.sections_s) == set(SECTION_LABELS)
    assert span("linears") is spans.NOTHING
    monkeypatch.setattr(Profiler, "section", lambda *_: pytest.fail("profiled though nobody asked"))
    decoder.generate(PROMPT, LONG)


def test_nobody_listens_while_the_consumer_holds_a_chunk_or_after_a_failure(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_of("static", target)
    decoder.profile = Trace().track("static")
    for _ in decoder.stream(PROMPT, LONG):
        assert span("linears") is spans.NOTHING
    monkeypatch.setattr(target, "logits", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(decoder.stream(PROMPT, LONG))
    assert span("linears") is spans.NOTHING


@pytest.mark.parametrize("fuse", [True, False])
def test_a_span_of_known_length_goes_to_its_part(monkeypatch: pytest.MonkeyPatch, fuse: bool) -> None:
    """Attention that sleeps: in the verify pass it is the target's, in a draft it is the draft's."""
    tokenizer = toy_tokenizer()
    target = Target(toy_causal_lm(layers=2, eos_token_id=tokenizer.eos_token_id), tokenizer, fuse=fuse)
    module = "hothead.models.layers" if fuse else "hothead.models.attention"
    attend = __import__(module, fromlist=["attend"]).attend

    def slow(*arguments: Any) -> Any:
        time.sleep(0.002)
        return attend(*arguments)

    decoder = decoder_of("full", target)
    before, _ = profiled(decoder)
    monkeypatch.setattr(f"{module}.attend", slow)
    after, _ = profiled(decoder)
    gained = {name: 1000 * (after.sections_s[name] - before.sections_s[name]) / after.rounds for name in PROFILE_LABELS}
    assert gained["target_attention"] > 4  # two layers
    draft_ms = gained["draft_steps"] + gained["draft_extend"]
    if fuse:
        assert draft_ms > 2 * 4 * 0.9  # one layer, four passes, but for a short last round
    assert gained["target_linears"] < 2


def test_the_trace_is_one_that_viewers_read(target: Target, tmp_path: Path) -> None:
    trace = Trace()
    for method in ("static", "dynamic"):
        decoder = decoder_of(method, target)
        decoder.profile = trace.track(method)
        stats = decoder.generate(PROMPT, LONG).stats
    assert [track.rounds for track in trace.tracks][1] == stats.rounds
    for name in ("t.json", "t.json.gz"):
        trace.write(tmp_path / name)
    found = json.loads((tmp_path / "t.json").read_text())
    assert found == json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    assert found["otherData"] == {"format": "hothead.trace", "version": 1, "events_left_out": 0}
    events = found["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(names.values()) == ["static", "dynamic"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) + len(names) + 1 == len(events)
    assert all(event["pid"] == 1 and event["tid"] in names and event["dur"] >= 0 for event in complete)
    inside = check_nesting(complete)
    assert {inside[name] for name in ("draft_extend", "draft_head", "draft_steps", "target_verify")} == {"round"}
    assert inside["round"] == inside["prefill"] == "answer"
    assert inside["linears"] == inside["attention"] == "layers"
    assert inside["layers"] == inside["head"] == inside["sampling"] == "target_verify"
    updates = {names[event["tid"]] for event in complete if event["name"] == "vocab_update"}
    assert updates == {"dynamic"}
    (answer,) = [event for event in complete if event["name"] == "answer" and names[event["tid"]] == "dynamic"]
    assert answer["args"] == {"new_tokens": stats.new_tokens, "rounds": stats.rounds}
    # Microseconds: the rounds of an answer take its decoding time, but for the commit of prefill's token.
    of_rounds = [e["dur"] for e in complete if e["name"] == "round" and names[e["tid"]] == "dynamic"]
    assert sum(of_rounds) / 1e6 == pytest.approx(stats.decode_s, rel=0.05)


def check_nesting(events: list[dict[str, Any]]) -> dict[str, str]:
    """Assert that events of a track lie inside one another or apart; which one each name was last found inside of,
    where the verify pass and everything else differ, in the verify pass."""
    inside: dict[str, str] = {}
    for track in {event["tid"] for event in events}:
        opened: list[dict[str, Any]] = []
        for event in sorted((e for e in events if e["tid"] == track), key=lambda e: (e["ts"], -e["dur"])):
            end = round(event["ts"] + event["dur"], 3)
            while opened and round(opened[-1]["ts"] + opened[-1]["dur"], 3) <= event["ts"]:
                opened.pop()
            if opened:
                assert end <= round(opened[-1]["ts"] + opened[-1]["dur"], 3), f"{event} sticks out of {opened[-1]}"
                if event["name"] not in ("layers", "linears", "attention") or any(
                    outer["name"] == "target_verify" and opened[-1]["name"] != "head" for outer in opened
                ):
                    inside[event["name"]] = opened[-1]["name"]
            opened.append(event)
    return inside


def test_a_trace_stays_of_bounded_size_and_the_breakdown_does_not_suffer(target: Target, tmp_path: Path) -> None:
    trace = Trace(max_events=50)
    decoder = decoder_of("static", target)
    decoder.profile = trace.track("static")
    stats = decoder.generate(PROMPT, LONG).stats
    assert sum(stats.sections_s.values()) == pytest.approx(stats.decode_s, rel=1e-6)
    assert len(trace.events) == 50
    assert trace.left_out == trace.tracks[0].spans - 50 > 0
    trace.write(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["events_left_out"] == trace.left_out


def test_compiled_layers_are_one_part(target: Target) -> None:
    """Marks inside compiled code neither break its graph nor take a span there."""
    weight = torch.randn(8, 8)

    def layer(x: torch.Tensor) -> torch.Tensor:
        with span("linears"):
            x = x @ weight
        return x.relu()

    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x = torch.randn(3, 8)
    trace = Trace()
    profiler = Profiler(torch.device("cpu"), trace.track("compiled"))
    torch.testing.assert_close(compiled(x), layer(x))
    with profiler.section("target_verify"), span("layers"):
        compiled(x)
    assert {event.name for event in trace.events} == {"target_verify", "layers"}
    assert profiler.close(1.0)["target_linears"] == 0


def test_a_span_is_cheap() -> None:
    """Only that the figure is one of a span: microseconds, not milliseconds."""
    assert 1e-8 < span_cost_s(torch.device("cpu"), count=200) < 1e-3
