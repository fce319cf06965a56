"""Training text on disk: safetensors shards holding token ids and the target's features.

A shard's tensors: `ids` int32 [N], `features` bfloat16 [N, H] (what the LM head reads at each token), in shards
for EAGLE-3 `taps` bfloat16 [N, 3 * H] (what goes into three of the target's layers),
`offsets` int64 [n + 1] (conversation i is `offsets[i]:offsets[i + 1]`), `answer_start` int32 [n] (first
answer token within it) and `temperature` float32 [n].
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True)
class Conversation:
    """One conversation: `ids` int32 [n], where its answer starts, and how it was drawn (0 is greedy)."""

    ids: np.ndarray
    answer_start: int
    temperature: float


@dataclass(frozen=True)
class Example:
    """A stored conversation: ids int64 [n], features bfloat16 [n, H], where its answer starts, its source.

    `inputs` bfloat16 [n, F] is what a draft reads of the target: the features, or the taps of an EAGLE-3 shard.
    """

    ids: Tensor
    features: Tensor
    answer_start: int
    temperature: float
    source: str
    inputs: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def held_out(self) -> bool:
        """Whether the example is kept from training: one in fifty, by a hash of its ids."""
        digest = hashlib.blake2b(self.ids.to(torch.int32).numpy().tobytes(), digest_size=4).digest()
        return int.from_bytes(digest, "little") % 50 == 0


def shard_path(folder: Path, source: str, index: int) -> Path:
    """Name of shard `index` of `source`."""
    return folder / f"{source}-{index:04d}.safetensors"


def write_shard(path: Path, items: list[tuple[Conversation, Tensor]], source: str) -> None:
    """Write conversations with their features (bfloat16 [n, H] each), atomically."""
    tensors = {
        "ids": torch.from_numpy(np.concatenate([c.ids for c, _ in items]).astype(np.int32)),
        "features": torch.cat([f for _, f in items]),
        "offsets": torch.tensor(np.cumsum([0] + [len(c.ids) for c, _ in items])),
        "answer_start": torch.tensor([c.answer_start for c, _ in items], dtype=torch.int32),
        "temperature": torch.tensor([c.temperature for c, _ in items], dtype=torch.float32),
    }
    save_shard(path, tensors, source)


def save_shard(path: Path, tensors: dict[str, Tensor], source: str) -> None:
    """Write a shard's tensors, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    save_file(tensors, temporary, metadata={"source": source})
    temporary.rename(path)


def open_shard(path: Path) -> tuple[dict[str, Tensor], str]:
    """A shard's tensors and its source."""
    with safe_open(path, "pt") as f:
        return {k: f.get_tensor(k) for k in f.keys()}, (f.metadata() or {}).get("source", path.stem)  # noqa: SIM118


def read_shard(path: Path) -> list[Example]:
    """Read a shard; the features stay views of the memory-mapped file."""
    t, source = open_shard(path)
    inputs = t.get("taps", t["features"])
    ids, bounds = t["ids"].long(), t["offsets"].tolist()
    return [
        Example(ids[a:b], t["features"][a:b], int(start), float(temperature), source, inputs[a:b])
        for a, b, start, temperature in zip(bounds, bounds[1:], t["answer_start"], t["temperature"], strict=False)
    ]


def read_shards(folder: Path) -> list[Example]:
    """Read every finished shard under `folder`, in name order."""
    return [e for p in sorted(folder.glob("*.safetensors")) for e in read_shard(p)]
