"""Draft checkpoints: which kind one is, which target id each row of its head stands for, and what is wrong with it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from hothead.errors import DraftMismatch, InputError
from hothead.export import checks
from hothead.export.arrays import load_npy, vocab_size_of
from hothead.export.base import ids_digest
from hothead.export.checkpoint import Checkpoint, StoredTensor, array_of

Kind = Literal["eagle3", "dflash", "eagle", "mtp", "standalone", "unknown"]
OWN_HEAD: tuple[Kind, ...] = ("eagle3", "dflash")  # stock engines load these with a head of fewer rows

KINDS: dict[Kind, str] = {
    "eagle3": "an EAGLE-3 draft (own head, d2t)",
    "dflash": "a DFlash draft (own head, d2t)",
    "eagle": "an EAGLE-1/2 draft (the target's head)",
    "mtp": "a multi-token-prediction layer (the target's head)",
    "standalone": "a causal LM of its own",
    "unknown": "no draft of a known kind",
}


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file. An ``error`` makes an engine fail or draft nonsense; a ``warning`` costs speed."""

    severity: Literal["error", "warning"]
    text: str


@dataclass(frozen=True)
class Draft:
    """A checkpoint seen as a draft."""

    checkpoint: Checkpoint

    @property
    def config(self) -> dict[str, Any]:
        return self.checkpoint.config

    @cached_property
    def layer_config(self) -> dict[str, Any]:
        """The part of the config that describes the layer: speculators keeps it apart."""
        inner = self.config.get("transformer_layer_config")
        return inner if isinstance(inner, dict) else self.config

    @cached_property
    def kind(self) -> Kind:
        config, names = self.config, self.checkpoint.tensors
        words = " ".join(
            str(config.get(key, "")) for key in ("architectures", "speculators_model_type", "model_type")
        ).lower()
        if "dflash" in words or "dspark" in words or "dflash_config" in config:
            return "dflash"
        fc = self.checkpoint.named("fc.weight")
        has_map = self.checkpoint.named("d2t") is not None
        if has_map or "eagle3" in words or self.checkpoint.named("hidden_norm.weight"):
            return "eagle3"
        if any("shared_head" in name or name.startswith("mtp.") for name in names) or "mtp" in words:
            return "mtp"
        if fc is not None:
            return "eagle" if len(fc.shape) == 2 and fc.shape[1] == 2 * fc.shape[0] else "eagle3"
        if any(".layers." in name or ".h." in name for name in names):
            return "standalone"
        return "unknown"

    @cached_property
    def head(self) -> StoredTensor | None:
        """The rows that score the draft's tokens, [Vd, H]; None where the target's are used.

        Raises:
            DraftMismatch: a tensor of that name that is no table.
        """
        found = self.checkpoint.named("lm_head.weight", "shared_head.head.weight")
        if found is not None and len(found.shape) != 2:
            raise DraftMismatch(f"{found.name} has shape {list(found.shape)}; expected [rows, hidden size]")
        return found

    @property
    def head_rows(self) -> int | None:
        return None if self.head is None else self.head.shape[0]

    @cached_property
    def vocab_size(self) -> int | None:
        """V, the target ids it counts: its embedding's rows, else what the config says, else t2d's length."""
        embedding = self.checkpoint.named("embed_tokens.weight", "embeddings.weight", "wte.weight")
        said = vocab_size_of(self.config)
        if said is not None:
            return said
        for tensor in (embedding, self.checkpoint.named("t2d")):
            if tensor is not None and tensor.shape:
                return tensor.shape[0]
        return None

    @property
    def draft_vocab_size(self) -> Any:
        return self.config.get("draft_vocab_size")

    def row_ids(self, vocab_size: int | None = None) -> tuple[np.ndarray, int, tuple[str, ...]]:
        """(target id of each row of the head, int64 [Vd]; V; remarks).

        Raises:
            DraftMismatch: no head of its own, or no way to know what its rows stand for.
            InputError: a damaged map.
        """
        if self.head is None:
            raise DraftMismatch("it has no lm_head.weight: it drafts with the target's head and has no rows of its own")
        rows = self.head.shape[0]
        size = vocab_size if vocab_size is not None else self.vocab_size
        d2t, t2d = self.checkpoint.named("d2t"), self.checkpoint.named("t2d")
        if d2t is None:
            if size is not None and rows != size:
                raise DraftMismatch(
                    f"its head has {rows} rows for {size} target ids and it has no d2t: engines take the rows for "
                    f"ids 0 to {rows - 1}. Take d2t from the training run; it cannot be told from the weights"
                )
            return np.arange(rows), rows, ()
        ids, size, notes = checks.ids_of_offsets(array_of(d2t), None if t2d is None else array_of(t2d), size)
        if len(ids) != rows:
            raise DraftMismatch(f"d2t has {len(ids)} rows and lm_head.weight {rows}: they do not belong together")
        said = self.checkpoint.metadata.get("target_ids_sha256")
        if said is not None and said != ids_digest(np.sort(ids), size):
            raise DraftMismatch(
                "its d2t is not the one its head was pruned with: the map was regenerated and every row now stands for "
                "another token. Restore the old d2t, or train the head again for the new one"
            )
        return ids, size, notes


