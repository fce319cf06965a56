"""Which files are read, and what is said of those that cannot be."""

from pathlib import Path

import pytest

from hothead.errors import InputError
from hothead.report.evidence import read_evidence


def test_a_folder_is_searched_for_results(folder: Path) -> None:
    found = read_evidence([folder])
    assert [(file.name, file.kind) for file in found.files] == [
        ("curve.json", "acceptance curves"),
        ("head.json", "head times"),
        ("plan.json", "plan"),
        ("ranking.safetensors", "token ranking"),
        ("results.jsonl", "comparison"),
    ]
    for of_kind in (found.curves, found.heads, found.plans, found.rankings, found.comparisons):
        assert len(of_kind) == 1


def test_a_file_named_twice_is_read_once(folder: Path) -> None:
    assert len(read_evidence([folder, folder / "curve.json"]).files) == 5


def test_head_times_of_version_1_are_known(folder: Path) -> None:
    published = Path(__file__).parents[2] / "results" / "bench_head.json"
    assert read_evidence([published]).files[0].kind == "head times"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("notes.json", "it is of another program"),
        ("broken.json", "it names no hothead format"),
        ("nowhere.json", "no such file or folder"),
    ],
)
def test_a_file_that_is_no_result_is_refused(folder: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_evidence([folder / name])


def test_a_damaged_result_is_said_even_in_a_folder(folder: Path) -> None:
    (folder / "later.json").write_text('{"format": "hothead.curve", "version": 1}')
    with pytest.raises(InputError, match=r"later\.json: a damaged curve"):
        read_evidence([folder])


def test_an_empty_folder_has_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to report on"):
        read_evidence([tmp_path])
