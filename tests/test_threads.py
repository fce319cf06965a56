"""Cores that may be used, from the files the kernel shows, and when a line of warning is due."""

import os
from pathlib import Path

import pytest

from hothead.threads import Threads, bind_threads, default_threads, threads_now, usable_cores


def siblings(folder: Path, *lists: str) -> Path:
    for cpu, text in enumerate(lists):
        (folder / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (folder / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(text + "\n")
    return folder


@pytest.fixture
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)


@pytest.mark.usefixtures("four_processors")
def test_hyperthreads_of_a_core_count_once(tmp_path: Path) -> None:
    folder = siblings(tmp_path / "cpu", "0,2", "1,3", "0,2", "1,3")
    assert usable_cores(folder, tmp_path) == 2
    assert usable_cores(tmp_path / "nothing", tmp_path) == 4


def test_only_the_affinity_mask_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3}, raising=False)
    assert usable_cores(siblings(tmp_path / "cpu", "0,2", "1,3", "0,2", "1,3"), tmp_path) == 1


@pytest.mark.usefixtures("four_processors")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu.max": "nonsense"}, 4),
    ],
)
def test_the_quota_limits(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert usable_cores(tmp_path / "nothing", tmp_path) == cores


def test_omp_num_threads_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert default_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert default_threads() == usable_cores()


def test_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert Threads(2, 2, "none", 0.3).warning is None
    assert Threads(2, 4, "none", 2.5).warning is None  # two processors are left for others
    assert "use --threads 2" in (Threads(4, 2, "none", 0.0).warning or "")
    assert "load 3.5 at the start" in (Threads(2, 4, "none", 3.5).warning or "")
    assert Threads(2, 2, "none", None).warning is None


def test_binding_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "x")
    monkeypatch.delenv("OMP_PROC_BIND")
    monkeypatch.setenv("OMP_PLACES", "x")
    monkeypatch.delenv("OMP_PLACES")
    assert threads_now(2).binding == "none"
    bind_threads()
    assert threads_now(2).binding == "close"
