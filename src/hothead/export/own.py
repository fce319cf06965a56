"""hothead's own files as one more map format; safetensors of any other kind are passed on to ``arrays``."""

from pathlib import Path

from hothead.errors import InputError
from hothead.export.base import Content, Known, Loaded, TokenMap
from hothead.files import safetensors_metadata
from hothead.ranking import ranking as rankings
from hothead.ranking.ranking import TokenRanking
from hothead.vocab import FORMAT as VOCAB_FORMAT
from hothead.vocab import DraftVocab


def read(path: Path, known: Known, name: str | None) -> Loaded:
    kind = safetensors_metadata(path).get("format")
    if kind == VOCAB_FORMAT:
        vocab = DraftVocab.load(path)
        known.size(vocab.target_vocab_size)
        known.fingerprint(vocab.tokenizer_fingerprint)
        return Loaded("hothead", TokenMap(vocab))
    if kind == rankings.FORMAT:
        ranking = TokenRanking.load(path)
        known.fingerprint(ranking.tokenizer_fingerprint)
        if known.target_vocab_size is not None and ranking.vocab_size > known.target_vocab_size:
            known.size(ranking.vocab_size)  # a head may be padded past the tokenizer, never shorter
        return Loaded("hothead", ranking)
    if name is None:
        from hothead.export import arrays

        return arrays.read(path, known, "eagle3")
    found = f"format {kind!r}" if kind else "no format in its metadata"
    raise InputError(f"expected a draft vocabulary or token ranking of hothead's; found {found}")


def write(path: Path, content: Content, name: str) -> None:
    (content.vocab if isinstance(content, TokenMap) else content).save(path)
