"""The result file of ``hothead bench head``: versioned JSON that tables, plots and the report read, without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hothead.bench.roofline import HeadWork, attainable_flops_per_s, head_work
from hothead.bench.schema import Machine, Record
from hothead.bench.stats import Estimate
from hothead.errors import InputError
from hothead.files import read_json, validated, write_text

FORMAT = "hothead.bench_head"
VERSION = 2  # version 1 had one head and one batch, and did not name itself

FULL = "full"
STATIC = "static"
SLOTS = "static+slots"
SLOT_UPDATE = "slot update"
FULL_REFRESH = "full_refresh update"
HEADS = (FULL, STATIC, SLOTS)
UPDATES = (SLOT_UPDATE, FULL_REFRESH)

BYTES_PER_VALUE = {"bfloat16": 2, "float16": 2, "float32": 4}
EMITTED_PER_ROUND = 4  # tokens that an update is given, all of them missing: its worst common case
LEAST_ROUNDS = 5


@dataclass(frozen=True)
class HeadBenchConfig:
    """What to time.

    Attributes:
        sizes: Vd, static rows of each pruned head.
        slots: D, dynamic rows beside them.
        batches: rows of hidden states per call, one series of rounds each; one sequence drafts with 1.
        repeats: rounds of each batch.
        max_s: seconds after which a batch begins no further round, once it has five.
    """

    sizes: tuple[int, ...] = (4096, 8192, 16384)
    slots: int = 512
    batches: tuple[int, ...] = (1,)
    repeats: int = 100
    max_s: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("slots", EMITTED_PER_ROUND), ("repeats", 2)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}; found {getattr(self, name)}")
        if not self.sizes or len(set(self.sizes)) < len(self.sizes):
            raise InputError("sizes must name at least one number of rows, each once")
        if not self.batches or min(self.batches) < 1 or len(set(self.batches)) < len(self.batches):
            raise InputError(
                f"batch must be at least 1, each once; found {', '.join(map(str, self.batches)) or 'none'}"
            )
        if not self.max_s > 0:
            raise InputError(f"max_s must be above 0; found {self.max_s}")


class Ceiling(Record):
    """What the machine can do, measured in the same run: the best of several repeats.

    Attributes:
        read_bytes_per_s: reading a buffer that fits no cache.
        gemm_flops_per_s: multiplying square matrices of the head's dtype.
        buffer_bytes: of that buffer.
        gemm_size: rows and columns of these matrices.
    """

    read_bytes_per_s: float
    gemm_flops_per_s: float
    buffer_bytes: int
    gemm_size: int


class HeadTiming(Record):
    """One variant at one batch.

    Attributes:
        variant: one of HEADS or UPDATES.
        size: static rows; of the full head, all.
        slots: dynamic rows beside them.
        batch: hidden states per call; an update has no such thing and is timed beside the first batch.
        rows: of the LM head that a call reads, or (updates) copies.
        rounds: how often it was timed.
        median_s: of one call, with the 95 % bootstrap interval over rounds.
        times_full: its time over the full head's in the same rounds, paired.
    """

    variant: str
    size: int
    slots: int
    batch: int
    rows: int
    rounds: int
    median_s: Estimate
    times_full: Estimate

    @property
    def name(self) -> str:
        """As ``static+slots 8192+512``."""
        if self.variant == FULL:
            return FULL
        return f"{self.variant} {self.size}" + (f"+{self.slots}" if self.slots else "")


class HeadSeries(Record):
    """One head: V rows of H values, and how long each variant of it takes.

    Attributes:
        weights: ``random``, or the model they are from; the time does not depend on it.
        ceiling: None in a file of version 1.
    """

    vocab_size: int
    hidden_size: int
    dtype: str
    weights: str
    ceiling: Ceiling | None
    timings: tuple[HeadTiming, ...]

    @property
    def batches(self) -> tuple[int, ...]:
        """In the order in which they were timed."""
        return tuple(dict.fromkeys(timing.batch for timing in self.timings))

    @property
    def heads(self) -> tuple[HeadTiming, ...]:
        """The timings that are no updates."""
        return tuple(timing for timing in self.timings if timing.variant in HEADS)

    def work(self, timing: HeadTiming) -> HeadWork:
        """Operations and bytes of one call of a head."""
        return head_work(timing.batch, self.hidden_size, timing.rows, BYTES_PER_VALUE[self.dtype])

    def share_of_roof(self, timing: HeadTiming) -> float | None:
        """Achieved operations per second over what the roofline allows; None without a ceiling.

        Above 1 for weights that stay in a cache, which the read bandwidth of the memory does not bound.
        """
        if self.ceiling is None:
            return None
        work = self.work(timing)
        roof = attainable_flops_per_s(work.intensity, self.ceiling.read_bytes_per_s, self.ceiling.gemm_flops_per_s)
        return work.flops / timing.median_s.value / roof


class HeadBench(Record):
    """The whole file."""

    format: str = FORMAT
    version: int = VERSION
    versions: dict[str, str]
    machine: Machine
    device: str
    config: HeadBenchConfig
    heads: tuple[HeadSeries, ...]

    def save(self, path: Path) -> None:
        """Write the JSON document, atomically."""
        write_text(path, self.model_dump_json(indent=1) + "\n")


def is_head_bench(found: object) -> bool:
    """Whether a parsed JSON document is one of these, of whatever version."""
    return isinstance(found, dict) and (found.get("format") == FORMAT or _is_version_1(found))


def read_head_bench(path: Path) -> HeadBench:
    """Read what ``hothead bench head`` wrote.

    Raises:
        InputError: missing, something else, of an unknown version, or damaged.
    """
    path = Path(path)
    found = read_json(path, "what hothead bench head wrote")
    if not is_head_bench(found):
        raise InputError(f"{path}: not a result of hothead bench head (expected format {FORMAT!r})")
    try:
        if _is_version_1(found):
            found = _from_version_1(found)
        if found.get("version") != VERSION:
            raise InputError(
                f"{path}: a head benchmark of version {found.get('version')}; this hothead reads versions 1 and "
                f"{VERSION}"
            )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: a damaged head benchmark ({error})") from error
    return validated(HeadBench, found, path, "head benchmark")


def _is_version_1(found: dict[str, Any]) -> bool:
    return "format" not in found and {"shape", "timings", "config", "dtype"} <= found.keys()


def _from_version_1(found: dict[str, Any]) -> dict[str, Any]:
    """One head, one batch, no ceiling, no interval of the medians."""
    vocab_size, hidden_size = found["shape"]
    config = dict(found["config"])
    batch = config.pop("batch")
    timings = []
    for timing in found["timings"]:
        variant, _, rows = timing["name"].rpartition(" ")
        if timing["name"] == FULL:
            variant, rows = FULL, str(vocab_size)
        size, _, slots = rows.partition("+")
        about = {"variant": variant, "size": int(size), "slots": int(slots or 0)}
        same = {name: timing[name] for name in ("rows", "times_full")}
        timings.append(
            {**about, **same, "batch": batch, "rounds": config["repeats"], "median_s": {"value": timing["median_s"]}}
        )
    return {
        "version": VERSION,
        **{name: found[name] for name in ("versions", "machine")},
        "device": "cuda" if found["machine"]["accelerator"] else "cpu",
        "config": {**config, "batches": [batch]},
        "heads": [
            {
                "vocab_size": vocab_size,
                "hidden_size": hidden_size,
                "dtype": found["dtype"],
                "weights": "",
                "ceiling": None,
                "timings": timings,
            }
        ],
    }
