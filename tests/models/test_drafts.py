"""Drafts against plain references without a cache, and strict loading."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen2Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from hothead.errors import DraftMismatch, HotheadError, InputError, TokenizerMismatch
from hothead.models.causal_lm import fit_rows
from hothead.models.draft import Draft
from hothead.models.eagle import EagleDraft
from hothead.models.loading import load_draft, load_target
from hothead.models.target import Target
from hothead.models.toy import (
    save_toy_eagle,
    save_toy_target,
    toy_causal_lm,
    toy_eagle,
    toy_eagle_config,
    toy_eagle_tensors,
    toy_standalone,
    toy_target,
    toy_tokenizer,
)


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target()


def plain_eagle(tensors: dict[str, Tensor], config: LlamaConfig, pairs: Tensor) -> Tensor:
    """One pass over all (embedding, feature) pairs, [n, 2H] -> [n, H], with a layer of its own and no cache."""
    layer = LlamaDecoderLayer(config, 0)
    layer.input_layernorm = nn.Identity()
    layer.load_state_dict({n.removeprefix("layers.0."): t for n, t in tensors.items() if n.startswith("layers.")})
    x = (pairs @ tensors["fc.weight"].T + tensors.get("fc.bias", 0))[None]
    n = x.shape[1]
    positions = torch.arange(n)[None]
    mask = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
    return layer(x, attention_mask=mask, position_embeddings=LlamaRotaryEmbedding(config)(x, positions))[0]


@pytest.mark.parametrize("fc_bias", [False, True])
@torch.inference_mode()
def test_eagle_in_pieces_is_eagle_in_one_pass(target: Target, fc_bias: bool) -> None:
    config = toy_eagle_config()
    config._attn_implementation = "sdpa"
    tensors = toy_eagle_tensors(fc_bias=fc_bias)
    draft = EagleDraft(config, tensors, target)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 320, (10,), generator=generator)
    features = torch.randn(10, 32, generator=generator)
    embedded = target.embedding(ids)

    expected = plain_eagle(tensors, config, torch.cat([embedded[:5], features[:5]], -1))
    hidden = draft.extend(ids[:5], features[:5])
    torch.testing.assert_close(hidden, expected[-1:], atol=1e-4, rtol=0)

    # Two drafted steps feed on the draft's own hidden states ...
    drafted = torch.tensor([11, 12])
    one = draft.step(drafted[:1], hidden)
    two = draft.step(drafted[1:], one)
    pairs = torch.cat([target.embedding(torch.cat([ids[:5], drafted])), torch.cat([features[:5], hidden, one])], -1)
    torch.testing.assert_close(two, plain_eagle(tensors, config, pairs)[-1:], atol=1e-4, rtol=0)

    # ... and are forgotten when the target's features come.
    draft.rollback()
    again = draft.extend(ids[5:8], features[5:8])
    expected = plain_eagle(tensors, config, torch.cat([embedded[:8], features[:8]], -1))
    torch.testing.assert_close(again, expected[-1:], atol=1e-4, rtol=0)


@torch.inference_mode()
def test_eagle_pairs_features_with_the_tokens_after_them(target: Target) -> None:
    """At prefill there is one token more than features: the first token has no feature before it."""
    draft = toy_eagle(target)
    ids, features = torch.arange(6), torch.randn(5, 32)
    with_first = draft.extend(ids, features)
    draft.reset(8)
    assert torch.equal(with_first, draft.extend(ids[1:], features))


@torch.inference_mode()
def test_qwen2_layers_with_their_biases(target: Target) -> None:
    config = Qwen2Config(
        **{
            k: getattr(toy_eagle_config(), k)
            for k in (
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "max_position_embeddings",
            )
        }
    )
    tensors = toy_eagle_tensors()
    with pytest.raises(DraftMismatch, match=r"missing layers\.0\.self_attn\.k_proj\.bias"):
        EagleDraft(config, tensors, target)
    for name, width in (("q", 32), ("k", 16), ("v", 16)):
        tensors[f"layers.0.self_attn.{name}_proj.bias"] = torch.ones(width)
    assert EagleDraft(config, tensors, target).extend(torch.arange(4), torch.randn(4, 32)).shape == (1, 32)


@torch.inference_mode()
def test_a_standalone_draft_keeps_what_was_right_and_forgets_the_rest(target: Target) -> None:
    draft = toy_standalone(target)
    ids = torch.tensor([5, 6, 7, 8])
    nothing = torch.empty(0, 32)
    hidden = draft.extend(ids, nothing)
    draft.step(torch.tensor([20]), hidden)
    draft.step(torch.tensor([21]), hidden)
    draft.rollback()
    found = draft.extend(torch.tensor([20, 30]), nothing)  # 20 was right, 21 was not
    fresh = toy_standalone(target)
    torch.testing.assert_close(found, fresh.extend(torch.tensor([5, 6, 7, 8, 20, 30]), nothing), atol=1e-4, rtol=0)
    assert draft._cache.length == 6


@torch.inference_mode()
@pytest.mark.parametrize("make", [toy_standalone, toy_eagle])
def test_a_drafted_tree_sees_only_its_own_branch(target: Target, make: Callable[[Target], Draft]) -> None:
    """Each token of a tree gets the hidden state that a chain to it would have."""
    ids, nothing = torch.tensor([5, 6, 7, 8]), torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    tree, chain = make(target), make(target)
    hidden = tree.extend(ids, nothing)
    #  20 -> 30 -> 40      21 -> 31
    first = tree.step(torch.tensor([20, 21]), hidden.expand(2, -1), torch.tensor([-1, -1]))
    second = tree.step(torch.tensor([31, 30]), first[[1, 0]], torch.tensor([1, 0]))
    third = tree.step(torch.tensor([40]), second[1:], torch.tensor([3]))
    for branch, found in (((20, 30, 40), third), ((21, 31), second[:1])):
        state = chain.extend(ids, nothing)
        for target_id in branch:
            state = chain.step(torch.tensor([target_id]), state)
        torch.testing.assert_close(found, state, atol=1e-4, rtol=1e-4)
        chain.reset(64)


@torch.inference_mode()
def test_a_standalone_draft_keeps_the_branch_that_was_right(target: Target) -> None:
    draft, nothing = toy_standalone(target), torch.empty(0, 32)
    hidden = draft.extend(torch.tensor([5, 6, 7, 8]), nothing)
    first = draft.step(torch.tensor([20, 21]), hidden.expand(2, -1), torch.tensor([-1, -1]))
    draft.step(torch.tensor([30, 31]), first, torch.tensor([0, 1]))
    draft.rollback()
    found = draft.extend(torch.tensor([21, 31, 9]), nothing)
    fresh = toy_standalone(target).extend(torch.tensor([5, 6, 7, 8, 21, 31, 9]), nothing)
    torch.testing.assert_close(found, fresh, atol=1e-4, rtol=0)


def test_heads_of_one_family_padded_differently(target: Target) -> None:
    head = target.lm_head
    assert fit_rows(head, 320) is head
    assert fit_rows(head, 300).weight.shape == (300, 32)
    padded = fit_rows(head, 330)
    logits = padded.weight @ torch.ones(32) + padded.bias
    assert torch.isinf(logits[320:]).all()
    assert torch.isfinite(logits[:320]).all()


# Strict loading: each accident is refused by name.


def change(edit: str) -> tuple[dict[str, Tensor], LlamaConfig]:
    tensors, config = toy_eagle_tensors(), toy_eagle_config()
    if edit == "missing":
        del tensors["layers.0.mlp.up_proj.weight"]
    elif edit == "extra":
        tensors["layers.0.input_layernorm.weight"] = torch.ones(32)
    elif edit == "misshapen":
        tensors["fc.weight"] = torch.ones(32, 32)
    elif edit == "eagle3":
        tensors["d2t"] = torch.zeros(64, dtype=torch.int64)
    elif edit == "hidden":
        config = toy_eagle_config(hidden_size=64)
    elif edit == "vocab":
        config = toy_eagle_config(vocab_size=400)
    elif edit == "layers":
        config = toy_eagle_config(num_hidden_layers=2)
    elif edit == "embedding":
        tensors["embed_tokens.weight"] = torch.ones(400, 32)
    return tensors, config


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ("missing", r"missing layers\.0\.mlp\.up_proj\.weight"),
        ("extra", r"extra layers\.0\.input_layernorm\.weight"),
        ("misshapen", r"fc\.weight has shape \[32, 32\]; this config and target expect \[32, 64\]"),
        ("eagle3", "extra d2t .*EAGLE-3"),
        ("hidden", "hidden size is 64 and the target's is 32"),
        ("vocab", "vocabulary is 400 and the target's head has 320"),
        ("layers", "num_hidden_layers=2"),
        ("embedding", r"embed_tokens\.weight has shape \[400, 32\]"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(target: Target, edit: str, says: str) -> None:
    tensors, config = change(edit)
    with pytest.raises(DraftMismatch, match=says):
        EagleDraft(config, tensors, target)


def test_an_unknown_architecture_is_refused_by_name(target: Target) -> None:
    config = toy_eagle_config()
    config.model_type = "mixtral"
    with pytest.raises(DraftMismatch, match="mixtral"):
        EagleDraft(config, toy_eagle_tensors(), target)


@torch.inference_mode()
def test_loading_from_folders(tmp_path: Path, target: Target) -> None:
    loaded = load_target(str(save_toy_target(tmp_path / "target")), dtype="float32")
    assert loaded.tokenizer_fingerprint == target.tokenizer_fingerprint
    ids = torch.arange(5)
    torch.testing.assert_close(
        loaded.features(ids, loaded.new_cache()), target.features(ids, target.new_cache()), atol=1e-5, rtol=0
    )
    folder = save_toy_eagle(tmp_path / "eagle")
    from_safetensors = load_draft(str(folder), loaded)
    torch.save(toy_eagle_tensors(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    from_bin = load_draft(str(folder), loaded)
    features = torch.randn(5, 32)
    assert torch.equal(from_safetensors.extend(ids, features), from_bin.extend(ids, features))
    assert load_draft(str(tmp_path / "target"), loaded).name == "causal_lm"


def test_a_standalone_draft_with_another_tokenizer_is_refused(tmp_path: Path, target: Target) -> None:
    folder = tmp_path / "other"
    toy_causal_lm(320).save_pretrained(folder)
    toy_tokenizer(words=300).save_pretrained(folder)
    with pytest.raises(TokenizerMismatch, match="not the target's"):
        load_draft(str(folder), target)


class Boom:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("was-run"),))


def test_a_pickle_with_code_is_refused_and_not_run(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save_toy_eagle(tmp_path / "eagle")
    (folder / "model.safetensors").unlink()
    torch.save({"fc.weight": Boom()}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="would run code"):
        load_draft(str(folder), target)
    assert not (tmp_path / "was-run").exists()


def spoil(folder: Path, how: str) -> None:
    weights, config = folder / "model.safetensors", folder / "config.json"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif how == "text":
        weights.write_text("not tensors")
    elif how == "no config":
        config.unlink()
    elif how == "broken config":
        config.write_text("{")
    elif how == "no model_type":
        config.write_text("{}")
    elif how == "unknown model_type":
        config.write_text(json.dumps({"model_type": "no_such_model"}))
    elif how == "unrelated tensors":
        save_file({"weight": torch.ones(2)}, weights)


@pytest.mark.parametrize(
    "how",
    ["truncated", "text", "no config", "broken config", "no model_type", "unknown model_type", "unrelated tensors"],
)
def test_broken_folders_are_refused_in_one_line(tmp_path: Path, target: Target, how: str) -> None:
    folder = save_toy_eagle(tmp_path / "eagle")
    spoil(folder, how)
    with pytest.raises(HotheadError) as caught:
        load_draft(str(folder), target)
    assert str(folder) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load_target(str(tmp_path / "nothing.gguf"))
    with pytest.raises(InputError, match="dtype"):
        load_target(str(save_toy_target(tmp_path / "t")), dtype="int3")


def test_a_config_that_contradicts_itself_is_one_line(target: Target, tmp_path: Path) -> None:
    folder = save_toy_eagle(tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 33}), encoding="utf-8")
    with pytest.raises(DraftMismatch, match=r"no possible layer .*33.* not a multiple"):
        load_draft(str(folder), target)
