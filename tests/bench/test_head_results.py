"""The result file of the head benchmark: what is derived from it, and which files are read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import head_bench

from hothead.bench.head_results import read_head_bench
from hothead.bench.roofline import attainable_flops_per_s, head_work
from hothead.errors import InputError

RESULTS = Path(__file__).parents[2] / "results"


def test_work_by_hand() -> None:
    """2 hidden states of 8 values times 16 rows, bf16: 2 * 2 * 8 * 16 operations; 128 + 16 + 32 values of 2 bytes."""
    work = head_work(batch=2, hidden_size=8, rows=16, bytes_per_value=2)
    assert (work.flops, work.bytes_moved, work.bytes_without_output) == (512, 352, 288)
    assert work.intensity == 512 / 352
    assert work.intensity_without_output == 512 / 288


@given(*(st.integers(1, 10_000) for _ in range(3)), st.sampled_from([2, 4]))
def test_intensity_is_bounded_by_batch_and_hidden_size(batch: int, hidden: int, rows: int, size: int) -> None:
    """B, H and R each bound 2BHR / s(HR + BH + BR) by 2/s times themselves; without the output only B and R do."""
    work = head_work(batch, hidden, rows, size)
    assert work.intensity < 2 / size * min(batch, hidden, rows)
    assert work.intensity < work.intensity_without_output < 2 / size * min(batch, rows)


def test_the_roof_is_the_lower_of_both_ceilings() -> None:
    assert attainable_flops_per_s(2.0, 10.0, 100.0) == 20.0
    assert attainable_flops_per_s(20.0, 10.0, 100.0) == 100.0


def test_the_share_of_the_roof() -> None:
    """The full head of ``head_bench`` reads at 40 of the 50 GB/s that bound it: batch 1 is far below the ridge."""
    (head,) = head_bench().heads
    full = head.timings[0]
    assert head.work(full).bytes_moved / full.median_s.value == pytest.approx(40e9)
    assert head.share_of_roof(full) == pytest.approx(0.8)


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    head_bench().save(tmp_path / "head.json")
    assert read_head_bench(tmp_path / "head.json") == head_bench()


def test_files_of_version_1_are_read(tmp_path: Path) -> None:
    old = {
        "machine": head_bench().machine.model_dump(),
        "versions": {"hothead": "0.1.0"},
        "dtype": "bfloat16",
        "shape": [1000, 16],
        "config": {"sizes": [64], "slots": 8, "batch": 2, "repeats": 9, "seed": 0},
        "timings": [
            {"name": "full", "rows": 1000, "median_s": 0.5, "times_full": {"value": 1, "low": 1, "high": 1}},
            {"name": "static+slots 64+8", "rows": 72, "median_s": 0.1, "times_full": {"value": 0.2}},
            {"name": "full_refresh update 64", "rows": 64, "median_s": 0.2, "times_full": {"value": 0.4}},
        ],
    }
    (tmp_path / "old.json").write_text(json.dumps(old))
    found = read_head_bench(tmp_path / "old.json")
    (head,) = found.heads
    assert (head.vocab_size, head.hidden_size, head.batches, head.ceiling) == (1000, 16, (2,), None)
    assert [(t.name, t.size, t.slots, t.rows, t.rounds) for t in head.timings] == [
        ("full", 1000, 0, 1000, 9),
        ("static+slots 64+8", 64, 8, 72, 9),
        ("full_refresh update 64", 64, 0, 64, 9),
    ]
    assert head.timings[1].median_s.value == 0.1
    assert head.share_of_roof(head.timings[0]) is None


def test_the_published_file_is_read() -> None:
    found = read_head_bench(RESULTS / "bench_head.json")
    assert found.heads[0].timings[0].rows == found.heads[0].vocab_size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a readable JSON file"),
        ("[]", "not a result of hothead bench head"),
        ('{"format": "hothead.curve"}', "not a result of hothead bench head"),
        ('{"format": "hothead.bench_head", "version": 9}', "version 9; this hothead reads versions 1 and 2"),
        ('{"format": "hothead.bench_head", "version": 2}', "damaged head benchmark"),
        ('{"shape": [1], "timings": [], "config": {}, "dtype": "x"}', "damaged head benchmark"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=said):
        read_head_bench(tmp_path / "x.json")
    with pytest.raises(InputError, match="no such file"):
        read_head_bench(tmp_path / "y.json")


def test_reading_and_drawing_need_no_torch() -> None:
    code = "import sys, hothead.report.head, hothead.cli.bench_head; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
