"""Maps as JSON and as plain text: for eyes, scripts and version control."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from hothead.errors import InputError
from hothead.export import checks
from hothead.export.base import Content, Known, Loaded, TokenMap, check_digest, ids_digest
from hothead.files import write_text
from hothead.ranking.ranking import TokenRanking

MAP_FORMAT = "hothead.token_map"
COUNTS_FORMAT = "hothead.token_counts"
MAX_DIGITS = 18  # of one number: more would not fit an int64


def read(path: Path, known: Known, name: str | None) -> Loaded:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"not readable as text ({error}); expected a token map") from error
    return (
        _read_text(text, known) if (name == "text" or text.lstrip()[:1] not in ("{", "[")) else _read_json(text, known)
    )


def write(path: Path, content: Content, name: str) -> None:
    if isinstance(content, TokenRanking):
        document: dict[str, Any] = {
            "format": COUNTS_FORMAT,
            "version": 1,
            "tokenizer_fingerprint": content.tokenizer_fingerprint,
            "special_target_ids": content.special_target_ids.tolist(),
            "byte_target_ids": content.byte_target_ids.tolist(),
            "counts": content.counts.tolist(),
            "sha256": ids_digest(content.counts, content.vocab_size),
        }
        write_text(path, json.dumps(document) + "\n")
        return
    ids, vocab = content.ordered_ids, content.vocab
    about = {
        "target_vocab_size": vocab.target_vocab_size,
        "tokenizer_fingerprint": vocab.tokenizer_fingerprint,
        "ranked": content.ranked_ids is not None,
        "sha256": ids_digest(ids, vocab.target_vocab_size),
    }
    if name == "json":
        document = {"format": MAP_FORMAT, "version": 1, **about, "target_ids": ids.tolist()}
        write_text(path, json.dumps(document) + "\n")
    else:
        write_text(path, f"# {json.dumps({'format': MAP_FORMAT, **about})}\n" + "".join(f"{i}\n" for i in ids.tolist()))


def _read_json(text: str, known: Known) -> Loaded:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON ({str(error).splitlines()[0]})") from error
    if isinstance(document, list):
        ids = checks.target_ids(document, known.size())
        return Loaded("json", known.token_map(ids, is_ranked=True, source="json"))
    if not isinstance(document, dict):
        raise InputError(f"expected a list of target ids, or an object; found a {type(document).__name__}")
    if "counts" in document:
        return Loaded("json", _counts(document, known))
    if "target_ids" in document:
        return Loaded("json", _map_of(document, document["target_ids"], known))
    if document and all(isinstance(key, str) and key.isdecimal() and len(key) <= MAX_DIGITS for key in document):
        pairs = {int(key): value for key, value in document.items()}
        return Loaded("json", TokenRanking(checks.counts_of_pairs(pairs, known.size()), known.fingerprint()))
    raise InputError(
        f"expected an object with target_ids, with counts, or of id: count; found {', '.join(list(document)[:5])}"
    )


def _counts(document: dict[str, Any], known: Known) -> TokenRanking:
    raw = checks.as_array(document["counts"], "counts by target id")
    counts = checks.counts_by_id(raw, raw.size)
    check_digest(counts, counts.size, document.get("sha256"))
    if known.target_vocab_size is not None and counts.size > known.target_vocab_size:
        known.size(counts.size)
    special, single_bytes = (_ids_of(document, key) for key in ("special_target_ids", "byte_target_ids"))
    fingerprint = known.fingerprint(_text_of(document, "tokenizer_fingerprint"))
    return TokenRanking(counts, fingerprint, special, single_bytes)


def _ids_of(document: dict[str, Any], key: str) -> np.ndarray:
    value = document.get(key, [])
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 2**63 for item in value):
        raise InputError(f"{key} must be a list of target ids")
    return np.array(value, dtype=np.int64)


def _text_of(document: dict[str, Any], key: str) -> str:
    value = document.get(key, "")
    if not isinstance(value, str):
        raise InputError(f"{key} must be text; found {value!r}")
    return value


def _map_of(about: dict[str, Any], raw: Any, known: Known) -> TokenMap:
    said = about.get("target_vocab_size")
    if said is not None and (type(said) is not int or said < 1):
        raise InputError(f"target_vocab_size must be a whole number above 0; found {said!r}")
    size = known.size(said)
    ids = checks.target_ids(raw, size)
    check_digest(ids, size, about.get("sha256"))
    return known.token_map(
        ids,
        vocab_size=size,
        fingerprint=_text_of(about, "tokenizer_fingerprint"),
        is_ranked=about.get("ranked", True) is True,
        source="json",
    )


def _read_text(text: str, known: Known) -> Loaded:
    about: dict[str, Any] = {}
    ids = []
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if word.startswith("#"):
            if MAP_FORMAT in word:
                about = _header(word)
            continue
        if not word:
            continue
        if not word.removeprefix("-").isdecimal() or len(word) > MAX_DIGITS or not word.isascii():
            raise InputError(f"line {number} is {word[:40]!r}; expected one target id a line")
        ids.append(int(word))
    return Loaded("text", _map_of(about, ids, known))


def _header(word: str) -> dict[str, Any]:
    try:
        about = json.loads(word.removeprefix("#"))
    except (ValueError, RecursionError):
        raise InputError(f"its first line names {MAP_FORMAT} and is damaged") from None
    if not isinstance(about, dict):
        raise InputError(f"its first line names {MAP_FORMAT} and is damaged")
    return about
