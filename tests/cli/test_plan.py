"""``hothead plan``: times measured or given, tables, the file, what it reads without torch, and what it refuses."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome, ToyFiles
from plan_inputs import V, curves_of, dynamic_of, times_of

from hothead.plan.schema import read_plan, read_times

Run = Callable[..., Outcome]
LENGTHS = [2.0, 2.4, 2.6, 2.7, 2.75]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A curve with slots, and times by hand for two batch sizes."""
    dynamic = [dynamic_of(2.7, 2.75, 128, 64, 4), dynamic_of(2.7, 2.75, 128, 64, 4, policy="prompt")]
    curves_of({2: LENGTHS, 4: LENGTHS}, width=0.1, difference_width=0.02, dynamic=dynamic).save(tmp_path / "curve.json")
    one = times_of(updates=({"policy": "on_miss", "slots": 64, "ms": 0.1},))
    eight = times_of(batch=8, head_ms={64: 4.0, V: 5.0}, target_verify_ms={1: 12, 5: 40}).batches
    one.model_copy(update={"batches": (*one.batches, *eight)}).save(tmp_path / "times.json")
    return str(tmp_path / "curve.json"), str(tmp_path / "times.json")


def test_given_times_need_no_torch(files: tuple[str, str], tmp_path: Path) -> None:
    curve, times = files
    out, plot = tmp_path / "plan.json", tmp_path / "plan.svg"
    arguments = ["plan", "--curve", curve, "--times", times, "--batch", "1,8", "-o", str(out), "--plot", str(plot)]
    code = (
        "import sys; from hothead.cli.main import run_command; "
        f"status = run_command({arguments!r}); sys.exit(status or 3 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for words in ("128 + 64 on_miss", "batch 8", "What limits it: target verify", "Left out: 64 slots with prompt"):
        assert words in done.stdout
    first, eighth = read_plan(out).batches
    assert (first.verdict, eighth.verdict) == ("prune", "do not speculate")
    assert "\nPrune: " in done.stdout and "\nBatch 8. Do not speculate: " in done.stdout
    assert eighth.plain_tokens_per_s.value == pytest.approx(8000 / 12)
    assert b"<svg" in plot.read_bytes()


def test_the_json_document_is_the_file_and_show_prints_it_again(
    run_cli: Run, files: tuple[str, str], tmp_path: Path
) -> None:
    curve, times = files
    out = tmp_path / "plan.json"
    outcome = run_cli("plan", "--curve", curve, "--times", times, "-o", str(out), "--json")
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out) == json.loads(out.read_text())
    assert run_cli("plan", "show", str(out), "--json").out == outcome.out
    tables = run_cli("plan", "--curve", curve, "--times", times).out
    assert run_cli("plan", "show", str(out)).out == tables


def test_measured_times_make_the_same_plan_again(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> None:
    curve, times = str(tmp_path / "curve.json"), str(tmp_path / "times.json")
    models = ["--target", toy_files.target, "--draft", toy_files.draft]
    inputs = ["--ranking", toy_files.ranking, "--prompts", toy_files.prompts]
    outcome = run_cli(
        "curve", *models, *inputs, "--dtype", "float32", "-n", "8", "--num-steps", "1,3", "--slots", "16", "--sizes",
        "64", "-o", curve, "--no-keep",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    few = ["--timed-prompts", "2", "--repeats", "1", "--timed-tokens", "6"]
    outcome = run_cli("plan", "--curve", curve, *models, *inputs, *few, "--save-times", times, "--json")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert read_times(Path(times)).answers == 2
    assert {c["slots"] for c in found["batches"][0]["candidates"]} == {0, 16}
    again = run_cli("plan", "--curve", curve, "--times", times, "--json")
    assert json.loads(again.out) == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give the target: --target; times are measured with"),
        (["--target", "t", "--draft", "d", "--ranking", "r"], "give the prompts: --prompts"),
        (["--times", "TIMES", "--target", "t"], "--times gives the times and --target measures them"),
        (["--times", "TIMES", "--save-times", "x.json"], "--save-times measures them"),
        (["--times", "TIMES", "--batch", "4"], "no times for batch size 4"),
        (["--times", "TIMES", "--batch", "few"], "whole numbers joined by commas"),
        (["--times", "TIMES", "--group", "maths"], "group 'maths'"),
        (["--times", "TIMES", "--plot", "plan.bmp"], "found .bmp"),
        (["--times", "missing.json"], "no such file"),
        (
            ["--target", "t", "--draft", "d", "--ranking", "r", "--prompts", "p", "--batch", "1,8"],
            "only --batch 1 is measured here",
        ),
        (
            ["--target", "t", "--draft", "d", "--ranking", "r", "--prompts", "p", "--repeats", "0"],
            "must be at least 1",
        ),
    ],
)
def test_bad_options_are_refused(run_cli: Run, files: tuple[str, str], options: list[str], said: str) -> None:
    curve, times = files
    outcome = run_cli("plan", "--curve", curve, *(times if option == "TIMES" else option for option in options))
    assert outcome.status == 2
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_plan_needs_a_curve(run_cli: Run, files: tuple[str, str]) -> None:
    outcome = run_cli("plan", "--times", files[1])
    assert (outcome.status, "give the acceptance: --curve" in outcome.err) == (2, True)
    assert "not a result of hothead curve" in run_cli("plan", "--curve", files[1], "--times", files[1]).err
