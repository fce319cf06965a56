"""From settings to the draft vocabulary: reading the file they name and choosing rows."""

import dataclasses
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hothead.errors import InputError
from hothead.export.base import Known, read_map
from hothead.files import read_json
from hothead.ranking.ranking import TokenRanking
from hothead.tokenizer import Tokenizer, byte_target_ids, fingerprint, load_tokenizer, special_target_ids
from hothead.vllm_plugin.settings import Settings
from hothead.vocab import ROW_MULTIPLE, DraftVocab

NO_IDS = np.empty(0, dtype=np.int64)


def make_vocab(settings: Settings, target_vocab_size: int, tokenizer: str | None) -> DraftVocab:
    """The static rows that ``settings`` ask for, of a target head of ``target_vocab_size`` rows.

    Args:
        tokenizer: where the target's tokenizer is; None for no look at it (no fingerprint is checked then, and
            only a ranking knows the special tokens).

    Raises:
        HotheadError: a file cannot be read, is of another tokenizer, or the sizes do not fit.
    """
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    if settings.ranking is not None:
        ranking = TokenRanking.load(settings.ranking)
        if loaded is not None:
            ranking.check_tokenizer(fingerprint(loaded))
        return _from_ranking(settings, ranking, target_vocab_size)
    if settings.token_ids_by_frequency is not None:
        return _from_ranking(settings, _ranking_of(settings.token_ids_by_frequency, loaded), target_vocab_size)
    if settings.token_map is not None:
        known = Known(target_vocab_size, "" if loaded is None else fingerprint(loaded))
        content = read_map(settings.token_map, known).content
        if isinstance(content, TokenRanking):
            raise InputError(f"{settings.token_map}: holds counts, not a map; name it as `ranking` and say a size")
        if settings.sizes and content.ranked_ids is None:
            raise InputError(
                f"{settings.token_map}: its ids are in no order of frequency, so it cannot be cut to a size"
            )
        ordered, source = content.ordered_ids, settings.token_map.name
    else:
        assert settings.token_ids is not None  # Settings sees to it
        ordered, source = np.array(settings.token_ids, dtype=np.int64), "token_ids"
    kept, rest = _cut(settings, ordered, target_vocab_size)
    required = _required(settings, loaded)
    vocab = DraftVocab.from_target_ids(
        np.concatenate([kept, np.setdiff1d(required, kept)]), target_vocab_size, source=source
    )
    rest = rest[~np.isin(rest, vocab.target_ids)]
    return dataclasses.replace(vocab, next_target_ids=rest)


def _from_ranking(settings: Settings, ranking: TokenRanking, target_vocab_size: int) -> DraftVocab:
    if settings.special_tokens == "ignore":
        ranking = dataclasses.replace(ranking, special_target_ids=NO_IDS, byte_target_ids=NO_IDS)
    elif settings.special_tokens != "keep":
        special = np.array(settings.special_tokens, dtype=np.int64)
        ranking = dataclasses.replace(ranking, special_target_ids=special, byte_target_ids=NO_IDS)
    return DraftVocab.from_ranking(ranking, **settings.sizes, target_vocab_size=target_vocab_size)


def _required(settings: Settings, tokenizer: Tokenizer | None) -> np.ndarray:
    if settings.special_tokens == "ignore" or (settings.special_tokens == "keep" and tokenizer is None):
        return NO_IDS
    if settings.special_tokens == "keep":
        return np.union1d(special_target_ids(tokenizer), byte_target_ids(tokenizer))
    return np.array(settings.special_tokens, dtype=np.int64)


def _cut(settings: Settings, ordered: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids to keep of a map in frequency order, and those that would have come next."""
    size = settings.size
    if settings.ratio is not None:
        size = math.ceil(total * settings.ratio)
    elif settings.pruning_ratio is not None:
        size = math.ceil(total * (1 - settings.pruning_ratio))
    if size is None:
        return ordered, NO_IDS
    if size > len(ordered):
        raise InputError(f"{settings.token_map}: holds {len(ordered)} ids, fewer than the {size} rows asked for")
    size = min(len(ordered), math.ceil(size / ROW_MULTIPLE) * ROW_MULTIPLE)
    return ordered[:size], ordered[size:]


def _ranking_of(by_frequency: Path | tuple[float, ...], tokenizer: Tokenizer | None) -> TokenRanking:
    values = by_frequency if isinstance(by_frequency, tuple) else _read_list(by_frequency)
    frequencies = np.asarray(values, dtype=np.float64)
    if frequencies.ndim != 1 or not np.isfinite(frequencies).all() or (frequencies < 0).any():
        raise InputError("token_ids_by_frequency must hold one frequency, 0 or more, for each target id")
    # Shares of the corpus are frequencies too: counts keep their order to nine figures.
    if not np.array_equal(frequencies, np.rint(frequencies)):
        frequencies = np.rint(frequencies / frequencies.max() * 1e9)
    return TokenRanking(
        frequencies.astype(np.int64),
        "" if tokenizer is None else fingerprint(tokenizer),
        NO_IDS if tokenizer is None else special_target_ids(tokenizer),
        NO_IDS if tokenizer is None else byte_target_ids(tokenizer),
    )


def _read_list(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix == ".json":
        return read_json(path, "a list of frequencies by target id")
    if path.suffix == ".pt":
        import torch

        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise InputError(f"{path}: holds more than numbers, which could run code; refused") from error
        except Exception as error:  # damaged pickles fail in as many ways as there are opcodes
            raise InputError(f"{path}: not a readable .pt file ({type(error).__name__})") from error
    raise InputError(f"{path}: expected .json or .pt; found {path.suffix or 'no suffix'}")
