"""What ``--additional-config '{"hothead": {...}}'`` may say, checked as one block."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hothead.errors import InputError

KEY = "hothead"
VOCABULARIES = ("ranking", "token_map", "token_ids", "token_ids_by_frequency")
SIZES = ("size", "ratio", "pruning_ratio", "coverage")
POLICIES = ("on_miss", "prompt")


class Settings(BaseModel):
    """The draft vocabulary of a vLLM server. One of the first four, and with counts one of the next four.

    Attributes:
        ranking: a ``TokenRanking`` file.
        token_map: target ids in frequency order: JSON, a saved ``DraftVocab``, or SGLang's ``.pt`` list.
        token_ids: target ids, written out.
        token_ids_by_frequency: how often each target id occurs, indexed by target id: numbers, or a file of them.
        size: rows to keep.
        ratio: share of the head's rows to keep.
        pruning_ratio: share of the head's rows to drop.
        coverage: share of the counted tokens to cover.
        dynamic_slots: rows beside the static ones that follow the traffic; 0 for a static vocabulary.
        policy: what fills the slots: ``on_miss``, ``prompt``, both joined by ``+``, or ``none``.
        special_tokens: ``keep`` the tokenizer's special, chat-template and byte tokens, ``ignore`` them, or the
            target ids to keep in their place.
        record_counts: where to keep a ranking of what the server emits.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    ranking: Path | None = None
    token_map: Path | None = None
    token_ids: tuple[int, ...] | None = Field(default=None, min_length=1)
    token_ids_by_frequency: Path | tuple[float, ...] | None = None
    size: int | None = Field(default=None, ge=1)
    ratio: float | None = Field(default=None, gt=0, le=1)
    pruning_ratio: float | None = Field(default=None, ge=0, lt=1)
    coverage: float | None = Field(default=None, gt=0, le=1)
    dynamic_slots: int = Field(default=512, ge=0)
    policy: str = "on_miss+prompt"
    special_tokens: Literal["keep", "ignore"] | tuple[int, ...] = "keep"
    record_counts: Path | None = None

    @model_validator(mode="after")
    def _agree(self) -> "Settings":
        vocabularies = [name for name in VOCABULARIES if getattr(self, name) is not None]
        if len(vocabularies) != 1:
            found = " and ".join(vocabularies) or "none"
            raise ValueError(f"give exactly one of {', '.join(VOCABULARIES)}; found {found}")
        given = vocabularies[0]
        sizes = list(self.sizes)
        if given in ("ranking", "token_ids_by_frequency") and len(sizes) != 1:
            found = " and ".join(sizes) or "none"
            raise ValueError(f"with {given} give exactly one of {', '.join(SIZES)}; found {found}")
        if given == "token_ids" and sizes:
            raise ValueError(f"token_ids are the vocabulary itself, and {sizes[0]} would choose from it; give one")
        if given == "token_map" and (len(sizes) > 1 or "coverage" in sizes):
            raise ValueError(
                "a token_map has no counts: give at most one of size, ratio, pruning_ratio; "
                f"found {' and '.join(sizes)}"
            )
        for name in self.policies:
            if name not in POLICIES:
                raise ValueError(
                    f"policy {name!r} is not one of {', '.join(POLICIES)}, none (joined by '+'); "
                    "others need what vLLM does not show its drafter"
                )
        return self

    @property
    def sizes(self) -> dict[str, Any]:
        """The one of ``SIZES`` that is given, by name."""
        return {name: getattr(self, name) for name in SIZES if getattr(self, name) is not None}

    @property
    def policies(self) -> tuple[str, ...]:
        """The names in ``policy``; none where there are no slots to fill."""
        if self.policy == "none" or not self.dynamic_slots:
            return ()
        return tuple(part.strip() for part in self.policy.split("+"))


def read_settings(additional_config: object) -> Settings | None:
    """The ``hothead`` block of vLLM's additional config, or None where there is none.

    Raises:
        InputError: an unknown, wrong or contradictory setting; one line that names it.
    """
    if not isinstance(additional_config, Mapping) or KEY not in additional_config:
        return None
    block = additional_config[KEY]
    if not isinstance(block, Mapping):
        raise InputError(f"additional_config.{KEY} must be an object of settings; found {type(block).__name__}")
    for name in block:
        if name not in Settings.model_fields:
            near = difflib.get_close_matches(str(name), Settings.model_fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(Settings.model_fields)}"
            raise InputError(f"additional_config.{KEY}: no setting is called {name!r}; {hint}")
    try:
        return Settings.model_validate(dict(block))
    except ValidationError as error:
        raise InputError(f"additional_config.{KEY}: {_one_line(error)}") from None


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    return f"{first['loc'][0]}: {message}; found {first['input']!r}" if first["loc"] else message
