"""``hothead bench head``: a table or a JSON document, of random weights or a model's."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome, ToyFiles

from hothead.bench import ceilings

Run = Callable[..., Outcome]
SMALL = ["--vocab-size", "320", "--hidden-size", "16", "--sizes", "64", "--slots", "8", "--repeats", "2"]
NAMES = ["full", "static", "static+slots", "slot update", "full_refresh update"]


@pytest.fixture(autouse=True)
def small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured all the same, in milliseconds."""
    monkeypatch.setattr(ceilings, "BUFFER_BYTES", 1 << 22)
    monkeypatch.setitem(ceilings.GEMM_SIZE, "cpu", 64)


def test_the_json_document(run_cli: Run) -> None:
    outcome = run_cli("bench", "head", *SMALL, "--json")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert (found["format"], found["version"]) == ("hothead.bench_head", 2)
    (head,) = found["heads"]
    assert (head["vocab_size"], head["hidden_size"], head["weights"]) == (320, 16, "random")
    assert [timing["variant"] for timing in head["timings"]] == NAMES
    assert head["ceiling"]["buffer_bytes"] == 1 << 22
    assert found["config"]["batches"] == [1]


def test_a_grid_of_heads_in_a_file_and_the_tables_again(run_cli: Run, tmp_path: Path) -> None:
    file, plot = tmp_path / "head.json", tmp_path / "head.png"
    grid = ["--vocab-size", "320,400", "--hidden", "16,24", "--dtype", "bfloat16,float32", "--batch", "1,4"]
    outcome = run_cli("bench", "head", *SMALL[4:], *grid, "-o", str(file), "--plot", str(plot))
    assert outcome.status == 0, outcome.err
    heads = json.loads(file.read_text())["heads"]
    shapes = [(h["dtype"], h["vocab_size"], h["hidden_size"]) for h in heads]
    assert shapes == [(d, v, h) for d in ("bfloat16", "float32") for v in (320, 400) for h in (16, 24)]
    assert plot.read_bytes().startswith(b"\x89PNG")
    again = run_cli("bench", "head", "show", str(file))
    assert again.out == outcome.out
    assert json.loads(run_cli("bench", "head", "show", str(file), "--json").out)["heads"] == heads


def test_the_table_and_a_models_own_head(run_cli: Run, toy_files: ToyFiles) -> None:
    outcome = run_cli("bench", "head", "--target", toy_files.target, *SMALL[4:], "--dtype", "float32")
    assert outcome.status == 0, outcome.err
    assert "LM head 320 x 32, float32, weights of target" in outcome.out
    assert "static+slots 64+8" in outcome.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sizes", "0"], "sizes must be between 1 and"),
        (["--sizes", "a"], "joined by commas"),
        (["--batch", "0"], "batch must be at least 1"),
        (["--batch", "1;2"], "joined by commas"),
        (["--seconds", "0"], "must be above 0"),
        (["--hidden-size", "0"], "must be at least 1"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--dtype", "int4"], "--dtype must be one of"),
        (["--device", "warp9"], "--device warp9: not available here"),
        (["--plot", "x.bmp"], "found .bmp"),
        (["-o", "/"], "it is a folder"),
    ],
)
def test_bad_options_are_refused(run_cli: Run, options: list[str], said: str) -> None:
    outcome = run_cli("bench", "head", *SMALL, *options)
    assert outcome.status == 2
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1
