"""The names of everything that a round is timed by, and the marks inside a model's pass.

A round of the engine is a few sections, always timed. Finer than that costs something for each of a pass's hundred
products, so it is done only on request: models mark their parts with ``with span("linears")``, which does nothing
until a profiler listens. Needs no torch.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

# Every second of a generation after prefill belongs to one of these; "other" is what the rest leave. With labels.
SECTION_LABELS = {
    "draft_head": "draft head",
    "draft_steps": "draft steps",
    "draft_extend": "draft extend",
    "target_verify": "target verify",
    "vocab_update": "vocab update",
    "other": "other",
}
# With a profiler: the verify pass in its parts. What is left in the end is Python.
PROFILE_LABELS = {
    "draft_head": "draft head",
    "draft_steps": "draft steps",
    "draft_extend": "draft extend",
    "target_attention": "target attention",
    "target_linears": "target linears",
    "target_layers": "target layers, rest",
    "target_head": "target head",
    "sampling": "sampling",
    "vocab_update": "vocab update",
    "other": "Python",
}
LAYER_PARTS = ("target_attention", "target_linears")  # none where a layer is one compiled call
WHOLE_LAYERS = "target layers"  # what the rest of the layers is called there
VERIFY_PARTS = tuple(name for name in PROFILE_LABELS if name not in SECTION_LABELS)

LAYERS, LINEARS, ATTENTION, HEAD, SAMPLING = "layers", "linears", "attention", "head", "sampling"
# Which part a span inside another begins; in any other place it belongs to what it is in.
PART_OF = {
    ("target_verify", LAYERS): "target_layers",
    ("target_layers", LINEARS): "target_linears",
    ("target_layers", ATTENTION): "target_attention",
    ("target_verify", HEAD): "target_head",
    ("target_verify", SAMPLING): "sampling",
}

Opener = Callable[[str], AbstractContextManager[None]]
NOTHING: AbstractContextManager[None] = nullcontext()
LISTENERS: list[Opener] = []  # the last one opens every span


def span(name: str) -> AbstractContextManager[None]:
    """Mark the body as ``name``, for a profiler if one listens."""
    return LISTENERS[-1](name) if LISTENERS else NOTHING
