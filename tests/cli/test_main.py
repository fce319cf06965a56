"""The command itself: verbs load lazily, and every failure is one line and an exit status."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer

from hothead.cli import common, main
from hothead.errors import InputError


@dataclass
class Outcome:
    status: int
    out: str
    err: str


@pytest.fixture
def hothead(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command line in this process, with a verb ``test me`` that fails in the way it is told."""

    def fail(how: str, as_json: common.JsonOption = False) -> None:
        """Fail as told."""
        match how:
            case "input":
                raise InputError("what was\nfound")
            case "bug":
                raise ZeroDivisionError("oh\nno")
            case "interrupt":
                raise KeyboardInterrupt
            case "resumable":
                raise KeyboardInterrupt("run it again")
            case "json":
                with common.quiet_stdout(as_json):
                    print("noise of a library")
                common.print_json({"array": np.arange(2), "path": Path("x"), "float": np.float64(0.5)})
            case "nan":
                common.print_json({"value": float("nan")})

    module = ModuleType("verb_for_tests")
    module.fail = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "verb_for_tests", module)
    monkeypatch.setattr(main, "VERBS", (*main.VERBS, main.Verb("test me", "verb_for_tests", "fail", "Fail.")))
    monkeypatch.setattr(main, "GROUPS", {**main.GROUPS, "test": "For tests."})

    def run(*arguments: str) -> Outcome:
        status = main.run_command(list(arguments))
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run


@pytest.mark.parametrize(
    ("how", "status", "line"),
    [
        ("input", 2, "hothead: error: what was found\n"),
        ("interrupt", 130, "hothead: interrupted\n"),
        ("resumable", 130, "hothead: interrupted; run it again\n"),
        (
            "bug",
            1,
            "hothead: unexpected error: ZeroDivisionError: oh no (a bug; add --debug to see the traceback)\n",
        ),
    ],
)
def test_a_failure_is_one_line_and_a_status(hothead: Any, how: str, status: int, line: str) -> None:
    assert hothead("test", "me", how) == Outcome(status, "", line)


def test_debug_shows_the_traceback_wherever_it_stands(hothead: Any) -> None:
    for arguments in (("--debug", "test", "me", "bug"), ("test", "me", "bug", "--debug")):
        with pytest.raises(ZeroDivisionError):
            hothead(*arguments)
    with pytest.raises(InputError):
        hothead("test", "me", "--debug", "input")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rnak",), "No such command 'rnak'. Did you mean 'rank'? (see hothead --help)"),
        (("test", "you"), "No such command 'you'. (see hothead test --help)"),
        (("test", "me"), "Missing argument 'how'. (see hothead test me --help)"),
        (("test", "me", "x", "--bad"), "No such option: --bad (see hothead test me --help)"),
    ],
)
def test_a_wrong_command_line_is_one_line(hothead: Any, arguments: tuple[str, ...], said: str) -> None:
    outcome = hothead(*arguments)
    assert outcome.status == 2 and outcome.out == ""
    assert outcome.err.lower() == f"hothead: error: {said}\n".lower()  # Typer versions differ in case


def test_json_is_one_document_and_nothing_else(hothead: Any) -> None:
    outcome = hothead("test", "me", "json", "--json")
    assert json.loads(outcome.out) == {"array": [0, 1], "path": "x", "float": 0.5}
    assert "noise" in outcome.err
    assert hothead("test", "me", "nan").status == 1  # not JSON, so not printed


def test_help_and_version(hothead: Any) -> None:
    assert hothead("--version").out.startswith("hothead 0.")
    for arguments in ((), ("-h",), ("--help",)):
        outcome = hothead(*arguments)
        assert outcome.status == 0 and "rank " in outcome.out and "test " in outcome.out
    assert "Fail." in hothead("test").out
    assert "Fail as told." in hothead("test", "me", "-h").out


@pytest.mark.parametrize("verb", main.VERBS, ids=lambda verb: verb.name)
def test_every_verb_of_the_table_loads_and_has_help_that_fits_a_screen(verb: main.Verb, hothead: Any) -> None:
    assert main.load_verb(verb).name == verb.name.split()[-1]
    outcome = hothead(*verb.name.split(), "--help")
    assert outcome.status == 0 and outcome.out.startswith("Usage: hothead")
    assert len(outcome.out.splitlines()) <= 60
    assert "\n" not in verb.help and len(verb.help) <= 80 and verb.help.endswith(".")
    if " " in verb.name:
        assert verb.name.split()[0] in main.GROUPS


def run_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    code = "from hothead.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False, **options
    )


def test_help_loads_no_verb_and_no_heavy_library() -> None:
    code = (
        "import sys; from hothead.cli.main import run_command; status = run_command(['--help']);"
        "loaded = [m for m in ('torch', 'transformers', 'pyarrow', 'matplotlib', 'scipy') if m in sys.modules];"
        "loaded += [m for m in sys.modules if m.startswith('hothead.') and m.count('.') > 1];"
        "print(status, sorted(loaded), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "0 ['hothead.cli.common', 'hothead.cli.main']"


def test_a_closed_pipe_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    code = "from hothead.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    code = "from hothead.cli.main import run; run()"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "hothead: error: [Errno 28] No space left on device\n"


def test_completion_knows_the_verbs() -> None:
    environment = {
        **os.environ,
        "_HOTHEAD_COMPLETE": "complete_bash",
        "COMP_WORDS": "hothead ra",
        "COMP_CWORD": "1",
    }
    assert run_process(env=environment).stdout.split() == ["rank"]


# --- what verbs share -----------------------------------------------------------------------------


def test_a_piped_table_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_table(("name", "value"), [("x" * 300, 1.5), ("[bold]y", "2")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("x" * 300 + " ") and lines[1].endswith("  1.5")
    assert lines[2].startswith("[bold]y")  # cells are text, not markup


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (3.14159, "3.14"), (123.4, "123"), (1234, "1.2k"), (123_456, "123k"), (2.5e6, "2.5M"), (7e9, "7.0G")],
)
def test_short_numbers(value: float, text: str) -> None:
    assert common.short_number(value) == text


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    common.check_output(tmp_path / "new folder" / "file")
    (tmp_path / "file").touch()
    for path, said in (
        (tmp_path, "it is a folder"),
        (tmp_path / "file" / "x", "cannot write"),
        (Path("-"), "standard output"),
    ):
        with pytest.raises(InputError, match=said):
            common.check_output(path)


def test_progress_is_silent_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with common.progress("working", 3, "steps") as bar:
        bar.advance(1)
        bar.advance(1, 500)
        bar.describe("still")
    assert capsys.readouterr() == ("", "")


def test_prompts_abort_like_an_interrupt(hothead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def abort(command: Any, arguments: Any) -> int:
        raise typer.Abort

    monkeypatch.setattr(main, "execute", abort)
    assert hothead("rank").status == 130
