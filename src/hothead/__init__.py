"""hothead: a small, hot draft vocabulary for speculative decoding; the same text, faster.

The chain: texts -> ``TokenRanking`` -> ``DraftVocab`` -> ``HotHead`` -> ``SpeculativeDecoder``. Names are imported
when first used, so that ranking and mapping work without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hothead.dynamic import DynamicConfig
    from hothead.engine.generate import Generation, SpeculativeDecoder
    from hothead.engine.sampling import SamplingParams
    from hothead.engine.tree import DraftShape
    from hothead.errors import HotheadError
    from hothead.head import HotHead, LMHead
    from hothead.models.loading import load_draft, load_target
    from hothead.ranking.ranking import TokenRanking
    from hothead.tokenizer import load_tokenizer
    from hothead.vocab import DraftVocab

_HOME = {
    "DraftShape": "hothead.engine.tree",
    "DraftVocab": "hothead.vocab",
    "DynamicConfig": "hothead.dynamic",
    "Generation": "hothead.engine.generate",
    "HotHead": "hothead.head",
    "HotheadError": "hothead.errors",
    "LMHead": "hothead.head",
    "SamplingParams": "hothead.engine.sampling",
    "SpeculativeDecoder": "hothead.engine.generate",
    "TokenRanking": "hothead.ranking.ranking",
    "load_draft": "hothead.models.loading",
    "load_target": "hothead.models.loading",
    "load_tokenizer": "hothead.tokenizer",
}

__all__ = [
    "DraftShape",
    "DraftVocab",
    "DynamicConfig",
    "Generation",
    "HotHead",
    "HotheadError",
    "LMHead",
    "SamplingParams",
    "SpeculativeDecoder",
    "TokenRanking",
    "load_draft",
    "load_target",
    "load_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hothead' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
