"""``hothead bench head``: a table or a JSON document, of random weights or a model's."""

import json
from collections.abc import Callable

import pytest
from conftest import Outcome, ToyFiles

Run = Callable[..., Outcome]
SMALL = ["--vocab-size", "320", "--hidden-size", "16", "--sizes", "64", "--slots", "8", "--repeats", "2"]


def test_the_json_document(run_cli: Run) -> None:
    outcome = run_cli("bench", "head", *SMALL, "--json")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["shape"] == [320, 16]
    names = [timing["name"] for timing in found["timings"]]
    assert names == ["full", "static 64", "static+slots 64+8", "slot update 64+8", "full_refresh update 64"]
    assert found["config"]["batch"] == 1


def test_the_table_and_a_models_own_head(run_cli: Run, toy_files: ToyFiles) -> None:
    outcome = run_cli("bench", "head", "--target", toy_files.target, *SMALL[4:], "--dtype", "float32")
    assert outcome.status == 0, outcome.err
    assert "LM head 320 x 32, float32, batch 1" in outcome.out
    assert "static+slots 64+8" in outcome.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sizes", "0"], "sizes must be between 1 and"),
        (["--sizes", "a"], "joined by commas"),
        (["--batch", "0"], "batch must be at least 1"),
        (["--hidden-size", "0"], "must be at least 1"),
        (["--dtype", "int4"], "--dtype must be one of"),
        (["--device", "warp9"], "--device warp9: not available here"),
    ],
)
def test_bad_options_are_refused(run_cli: Run, options: list[str], said: str) -> None:
    outcome = run_cli("bench", "head", *SMALL, *options)
    assert outcome.status == 2
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1
