"""How a token is chosen from logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hothead.errors import InputError

DRAFT_SAMPLING = ("probabilistic", "greedy")


@dataclass(frozen=True)
class SamplingParams:
    """What is asked of one generation.

    Attributes:
        temperature: 0 for greedy.
        top_p: keep the smallest set of tokens whose probability reaches this; 1 keeps all.
        top_k: keep this many tokens; 0 keeps all.
        seed: of this generation's random numbers; None draws one.
        max_new_tokens: emitted at most.
        stop: strings that end the answer; they are not part of the text.
        ignore_eos: go on past end-of-turn tokens (for benchmarks of a fixed length).
        draft_sampling: above temperature 0, draft by sampling ("probabilistic") or by argmax ("greedy"); the output
            distribution is the target's either way.

    Raises:
        InputError: a value out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    draft_sampling: str = "probabilistic"

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise InputError(f"temperature must be 0 (greedy) or above; found {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p must be above 0 and at most 1; found {self.top_p}")
        if self.top_k < 0:
            raise InputError(f"top_k must be 0 (all) or above; found {self.top_k}")
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens must be at least 1; found {self.max_new_tokens}")
        if self.draft_sampling not in DRAFT_SAMPLING:
            raise InputError(f"draft_sampling must be {' or '.join(DRAFT_SAMPLING)}; found {self.draft_sampling!r}")
        if any(not text for text in self.stop):
            raise InputError("an empty stop string would end every answer at once")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def drafts_by_sampling(self) -> bool:
        """Whether drafted tokens are drawn (True) or the likeliest ones."""
        return not self.is_greedy and self.draft_sampling == "probabilistic"


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """Logits [n, V] -> float32 [n, V]: temperature, then top-k, then top-p, renormalised."""
    scaled = logits.float() / params.temperature
    if 0 < params.top_k < scaled.shape[-1]:
        threshold = scaled.topk(params.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < threshold, -torch.inf)
    probs = scaled.softmax(dim=-1)
    if params.top_p < 1:
        ordered, ids = probs.sort(dim=-1, descending=True)
        # A token stays if those before it have not reached top_p; the likeliest always stays.
        kept = (ordered.cumsum(dim=-1) - ordered) < params.top_p
        probs = probs.masked_fill(~torch.zeros_like(kept).scatter_(-1, ids, kept), 0.0)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs


def sample(probs: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one index per row: float [n, V] -> int64 [n]."""
    return torch.multinomial(probs, 1, generator=generator).squeeze(-1)
