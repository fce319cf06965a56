"""Tables of a run with peers: who is ahead of whom, by whole answers, over the answers both have."""

from typing import Any

import pytest
from records import answer, failure, header

from hothead.bench.schema import Answer, Results
from hothead.bench.summary import DECODING, WHOLE_ANSWER, summarize
from hothead.report import compare, engine

METHODS = ("plain", "full", "full tree", "static", "static tree", "llama.cpp", "vllm")


def results(seconds: dict[str, float], missing: tuple[tuple[str, str], ...] = (), **changes: Any) -> Results:
    """Two prompts in groups of their own; the second takes every method twice as long."""
    blocks = {}
    for number, prompt in enumerate(("1", "2"), start=1):
        blocks[prompt, 0, 0] = tuple(
            failure(method, prompt)
            if (method, prompt) in missing or method not in seconds
            else answer(method, prompt, group=f"g{prompt}", answer_s=number * seconds[method], **changes)
            for method in METHODS
        )
    return Results(header(METHODS), (), blocks)


SECONDS = {"plain": 4.0, "full": 3.0, "full tree": 2.5, "static": 2.0, "static tree": 1.0, "llama.cpp": 0.5}


def row(found: Results, method: str, group: int = -1) -> Any:
    return next(m for m in summarize(found, WHOLE_ANSWER)[group].methods if m.method == method)


def test_ratios_are_of_whole_answers_and_of_the_same_shape() -> None:
    found = results(SECONDS)
    assert row(found, "plain").tokens_per_s.value == pytest.approx(22 / 12)  # all tokens, and all of the time
    assert row(found, "static tree").times_plain.value == pytest.approx(4)
    assert row(found, "static tree").times_full.value == pytest.approx(2.5)
    assert row(found, "static").times_full.value == pytest.approx(1.5)
    assert row(found, "full tree").times_full is None
    assert row(found, "llama.cpp").best_hot_times_it.value == pytest.approx(0.5)
    assert row(found, "static").best_hot_times_it is None
    assert row(found, "llama.cpp").acceptance_length is None
    decoding = summarize(found, DECODING)[-1]
    assert {method.tokens_per_s.value for method in decoding.methods} == {10.0}


def test_a_peer_without_answers_is_left_out_and_its_errors_are_told() -> None:
    found = results(SECONDS)
    assert [m.method for m in summarize(found, WHOLE_ANSWER)[-1].methods] == [m for m in METHODS if m != "vllm"]
    assert "Errors: vllm failed 2 times, such as: ContextOverflow: x" in engine.remarks(found)


def test_a_peers_missing_answer_takes_none_from_the_others() -> None:
    found = results(SECONDS, missing=(("llama.cpp", "2"),))
    assert row(found, "plain").answers == 2
    assert row(found, "llama.cpp").answers == 1
    # Over the prompt that both have; over all prompts plain has other totals.
    assert row(found, "llama.cpp").times_plain.value == pytest.approx(8)
    assert [group.name for group in summarize(found, WHOLE_ANSWER)] == ["g1", "g2", "overall"]
    assert "llama.cpp" not in [m.method for m in summarize(found, WHOLE_ANSWER)[1].methods]


def test_a_missing_answer_of_ours_takes_the_block_from_all() -> None:
    found = results(SECONDS, missing=(("full", "2"),))
    assert {m.answers for m in summarize(found, WHOLE_ANSWER)[-1].methods} == {1}


def test_losses_are_said() -> None:
    lines = engine.losses(summarize(results(SECONDS), WHOLE_ANSWER))
    assert lines == ["static tree is behind llama.cpp: g1 0.50, g2 0.50, overall 0.50 0.50-0.50."]
    assert engine.losses(summarize(results({**SECONDS, "llama.cpp": 9.0}), WHOLE_ANSWER)) == []


def test_the_table_names_the_best_hot_method_of_all_groups() -> None:
    table = engine.speed_table(summarize(results(SECONDS), WHOLE_ANSWER))
    assert table.columns[4] == "static tree / it"
    rows = {cells[0].strip(): cells for cells in table.rows[-6:]}
    assert rows["llama.cpp"][1:] == ("14.7", "8.00 8.00-8.00", "6.00 6.00-6.00", "0.50 0.50-0.50", "-", "100")


def test_files_from_before_whole_answers_were_timed_still_have_a_speed() -> None:
    old = answer("plain")
    assert isinstance(old, Answer) and old.answer_s is None
    assert WHOLE_ANSWER.seconds(old) == old.prefill_s + old.decode_s


def test_a_method_that_missed_a_group_leaves_a_gap_in_the_figure() -> None:
    found = compare.figures(summarize(results(SECONDS, missing=(("llama.cpp", "2"),)), WHOLE_ANSWER))
    from matplotlib.figure import Figure

    for figure in found:
        figure.draw(Figure().subplots())
