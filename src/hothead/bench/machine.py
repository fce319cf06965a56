"""What a benchmark must say about itself: machine, versions, and which models these were."""

import hashlib
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from hothead.bench.schema import Machine, ModelIdentity
from hothead.errors import InputError
from hothead.tokenizer import resolve_model

PACKAGES = ("hothead", "torch", "transformers")
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf")
DIGESTED_BYTES = 1 << 26  # of each end of a weight file; all of it in a small one


def this_machine(device: str = "cpu") -> Machine:
    """This machine, as far as it bears on speed; nothing that names it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    accelerator = torch.cuda.get_device_name(device) if device.startswith("cuda") else ""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_gib=round(memory, 1),
        accelerator=accelerator,
        binding=os.environ.get("OMP_PROC_BIND", "none"),
    )


def peak_memory_gib() -> float | None:
    """The most memory that this process ever held; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak * (1 if sys.platform == "darwin" else 1024) / 2**30, 2)


def versions(*more: str) -> dict[str, str]:
    """Of Python and the packages that decide speed and text, and of ``more`` packages."""
    found = {"python": platform.python_version()}
    for package in (*PACKAGES, *more):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def model_identity(spec: str) -> ModelIdentity:
    """The model that ``spec`` names: its name without folders, and a digest of its weight files if they are local."""
    name = Path(spec).name if Path(spec).exists() else spec
    return ModelIdentity(name=name, fingerprint=_weights_digest(spec))


def _weights_digest(spec: str) -> str:
    folder = Path(spec).expanduser()
    if not folder.is_dir():
        try:
            source = resolve_model(spec)
        except InputError:
            return ""
        folder = Path(source.location)
        if source.gguf_file is not None:
            return _digest([folder / source.gguf_file])
    if not folder.is_dir():
        return ""
    return _digest(sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES))


def _digest(files: list[Path]) -> str:
    if not files:
        return ""
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\t{size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(DIGESTED_BYTES))
            if size > DIGESTED_BYTES:
                file.seek(max(DIGESTED_BYTES, size - DIGESTED_BYTES))
                digest.update(file.read())
    return digest.hexdigest()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()
