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
from hothead.models.attention import FEW, attend, causal_unseen
from hothead.models.cache import KVCache
from hothead.models.target import CausalLM, Target
from hothead.models.toy import toy_causal_lm, toy_target, toy_tokenizer
from hothead.models.window import ancestors, tree_window

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


@torch.inference_mode()
@pytest.mark.parametrize("index", [0, 2], ids=["llama", "qwen2"])
def test_fused_layers_are_transformers_own(index: int) -> None:
    """Chains, trees and rollback, against the same weights in transformers' layers."""
    ids = torch.randint(0, 64, (9,), generator=torch.Generator().manual_seed(1))
    window = tree_window(torch.tensor([-1, 0, 0, 1, 2]), 4)
    found = []
    for fuse in (True, False):
        model = CausalLM(models()[index], fuse=fuse)
        assert model.is_fused == fuse
        cache = model.new_cache(capacity=4)
        first = model.forward(ids[:4], cache)
        tree = model.forward(ids[4:], cache, window=window)
        cache.keep(4, [0, 2, 4])
        last = model.forward(ids[:1], cache)
        found.append(torch.cat([first.logits, tree.logits, last.logits]))
    torch.testing.assert_close(*found, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_a_branch_of_a_tree_is_the_chain_it_spells() -> None:
    model = CausalLM(toy_causal_lm(64))
    past, branch = torch.tensor([5, 6, 7]), torch.tensor([9, 12, 15])
    tree = torch.tensor([9, 10, 11, 12, 13, 15])
    parents = torch.tensor([-1, 0, 0, 0, 1, 3])
    cache = model.new_cache()
    model.forward(past, cache)
    found = model.forward(tree, cache, window=tree_window(parents, 3)).logits[[0, 3, 5]]
    cache.keep(3, [0, 3, 5])
    after = model.forward(torch.tensor([2]), cache).logits
    expected = model.forward(torch.cat([past, branch, torch.tensor([2])]), model.new_cache()).logits
    torch.testing.assert_close(torch.cat([found, after]), expected[3:], atol=1e-4, rtol=0)


def test_long_passes_see_what_short_ones_see() -> None:
    """More queries than FEW go through torch's kernel: the same values, tree or chain, with and without a past."""
    generator = torch.Generator().manual_seed(0)
    n, past = FEW + 8, 5
    key, value = (torch.randn(2, past + n, 8, generator=generator) for _ in range(2))
    query = torch.randn(4, n, 8, generator=generator)
    parents = torch.tensor([max(-1, index // 2 - 1) for index in range(n)])
    for unseen in (None, ~ancestors(parents)):
        full = causal_unseen(n, query.device) if unseen is None else unseen
        many = attend(query, key, value, unseen, 0.3)
        for row in range(n):
            alone = attend(query[:, row : row + 1], key, value, full[row : row + 1], 0.3)
            torch.testing.assert_close(many[:, row : row + 1], alone, atol=1e-5, rtol=0)


def test_a_model_that_was_taken_apart_is_refused() -> None:
    model = toy_causal_lm(64)
    CausalLM(model)
    with pytest.raises(InputError, match="no layers left"):
        CausalLM(model)
