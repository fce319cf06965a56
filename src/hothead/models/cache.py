"""KV caches that can forget: preallocated, appended to in place, cut back to the accepted length."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

KEYS = 32  # kKeys of attention.h
LANE_BYTES = 4  # of lanes.h
_GROWTH = 2  # a full buffer is replaced by one this many times as long


class _Layer(CacheLayerMixin):
    """Keys and values of one layer, [1, heads, capacity, head_dim]; the first ``length`` positions are valid."""

    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0
        self._dtype = dtype

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = self._buffer(key_states)
        self.values = self._buffer(value_states)
        self.is_initialized = True

    def _buffer(self, like: Tensor) -> Tensor:
        batch, heads, _, head_dim = like.shape
        return like.new_empty(batch, heads, self.capacity, head_dim, dtype=self._dtype)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append [1, heads, n, head_dim] and return views of everything valid."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.length, self.length + key_states.shape[2]
        if end > self.capacity:
            self._grow(end)
        assert self.keys is not None
        assert self.values is not None
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, needed: int) -> None:
        keys, values = self.keys, self.values
        assert keys is not None
        assert values is not None
        self.capacity = max(needed, _GROWTH * self.capacity)
        self.keys, self.values = self._buffer(keys), self._buffer(values)
        self.keys[:, :, : self.length] = keys[:, :, : self.length]
        self.values[:, :, : self.length] = values[:, :, : self.length]

    def move(self, positions: Tensor, start: int) -> None:
        """Copy ``positions``, int64 [n], to those from ``start`` on."""
        for buffer in (self.keys, self.values):
            assert buffer is not None
            buffer[:, :, start : start + len(positions)] = buffer.index_select(2, positions.to(buffer.device))

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.length = 0


class KVCache(Cache):
    """One sequence's keys and values, for any transformers model with plain attention layers.

    Args:
        num_layers: of the model.
        capacity: positions to allocate for at first; the cache grows past it on its own.
        dtype: to hold keys and values in; None: the model's.
    """

    def __init__(self, num_layers: int, capacity: int = 512, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype
        self._layers = [_Layer(capacity, dtype) for _ in range(num_layers)]
        super().__init__(layers=list(self._layers))

    @property
    def length(self) -> int:
        """Positions held."""
        return self._layers[0].length

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append [heads, n, head_dim] each to one layer; return views of all it holds, [heads, L, head_dim]."""
        all_keys, all_values = self._layers[layer].update(keys[None], values[None])
        return all_keys[0], all_values[0]

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Of the positions from ``start`` on keep those at the ascending offsets in ``path``, moved together."""
        end = start + len(path)
        if list(path) != list(range(len(path))):
            for layer in self._layers:
                layer.move(torch.tensor(path) + start, start)
        self.truncate(end)

    def truncate(self, length: int) -> None:
        """Forget everything past the first ``length`` positions. No data moves."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot cut a cache of {self.length} positions to {length}")
        for layer in self._layers:
            layer.length = length


class BlockCache:
    """One sequence's keys and values as compiled layers read them (``attention.h``), all layers together.

    Keys stand in blocks of ``KEYS``, one beside the other, so that each has a lane of a vector, of four bytes: no sums
    across lanes.

    Args:
        dtype: float32 or bfloat16, the layers'.

    Attributes:
        keys: [layers, heads, C / KEYS, head_dim / P, KEYS, P], P numbers to a lane.
        values: [layers, heads, C, head_dim].
        length: positions held.
    """

    def __init__(self, num_layers: int, heads: int, head_dim: int, dtype: torch.dtype, capacity: int = 512) -> None:
        blocks, per_lane = -(-capacity // KEYS), LANE_BYTES // dtype.itemsize
        self.keys = torch.empty(num_layers, heads, blocks, head_dim // per_lane, KEYS, per_lane, dtype=dtype)
        self.values = torch.empty(num_layers, heads, blocks * KEYS, head_dim, dtype=dtype)
        self.length = 0

    def reserve(self, n: int) -> int:
        """Count n more positions as held, for the caller to fill; returns the first of them."""
        start, self.length = self.length, self.length + n
        if self.length > self.values.shape[2]:
            layers, heads, old, head_dim = self.values.shape
            grown = BlockCache(layers, heads, head_dim, self.values.dtype, max(self.length, _GROWTH * old))
            grown.keys[:, :, : old // KEYS] = self.keys
            grown.values[:, :, :old] = self.values
            self.keys, self.values = grown.keys, grown.values
        return start

    def keep(self, start: int, path: Sequence[int]) -> None:
        """As :meth:`KVCache.keep`."""
        end = start + len(path)
        if list(path) != list(range(len(path))):
            old, new = torch.tensor(path) + start, torch.arange(start, end)
            self.keys[:, :, new // KEYS, :, new % KEYS] = self.keys[:, :, old // KEYS, :, old % KEYS]
            self.values[:, :, start:end] = self.values[:, :, old]
        self.truncate(end)

    def truncate(self, length: int) -> None:
        """As :meth:`KVCache.truncate`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot cut a cache of {self.length} positions to {length}")
        self.length = length


AnyCache = KVCache | BlockCache


def cache_argument(module: nn.Module) -> str:
    """The name under which a transformers module takes its cache; it was renamed between versions."""
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
