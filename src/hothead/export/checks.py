"""What an array of numbers really is: target ids, offsets, a mask, counts. What is not what it should be is refused.

Every file format holds plain numbers, and one convention read as another often loads without a complaint: offsets
are valid ids, a mask is a list of zeros and ones. Each refusal here says what the numbers look like.
"""

from typing import Any

import numpy as np

from hothead.errors import InputError, TokenizerMismatch

MAX_VOCAB_SIZE = 1 << 24  # no tokenizer comes near; a damaged size must not be allocated


def check_vocab_size(size: int) -> None:
    """
    Raises:
        InputError: ``size`` cannot be a number of target ids.
    """
    if not 1 <= size <= MAX_VOCAB_SIZE:
        raise InputError(f"a target has between 1 and {MAX_VOCAB_SIZE} ids; found a vocabulary size of {size}")


def as_array(raw: Any, what: str) -> np.ndarray:
    """``raw`` (a list or an array) as a one-dimensional array.

    Raises:
        InputError: it is something else, or empty.
    """
    if isinstance(raw, list | tuple):
        kinds = {type(item) for item in raw}
        if kinds == {bool}:
            raw = np.array(raw, dtype=bool)
        elif kinds <= {int} and all(-(2**63) <= item < 2**63 for item in raw):
            raw = np.array(raw, dtype=np.int64)
        elif kinds <= {int, float}:
            raw = np.array(raw, dtype=np.float64)
        else:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise InputError(f"expected {what} as whole numbers; found a list of {names}")
    if not isinstance(raw, np.ndarray):
        raise InputError(f"expected {what}; found a {type(raw).__name__}")
    if raw.ndim != 1:
        raise InputError(f"expected {what} in one row; found shape {list(raw.shape)}")
    if not raw.size:
        raise InputError(f"expected {what}; found an empty list: a map of no tokens")
    return raw


def target_ids(raw: Any, vocab_size: int) -> np.ndarray:
    """``raw`` as target ids in the file's order: int64 [n], each once, all in ``[0, vocab_size)``.

    Raises:
        InputError: anything else, by what it looks like.
    """
    array = as_array(raw, "target ids")
    if array.dtype == bool:
        raise InputError(f"expected target ids; found a mask of {array.size} true and false values: a t2d")
    if array.dtype.kind == "f":
        raise InputError(
            f"expected target ids; found floats ({array.dtype}), such as {array[0]:g}: scores or frequencies by id"
        )
    if array.dtype.kind not in "iu":
        raise InputError(f"expected target ids; found {array.dtype}")
    _refuse_lookalikes(array, vocab_size)
    if (least := int(array.min())) < 0:
        hint = "an inverse map (-1: not in the draft)" if array.size == vocab_size else "padding, or offsets"
        raise InputError(f"target ids are 0 or more; found {least}, which looks like {hint}")
    if (most := int(array.max())) >= vocab_size:
        raise InputError(
            f"target id {most} is past the target's {vocab_size} ids: the map was made for another tokenizer or a "
            "larger head"
        )
    array = array.astype(np.int64)
    unique, counts = np.unique(array, return_counts=True)
    if len(unique) != len(array):
        twice = int(unique[counts > 1][0])
        raise InputError(
            f"target id {twice} comes {int(counts.max())} times: several draft rows would stand for one token"
        )
    return array


def _refuse_lookalikes(array: np.ndarray, vocab_size: int) -> None:
    """Refuse integers that repeat because they are not ids at all."""
    unique = np.unique(array)
    if len(unique) == len(array):
        return
    if set(unique.tolist()) == {0, 1} and array.size > 2:
        raise InputError(
            f"expected target ids; found {array.size} zeros and ones: a mask (t2d) stored as {array.dtype}"
        )
    if not array.any():
        raise InputError(f"expected target ids; found {array.size} zeros: a d2t that was never filled in")
    if looks_like_offsets(array, vocab_size):
        raise InputError(
            "expected target ids; found numbers that look like EAGLE-3 offsets (d2t: target id = row + offset); save "
            "them as d2t.npy to have them read so"
        )
    if array.size == vocab_size and array.min() >= 0:
        raise InputError(
            f"expected target ids; found {array.size} numbers, one for each id, with repeats: frequencies by id. "
            "Name the format (--from vllm-frequency) and a size to read them so"
        )


def looks_like_offsets(array: np.ndarray, vocab_size: int) -> bool:
    """Whether ``array`` read as d2t offsets gives ascending target ids, which no other list does by chance."""
    if array.dtype.kind not in "iu" or not array.size or array.min() < 0 or np.any(np.diff(array.astype(np.int64)) < 0):
        return False
    return int(array[-1]) + array.size - 1 < vocab_size


