"""What a method's name means: ``dynamic 4/4/12 size=4096 slots=256``. Needs no torch.

A name is a kind, then words in any order: ``tree`` or ``LEVELS/TOPK/TOKENS`` for the shape of what is drafted, ``k=N``
for a chain of N, ``p=P`` for drafting on only from paths at least that likely and ``v=P`` for verifying only those,
``size=N`` and ``slots=N`` for the vocabulary. What a name does not say is the run's own setting.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hothead.bench.schema import DYNAMIC, FULL, FULL_REFRESH, METHODS, PEERS, PLAIN, STATIC
from hothead.errors import InputError

HOT = (STATIC, DYNAMIC)  # the kinds that this project is about
SHAPE = re.compile(r"(\d+)/(\d+)/(\d+)")
SETTING = re.compile(r"(k|size|slots)=(\d+)")
LEAST = re.compile(r"(p|v)=(\d*\.?\d+)")
TREE = "tree"
DEFAULT_TREE = "4/4/12"

Shape = tuple[int, int, int]  # levels, tokens kept per level, tokens verified (the last committed one included)


@dataclass(frozen=True)
class Method:
    """A method's name, read. None stands for the run's own setting."""

    kind: str
    shape: Shape | None = None
    size: int | None = None
    slots: int | None = None
    p_min: float | None = None
    verify_p_min: float | None = None

    @property
    def is_hot(self) -> bool:
        """Whether it drafts with a small vocabulary of ours."""
        return self.kind in HOT


def parse_method(name: str, tree: str = DEFAULT_TREE) -> Method:
    """Read a method's name; ``tree`` is the shape that the word stands for.

    Raises:
        InputError: an unknown kind or word, or one that this kind has no use for.
    """
    kind, *words = name.split() or [""]
    if kind not in METHODS:
        raise InputError(f"no method is called {name!r}; expected some of {', '.join(METHODS)}")
    shape: Shape | None = None
    least: dict[str, float] = {}
    settings: dict[str, int] = {}
    for word in words:
        if said := LEAST.fullmatch(word):
            least[said[1]] = float(said[2])
            continue
        if word == TREE or SHAPE.fullmatch(word):
            found = parse_shape(tree if word == TREE else word)
        elif setting := SETTING.fullmatch(word):
            key, value = setting[1], int(setting[2])
            if key != "k":
                settings[key] = value
                continue
            found = (value, 1, value + 1)
        else:
            raise InputError(
                f"method {name!r}: {word!r} is none of tree, LEVELS/TOPK/TOKENS, k=N, p=P, v=P, size=N, slots=N"
            )
        if shape is not None:
            raise InputError(f"method {name!r} gives two shapes; give one of tree, LEVELS/TOPK/TOKENS and k=N")
        shape = found
    useless = {PLAIN: bool(words), FULL: bool(settings), STATIC: "slots" in settings, FULL_REFRESH: "slots" in settings}
    if useless.get(kind):
        raise InputError(f"method {name!r}: {kind} has no use for {' '.join(words)}")
    return Method(kind, shape, p_min=least.get("p"), verify_p_min=least.get("v"), **settings)


def parse_shape(text: str) -> Shape:
    """``4/4/12``: levels, topk, tokens verified.

    Raises:
        InputError: something else.
    """
    found = SHAPE.fullmatch(text)
    if not found:
        raise InputError(f"a tree's shape is LEVELS/TOPK/TOKENS, as in {DEFAULT_TREE}; found {text!r}")
    return int(found[1]), int(found[2]), int(found[3])


def split_names(text: str) -> tuple[str, ...]:
    """Names joined by commas, each with single spaces."""
    return tuple(" ".join(name.split()) for name in text.split(",") if name.strip())


def is_hot(name: str) -> bool:
    """Whether a method of a result file drafts with a small vocabulary of ours."""
    return name not in PEERS and parse_method(name).is_hot


def full_of(name: str, names: Sequence[str]) -> str | None:
    """Of ``names``, the full vocabulary drafted in the shape of ``name``; else any; None for none.

    ``full`` itself has none.
    """
    fulls = [other for other in names if other not in PEERS and parse_method(other).kind == FULL]
    if name in fulls or not fulls:
        return None
    if name not in PEERS:
        drafted = parse_method(name)
        alike = [other for other in fulls if parse_method(other).shape == drafted.shape]
        return next((other for other in alike if _least(parse_method(other)) == _least(drafted)), (alike or fulls)[0])
    return fulls[0]


def _least(method: Method) -> tuple[float | None, float | None]:
    return method.p_min, method.verify_p_min
