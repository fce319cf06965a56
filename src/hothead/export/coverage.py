"""What a vocabulary can still spell: special tokens, byte tokens, and the letters of the world's scripts.

A map made of chat text in one language often drops the byte-level tokens that spell everything else. The draft then
never proposes a Swedish "å", and each one costs a round. The text stays right, but slow.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hothead.export.drafts import Problem, end_ids
from hothead.tokenizer import (
    Tokenizer,
    byte_characters,
    byte_target_ids,
    is_byte_level,
    special_target_ids,
    token_table,
)
from hothead.vocab import DraftVocab

# Letters that a text in the language or script cannot do without.
LETTERS = {
    "English": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?'\"()-",
    "Spanish": "áéíóúüñÁÉÍÓÚÑ¿¡",
    "French": "àâçéèêëîïôùûœÀÇÉÈ«»",
    "German": "äöüßÄÖÜ„“",
    "Portuguese": "áâãàçéêíóôõúÁÃÇÉÓ",
    "Swedish": "åäöÅÄÖé",
    "Polish": "ąćęłńóśźżĄĆĘŁŚŻ",
    "Czech": "áčďéěíňóřšťúůýž",
    "Turkish": "çğıİöşüÇĞÖŞÜ",
    "Vietnamese": "ăâđêôơưạảấầẩậắằặẹẻếềểệỉịọỏốồổộớờởợụủứừửựỳỵỷ",
    "Greek": "αβγδεζηθικλμνξοπρστυφχψωςάέήίόύώ",
    "Russian": "абвгдежзийклмнопрстуфхцчшщъыьэюяё",
    "Hebrew": "אבגדהוזחטיכלמנסעפצקרשת",
    "Arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهويءة",
    "Hindi": "अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसह्ािीुूेैोौं",
    "Thai": "กขคงจฉชซญดตถทธนบปผฝพฟภมยรลวศษสหอะาิีึืุูเแโใไ่้",
    "Japanese": "あいうえおかきくけこさしすせそたちつてとなにのはひほまみむめもやゆよらりるれろわをんアイウエオ",
    "Chinese": "的一是不了在人有我他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可",
    "Korean": "가나다라마바사아자차카타파하은는이를의에서고지한그",
    "emoji": "😀😂❤👍🙏🎉🚀✅",
}
FULLY = 0.999  # a share of letters from which on a language counts as spelt


@dataclass(frozen=True)
class Coverage:
    """What is left of a tokenizer's means in a vocabulary."""

    special_missing: tuple[str, ...]
    byte_tokens: int  # that the tokenizer has
    byte_tokens_missing: int
    letters: dict[str, float]  # share of each language's letters that can be spelt

    @property
    def unspelt(self) -> list[str]:
        """The languages of which a letter is missing."""
        return [name for name, share in self.letters.items() if share < FULLY]

    def problems(self) -> list[Problem]:
        found = []
        if self.special_missing:
            words = ", ".join(self.special_missing[:6]) + (" ..." if len(self.special_missing) > 6 else "")
            count = len(self.special_missing)
            found.append(
                Problem("warning", f"{count} special tokens are not in the map: {words}; none is ever drafted")
            )
        if self.byte_tokens_missing:
            text = f"{self.byte_tokens_missing} of {self.byte_tokens} byte tokens are not in the map"
            if self.unspelt:
                worst = sorted(self.unspelt, key=lambda name: self.letters[name])
                shares = ", ".join(f"{name} {self.letters[name]:.0%}" for name in worst[:8])
                text += f": letters it can spell: {shares}"
            found.append(Problem("warning", text + ". Drafts in these stop at each one; keep the byte tokens"))
        return found


def coverage_of(vocab: DraftVocab, tokenizer: Tokenizer, configs: Iterable[dict[str, Any]] = ()) -> Coverage:
    """How much of ``tokenizer`` is in ``vocab``. ``configs`` may name further ids that end a text."""
    names = token_table(tokenizer)
    special = set(special_target_ids(tokenizer).tolist())
    for config in configs:
        special |= set(end_ids(config))
    bytes_ids = byte_target_ids(tokenizer)
    spelling = token_bytes(tokenizer)
    # Letters that the tokenizer itself cannot spell say nothing about the map.
    whole = _speller(spelling.values())
    kept = _speller(spelling[i] for i in vocab.target_ids.tolist() if i in spelling)
    letters = {}
    for name, characters in LETTERS.items():
        possible = [c for c in characters if whole(c)]
        if possible:
            letters[name] = sum(kept(c) for c in possible) / len(possible)
    return Coverage(
        tuple(names.get(i, str(i)) for i in sorted(special) if i not in vocab),
        len(bytes_ids),
        int(sum(int(i) not in vocab for i in bytes_ids)),
        letters,
    )


def token_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    """The bytes that each token of up to a character's length writes: ``{target id: bytes}``."""
    byte_of = {character: number for number, character in _bytes_of_characters()} if is_byte_level(tokenizer) else {}
    found = {}
    for target_id, token in token_table(tokenizer).items():
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            found[target_id] = bytes.fromhex(token[3:5])
        elif byte_of:
            if len(token) <= 5 and all(character in byte_of for character in token):
                found[target_id] = bytes(byte_of[character] for character in token)
        elif len(token) <= 2:
            found[target_id] = token.replace("\u2581", " ").encode("utf-8", "replace")
    return found


def _bytes_of_characters() -> list[tuple[int, str]]:
    """(byte, the character that byte-level BPE writes it as); its characters are sorted as the bytes they stand for:
    printable ones first."""
    characters = byte_characters()
    printable = [byte for byte in range(256) if chr(byte) in characters]
    others = [byte for byte in range(256) if byte not in printable]
    return list(zip([*printable, *others], characters, strict=True))


def _speller(tokens: Iterable[bytes]) -> Any:
    """A function that says whether a character can be put together from ``tokens``, with or without a space before."""
    known = {token for token in tokens if 0 < len(token) <= 5}

    def spell(text: bytes) -> bool:
        reached = np.zeros(len(text) + 1, dtype=bool)
        reached[0] = True
        for start in range(len(text)):
            if reached[start]:
                for end in range(start + 1, len(text) + 1):
                    reached[end] |= text[start:end] in known
        return bool(reached[-1])

    def can(character: str) -> bool:
        text = character.encode()
        return spell(text) or spell(b" " + text)

    return can
