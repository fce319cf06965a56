"""The compiled layers: ``layer.cpp``, built once with the machine's C++ compiler and kept in the user's cache.

A build belongs to one source, torch, compiler and processor; it serves every model, so nothing is compiled again for
another size, dtype or length.
"""

import hashlib
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hothead.errors import InputError
from hothead.files import atomic_path
from hothead.packed import PackedLinear, can_pack
from hothead.spans import LINEARS, span

ENGINE_MODES = ("auto", "eager", "compiled")
SOURCE = Path(__file__).with_name("layer.cpp")
HEADERS = tuple(SOURCE.with_name(name) for name in ("attention.h", "lanes.h", "pages.h", "products.h"))
FLAGS = ("-std=c++20", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-w")


def obstacle(dtype: torch.dtype, device: str) -> str | None:
    """Why the compiled layer cannot run here, or None."""
    if torch.device(device).type != "cpu":
        return f"the compiled engine is for the CPU, not for {device}"
    if not can_pack(torch.empty(1, 1, dtype=dtype)):
        return f"the compiled engine needs oneDNN's packed products, which are not there for {dtype} on this processor"
    if not is_built() and compiler() is None:
        return "the engine has to be compiled once and no C++ compiler is here (CXX, c++, g++ or clang++)"
    return None


def compiler() -> str | None:
    """The C++ compiler's path."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((found for name in names if (found := shutil.which(name))), None)


def is_built() -> bool:
    """Whether :func:`build` has nothing to do."""
    return library().is_file()


def build() -> Path:
    """Compile, unless it was done before: some 15 seconds on one core.

    Raises:
        InputError: the compiler is missing or fails, or the cache folder cannot be written.
    """
    path = library()
    if path.is_file():
        return path
    found = compiler()
    if found is None:
        raise InputError("no C++ compiler is here; install one, or use --engine-mode eager")
    root = Path(torch.__file__).parent
    includes = [f"-I{root / 'include'}", f"-I{root / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"]
    libraries = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        object_file = temporary.with_suffix(".o")
        # Linked apart, without -ffast-math: linking with it would change how the whole process rounds tiny numbers.
        compile_command = [found, *FLAGS, abi, *includes, "-c", str(SOURCE), "-o", str(object_file)]
        link_command = [found, "-shared", "-fopenmp", str(object_file), "-o", str(temporary), *libraries]
        try:
            for command in (compile_command, link_command):
                _run(command)
        finally:
            object_file.unlink(missing_ok=True)
    return path


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        first = next((line for line in lines if "error" in line), lines[0] if lines else f"status {done.returncode}")
        raise InputError(f"{command[0]} cannot compile the engine ({first}); use --engine-mode eager")


def library() -> Path:
    """Where the build is, or will be: one file a source, torch, flags and processor."""
    sources = [path.read_text(encoding="utf-8") for path in (SOURCE, *HEADERS)]
    said = "\n".join([*sources, torch.__version__, *FLAGS, _processor()])
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hothead"
    return folder / f"layer-{hashlib.sha256(said.encode()).hexdigest()[:16]}.so"


def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    told = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return "\n".join(sorted(told)) or f"{platform.machine()} {platform.processor()}"


@cache
def native_classes() -> Any:
    """The namespace of the classes that ``layer.cpp`` defines, built if need be.

    Raises:
        InputError: see :func:`build`.
    """
    torch.classes.load_library(str(build()))
    return torch.classes.hothead


def argmax(logits: Tensor) -> Tensor:
    """[n, V] -> int64 [n], the first of the greatest, as torch's; which takes 100 us a bf16 row of 49,152."""
    return torch.ops.hothead.argmax(logits) if _is_native(logits) else logits.argmax(dim=-1)


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[n, V] -> what :func:`argmax` gives, and its log-probability, float32 [n]."""
    if _is_native(logits):
        return torch.ops.hothead.likeliest(logits)
    highest = logits.max(dim=-1)
    return highest.indices, highest.values.float() - logits.float().logsumexp(dim=-1)


def _is_native(logits: Tensor) -> bool:
    is_readable = logits.device.type == "cpu" and logits.dtype in (torch.bfloat16, torch.float32)
    return is_readable and bool(native_classes.cache_info().currsize)


class NativeLinear(PackedLinear):
    """``x @ weight.T + bias`` by ``products.h``: on a copy of the weight in blocks, or on the rows themselves.

    Every row of the result has the same bits whatever the other rows are, which oneDNN's products do not promise.
    """

    packs_written_rows = False

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        super().__init__(weight.contiguous(), bias, pack=False)
        classes = native_classes()  # their library defines the product of rows too
        self._blocks: Any = None
        if pack:
            self._blocks = classes.Linear(self.weight, self.bias)
            self.weight = self.weight.new_empty(0)

    def reload(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """As :meth:`PackedLinear.reload`."""
        if self._blocks is None:
            return super().reload(weight, bias)
        self.bias = bias
        self._blocks = native_classes().Linear(weight.detach().contiguous(), bias)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        with span(LINEARS):
            if self._blocks is not None:
                return self._blocks.forward(x)
            return torch.ops.hothead.rows_linear(x, self.weight, self.bias)
