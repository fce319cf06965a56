"""How many threads this process should compute with: cores it may really use, not those the machine has."""

import os
from dataclasses import dataclass
from pathlib import Path

CPU_FOLDER = Path("/sys/devices/system/cpu")
CGROUP_FOLDER = Path("/sys/fs/cgroup")
BUSY_SHARE = 0.5  # of a core: other work above this per thread slows every pass, which waits for its slowest thread


@dataclass(frozen=True)
class Threads:
    """What the engine computes with.

    Attributes:
        threads: of torch.
        cores: physical cores this process may use.
        binding: OMP_PROC_BIND as it stands; "none" lets the system move threads.
        load_1min: of the machine at the start, None where the system does not say.
    """

    threads: int
    cores: int
    binding: str
    load_1min: float | None

    @property
    def warning(self) -> str | None:
        """One line if threads will have to wait for cores."""
        if self.threads > self.cores:
            return (
                f"{self.threads} threads on {self.cores} usable cores (affinity and quota counted): threads will wait "
                f"for each other; use --threads {self.cores}"
            )
        spare = (os.cpu_count() or 1) - self.threads
        if self.load_1min is not None and self.load_1min > spare + BUSY_SHARE * self.threads:
            return (
                f"the machine is busy (load {self.load_1min:.1f} at the start, {self.threads} threads wanted of "
                f"{os.cpu_count()} processors): times will say little"
            )
        return None


def threads_now(threads: int) -> Threads:
    """The record of ``threads`` on this machine now."""
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return Threads(threads, usable_cores(), os.environ.get("OMP_PROC_BIND", "none"), load)


def bind_threads() -> None:
    """Keep each thread on its core. Only before torch is loaded: its runtime reads this once."""
    os.environ.setdefault("OMP_PROC_BIND", "close")
    os.environ.setdefault("OMP_PLACES", "cores")


def default_threads() -> int:
    """What OMP_NUM_THREADS says, else one thread per usable core."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdigit() and int(said) > 0 else usable_cores()


def usable_cores(cpu_folder: Path = CPU_FOLDER, cgroup_folder: Path = CGROUP_FOLDER) -> int:
    """Physical cores in the process's affinity mask, or what its cgroup's quota allows if that is less; at least 1.

    Two hyperthreads of a core share its arithmetic and its path to the memory: a second one gains nothing here.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_siblings(cpu_folder, cpu) for cpu in cpus}
    quota = _quota(cgroup_folder)
    return max(1, len(cores) if quota is None else min(len(cores), int(quota)))


def _siblings(cpu_folder: Path, cpu: int) -> str:
    """What names the core of a processor: the list of its hyperthreads."""
    try:
        return (cpu_folder / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota(cgroup_folder: Path) -> float | None:
    """Processors' worth of time that the cgroup allows (v2 or v1), None for no limit."""
    try:
        if (cgroup_folder / "cpu.max").is_file():
            quota, period = (cgroup_folder / "cpu.max").read_text().split()
        else:
            quota, period = ((cgroup_folder / "cpu" / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
        return None if quota.strip() in ("max", "-1") else float(quota) / float(period)
    except (OSError, ValueError):
        return None
