"""Options that convert, inspect and prune share: what is known of the target, how much to keep, how it is served."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from hothead.cli.common import say
from hothead.cli.engine_options import option
from hothead.errors import InputError
from hothead.export.arrays import read_config, vocab_size_of
from hothead.export.base import Known, TokenMap
from hothead.export.gguf import target_vocab_size
from hothead.export.gguf_file import read_gguf
from hothead.ranking.ranking import TokenRanking
from hothead.tokenizer import Tokenizer, fingerprint, load_tokenizer, resolve_model
from hothead.vocab import DraftVocab


@dataclass(frozen=True)
class TargetOptions:
    """The target that a file is for."""

    target: Annotated[str | None, option("The target: folder, .gguf, Hub name or package:NAME.", metavar="MODEL")] = (
        None
    )
    target_vocab_size: Annotated[int | None, option("Rows of the target's head, where --target is not at hand.")] = None

    def known(self) -> tuple[Known, Tokenizer]:
        """What is known of the target, and its tokenizer (None without ``--target``).

        Raises:
            InputError: the target cannot be read, or the two options disagree.
        """
        if self.target is None:
            return Known(self.target_vocab_size), None
        size, tokenizer = head_rows(self.target), load_tokenizer(self.target)
        known = Known(self.target_vocab_size, fingerprint(tokenizer))
        return Known(known.size(size), known.tokenizer_fingerprint), tokenizer


def head_rows(spec: str) -> int | None:
    """V, the rows of a model's head, from its config or GGUF header; no weights are loaded.

    Raises:
        InputError: no such model.
    """
    source = resolve_model(spec)
    folder = Path(source.location)
    if source.gguf_file is not None:
        file = read_gguf(folder / source.gguf_file)
        embedding = file.tensors.get("token_embd.weight")
        return target_vocab_size(file) if embedding is None else embedding.rows
    if folder.is_dir():
        return vocab_size_of(read_config(folder))
    from transformers import AutoConfig

    try:
        return vocab_size_of(AutoConfig.from_pretrained(source.location).to_dict())
    except (OSError, ValueError, KeyError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{spec}: no model configuration to be had ({first})") from error


@dataclass(frozen=True)
class SizeOptions:
    """How much of a ranking to keep; one of them."""

    size: Annotated[int | None, option("Rows to keep of a ranking, or one of the next three.")] = None
    ratio: Annotated[float | None, option("Share of the target's ids to keep.")] = None
    pruning_ratio: Annotated[float | None, option("Share of the target's ids to drop.")] = None
    coverage: Annotated[float | None, option("Share of the ranked tokens to cover.")] = None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


def map_of_ranking(ranking: TokenRanking, known: Known, sizes: dict[str, Any]) -> TokenMap:
    """The most frequent ids as a map, in the order of their frequency.

    Raises:
        InputError: no size or several, or one that makes no sense.
    """
    if known.tokenizer_fingerprint and ranking.tokenizer_fingerprint:
        ranking.check_tokenizer(known.tokenizer_fingerprint)
    vocab = DraftVocab.from_ranking(ranking, target_vocab_size=known.target_vocab_size, **sizes)
    remark_unseen(vocab)
    by_rank = ranking.target_ids[vocab.t2d[ranking.target_ids]]
    past_tokenizer = vocab.target_ids[vocab.target_ids >= ranking.vocab_size]  # rows that pad the head
    return TokenMap(vocab, ranked_ids=np.concatenate([by_rank, past_tokenizer]))


def remark_unseen(vocab: DraftVocab) -> None:
    if vocab.unseen:
        say(
            f"hothead: the ranking saw {len(vocab) - vocab.unseen} of the {len(vocab)} ids; {vocab.unseen} were filled "
            "in by id. Rank more text, or ask for fewer"
        )