def problems_of(draft: Draft, vocab_size: int | None = None) -> list[Problem]:
    """What is wrong with a draft that has, or should have, a head of its own."""
    found: list[Problem] = []

    def error(text: str) -> None:
        found.append(Problem("error", text))

    if draft.kind not in OWN_HEAD:
        return found
    said, rows, size = draft.draft_vocab_size, draft.head_rows, vocab_size or draft.vocab_size
    if said is not None and (type(said) is not int or said < 1):
        error(f"config says draft_vocab_size={said!r}; expected a number of rows above 0")
        said = None
    if vocab_size is not None and draft.vocab_size not in (None, vocab_size):
        error(f"it counts {draft.vocab_size} target ids and the target has {vocab_size}: trained for another target")
    if rows is None:
        error("it has no lm_head.weight: engines draft with the target's full head")
    elif said is None and size is not None and rows != size:
        error(
            f"its head has {rows} rows and the config names no draft_vocab_size: engines make room for {size} rows and "
            "fail, or take the target's full head"
        )
    elif said is not None and rows != said:
        error(f"lm_head.weight has {rows} rows and the config says draft_vocab_size={said}: a shape error at load")
    if rows is not None and (draft.config.get("tie_word_embeddings") or draft.layer_config.get("tie_word_embeddings")):
        text = "tie_word_embeddings is true: SGLang drops the draft's own head and uses its full embedding"
        found.append(Problem("warning", text))  # `hothead prune` writes it false
    if rows is not None:
        try:
            _, _, notes = draft.row_ids(vocab_size)
            found += [Problem("warning", note) for note in notes]
        except (DraftMismatch, InputError) as problem:
            error(str(problem))
        else:
            found += _beside(draft)
    return found


def _beside(draft: Draft) -> list[Problem]:
    """A d2t.npy in the folder that is not the d2t inside the checkpoint is left over from another training run."""
    path, stored = draft.checkpoint.folder / "d2t.npy", draft.checkpoint.named("d2t")
    if not path.is_file() or stored is None:
        return []
    try:
        beside = load_npy(path)
    except InputError as problem:
        return [Problem("warning", str(problem))]
    if np.array_equal(beside, array_of(stored)):
        return []
    return [Problem("warning", "d2t.npy beside the checkpoint is not the d2t inside it: one of them is stale")]


def end_ids(config: dict[str, Any]) -> list[int]:
    """The ids that end a text, from a config: it may name one, or a list."""
    value = config.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return [item for item in values if type(item) is int and item >= 0]
