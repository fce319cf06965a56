"""The files of times and plans: what is written is read, what is damaged is refused in a line that says how."""

import json
from pathlib import Path
from typing import Any

import pytest

from hothead.errors import InputError
from hothead.plan.schema import Times, read_plan, read_times

BY_HAND: dict[str, Any] = {
    "format": "hothead.times",
    "version": 1,
    "machine": "my GPU",
    "dtype": "bfloat16",
    "batches": [
        {
            "batch": 1,
            "target_verify_ms": {"1": 10, "5": {"value": 12, "low": 11, "high": 13}},
            "draft_extend_ms": 0.5,
            "draft_step_ms": 0.4,
            "head_ms": {"64": 0.1, "320": 0.8},
        }
    ],
}


def changed(**batch: Any) -> dict[str, Any]:
    return {**BY_HAND, "batches": [{**BY_HAND["batches"][0], **batch}]}


def saved(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_a_file_written_by_hand_is_read_and_written_again(tmp_path: Path) -> None:
    times = read_times(saved(tmp_path / "times.json", BY_HAND))
    assert times.at(1).target_verify_ms[5].high == 13
    assert times.at(1).target_verify_ms[1].low is None
    assert times.at(1).other_ms.value == 0
    times.save(tmp_path / "again.json")
    assert read_times(tmp_path / "again.json") == times
    with pytest.raises(InputError, match="no times for batch size 8, only for 1"):
        times.at(8)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({**BY_HAND, "format": "other"}, "expected times"),
        ({**BY_HAND, "version": 2}, "of version 2; this hothead reads version 1"),
        ({**BY_HAND, "batches": []}, "damaged hothead.times .batches"),
        (changed(target_verify_ms={"2": 1, "5": 2}), "must give the time of 1 token"),
        (changed(target_verify_ms={"1": 1}), "and of more"),
        (changed(target_verify_ms={"1": 0, "5": 2}), "must be above 0"),
        (changed(head_ms={"0": 1}), "by rows, 1 or more"),
        (changed(draft_step_ms=-1), "low <= value <= high"),
        (changed(draft_step_ms={"0": 1}), "by rows, 1 or more"),
        (changed(draft_step_ms={}), "by rows, 1 or more"),
        (changed(verify_factor={"64": -1}), "low <= value <= high"),
        (changed(draft_step_ms={"value": 1, "low": 2, "high": 3}), "low <= value <= high"),
        (changed(draft_step_ms="fast"), "draft_step_ms"),
        (changed(speed=3), "speed: Extra inputs"),
    ],
)
def test_damage_is_named(tmp_path: Path, document: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_times(saved(tmp_path / "times.json", document))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_times(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(InputError, match="not a readable JSON file"):
        read_times(tmp_path / "text.json")
    with pytest.raises(InputError, match="expected what hothead plan -o wrote"):
        read_plan(saved(tmp_path / "times.json", BY_HAND))
    with pytest.raises(ValueError, match="frozen"):
        Times.model_validate(BY_HAND).dtype = "float32"  # type: ignore[misc]
