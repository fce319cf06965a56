"""The split model against transformers' own forward pass, and the cache that can forget."""

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from hothead.errors import InputError
from hothead.models.cache import KVCache
from hothead.models.target import CausalLM, Target
from hothead.models.toy import toy_causal_lm, toy_target, toy_tokenizer

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def models() -> list:
    torch.manual_seed(0)
    return [
        toy_causal_lm(64),
        toy_causal_lm(64, tie_word_embeddings=True),
        Qwen2ForCausalLM(Qwen2Config(**SMALL)),
        Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=3.0, sliding_window=4)),
        GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)),
    ]


@pytest.mark.parametrize("index", range(5), ids=["llama", "llama tied", "qwen2", "gemma2 soft cap", "gpt2"])
@torch.inference_mode()
def test_passes_with_rollback_give_the_models_own_logits(index: int) -> None:
    plain = models()[index].eval()
    ids = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(1))
    expected = plain(input_ids=ids[None]).logits[0]
    model = CausalLM(plain)
    cache = model.new_cache(capacity=4)  # grows
    first = model.forward(ids[:5], cache)
    model.forward(torch.tensor([9, 9, 9]), cache)  # a wrong draft ...
    cache.truncate(5)  # ... forgotten
    second = model.forward(ids[5:9], cache)
    third = model.forward(ids[9:], cache, last=1)
    torch.testing.assert_close(torch.cat([first.logits, second.logits]), expected[:9], atol=2e-4, rtol=0)
    torch.testing.assert_close(third.logits, expected[-1:], atol=2e-4, rtol=0)
    assert third.features.shape == (3, 32)
    assert cache.length == 12


def test_a_cache_cannot_be_cut_to_more_than_it_holds() -> None:
    with pytest.raises(ValueError, match="cannot cut"):
        KVCache(1).truncate(3)


def test_recurrent_models_are_refused() -> None:
    model = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2))
    with pytest.raises(InputError, match="rolled back"):
        CausalLM(model)


def test_a_head_that_does_more_than_it_says_is_noticed() -> None:
    model = toy_causal_lm(64)
    original = model.forward

    def scaled(*args: object, **kwargs: object) -> object:
        output = original(*args, **kwargs)
        output.logits = output.logits * 2
        return output

    model.forward = scaled
    with pytest.raises(InputError, match="logits differ"):
        CausalLM(model)


def test_a_tokenizer_larger_than_the_head_is_refused() -> None:
    with pytest.raises(InputError, match="do not belong together"):
        Target(toy_causal_lm(64), toy_tokenizer())


def test_end_ids_are_the_models_and_the_tokenizers() -> None:
    target = toy_target()
    target.model.generation_config.eos_token_id = [3, 4]
    assert target.end_target_ids == {3, 4, target.tokenizer.eos_token_id}