def ids_of_offsets(
    raw: Any, t2d: Any | None = None, vocab_size: int | None = None
) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """EAGLE-3's ``d2t`` (target id = row + offset) and ``t2d`` (a mask over target ids), checked against each other.

    Args:
        raw: d2t, whole numbers [Vd].
        t2d: mask [V], if the file has one.
        vocab_size: V, where no t2d says it.

    Returns:
        (int64 [Vd] target id of each draft row in row order, V, remarks)

    Raises:
        InputError: not such a pair, by what it looks like.
        TokenizerMismatch: t2d is over another number of ids than ``vocab_size``.
    """
    d2t = as_array(raw, "d2t offsets")
    if d2t.dtype == bool:
        raise InputError(f"d2t must be offsets; found a mask of {d2t.size} values: that is a t2d")
    if d2t.dtype.kind not in "iu":
        raise InputError(f"d2t must be whole numbers; found {d2t.dtype}")
    notes = [] if d2t.dtype == np.int64 else [f"d2t is {d2t.dtype}; engines expect int64"]
    mask = None
    if t2d is not None:
        mask = as_array(t2d, "a t2d mask")
        if mask.dtype != bool:
            if mask.dtype.kind not in "iu" or not np.isin(mask, (0, 1)).all():
                raise InputError(f"t2d must be a mask of true and false; found {mask.dtype}")
            notes.append(f"t2d is {mask.dtype}; engines expect bool")
            mask = mask.astype(bool)
        if vocab_size is not None and mask.size != vocab_size:
            raise TokenizerMismatch(
                f"t2d is a mask over {mask.size} target ids and the target has {vocab_size}: the map is of another one"
            )
        vocab_size = mask.size
    if vocab_size is None:
        raise InputError(
            "a d2t without t2d does not say how many ids the target has; give --target or --target-vocab-size"
        )
    check_vocab_size(vocab_size)
    if d2t.size > vocab_size:
        raise InputError(f"d2t has {d2t.size} rows, more than the target's {vocab_size} ids")
    offsets = d2t.astype(np.int64)
    ids = offsets + np.arange(d2t.size)
    wrong = _why_not_offsets(offsets, ids, mask, vocab_size)
    if wrong:
        raise InputError(wrong)
    if np.any(np.diff(ids) < 0):
        notes.append("draft rows are not in the order of their target ids")
    return ids, vocab_size, tuple(notes)


def _why_not_offsets(  # noqa: PLR0911 - one reason a line
    offsets: np.ndarray, ids: np.ndarray, mask: np.ndarray | None, vocab_size: int
) -> str:
    """Why ``ids = row + offsets`` is not a map, or "" if it is."""
    count = len(offsets)
    unique, rows = np.unique(ids, return_counts=True)
    is_whole = len(unique) == count and unique[0] >= 0 and unique[-1] < vocab_size
    if mask is not None and is_whole and np.array_equal(np.flatnonzero(mask), unique):
        return ""  # the two say the same
    if np.all(np.diff(offsets) > 0) and offsets[0] >= 0 and offsets[-1] < vocab_size and count > 1:
        # Offsets never all differ, unless no two of the draft's ids are neighbours.
        return "d2t holds what look like absolute target ids (llama.cpp's form), not offsets"
    if not offsets.any() and count < vocab_size:
        return (
            f"d2t is all zeros for {count} of {vocab_size} ids: it was never filled in, and a reader would take the "
            f"draft's rows for target ids 0 to {count - 1}"
        )
    if unique[0] < 0 or unique[-1] >= vocab_size:
        outside = int(unique[0]) if unique[0] < 0 else int(unique[-1])
        return f"d2t leads to target id {outside}, outside the target's {vocab_size} ids"
    if len(unique) != count:
        return f"d2t leads {int(rows.max())} draft rows to target id {int(unique[rows > 1][0])}"
    if mask is None:
        return ""
    shared = int(mask[unique].sum())
    return (
        f"d2t and t2d disagree: d2t leads to {count} ids, t2d marks {int(mask.sum())}, and {shared} are in both. "
        "One of them is stale; make both again"
    )


def counts_by_id(raw: Any, vocab_size: int) -> np.ndarray:
    """Frequencies indexed by target id as counts: int64 [V].

    Raises:
        InputError: not one whole, non-negative number for each of ``vocab_size`` ids.
    """
    array = as_array(raw, "frequencies by target id")
    if array.size != vocab_size:
        raise InputError(
            f"expected a frequency for each of the target's {vocab_size} ids; found {array.size}: made for another "
            "tokenizer, or not frequencies by id"
        )
    if array.dtype == bool:
        raise InputError(f"expected frequencies; found a mask of {array.size} values")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all() or np.any(array != np.floor(array)) or np.abs(array).max() >= 2**63:
            raise InputError("frequencies must be counts, whole numbers; found fractions: shares or probabilities")
    elif array.dtype.kind not in "iu":
        raise InputError(f"expected frequencies; found {array.dtype}")
    if array.min() < 0:
        raise InputError(f"frequencies are 0 or more; found {array.min()}")
    return array.astype(np.int64)


def counts_of_pairs(pairs: dict[Any, Any], vocab_size: int) -> np.ndarray:
    """``{target id: count}`` as counts: int64 [V].

    Raises:
        InputError: keys that are not ids of the target, or values that are not counts.
    """
    if not pairs:
        raise InputError("expected counts by target id; found an empty table")
    counts = np.zeros(vocab_size, dtype=np.int64)
    for key, value in pairs.items():
        for number, name in ((key, "id"), (value, "count")):
            if type(number) is not int:
                raise InputError(f"expected {{id: count}} in whole numbers; found the {name} {number!r}")
        if not 0 <= key < vocab_size:
            raise InputError(f"id {key} is outside the target's {vocab_size} ids: counted with another tokenizer")
        if not 0 <= value < 2**63:
            raise InputError(f"id {key} is counted {value} times; counts are 0 or more")
        counts[key] = value
    return counts
