"""EAGLE-3 drafts against a plain reference without a cache, the features they read, and exactness."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from toy_drafts import H, V, eagle3_config, eagle3_tensors, save_draft, save_eagle3, some_ids
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from hothead.dynamic import DynamicConfig
from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.engine.tree import DraftShape
from hothead.errors import DraftMismatch, InputError
from hothead.export.prune import prune
from hothead.models.eagle3 import Eagle3Draft, fused_layer_ids
from hothead.models.loading import load_draft
from hothead.models.target import Target
from hothead.models.toy import toy_causal_lm, toy_eagle_config, toy_target, toy_tokenizer
from hothead.ranking.ranking import TokenRanking
from hothead.vocab import DraftVocab

LAYERS = 6


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target(layers=LAYERS)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def plain_eagle3(tensors: dict[str, Tensor], embedded: Tensor, g: Tensor, before: bool) -> tuple[Tensor, Tensor]:
    """The layer from its formulas, all positions at once: [n, H], [n, H] -> (next g, what the head reads), [n, H]."""
    t = {name.removeprefix("midlayer."): tensor.float() for name, tensor in tensors.items()}
    n, heads, key_heads, d = len(g), 4, 2, H // 4
    normed = norm(g, t["hidden_norm.weight"])
    x = torch.cat([norm(embedded, t["input_layernorm.weight"]), normed], -1)
    q, k, v = (
        (x @ t[f"self_attn.{name}_proj.weight"].T).view(1, n, count, d).transpose(1, 2)
        for name, count in (("q", heads), ("k", key_heads), ("v", key_heads))
    )
    rotary = LlamaRotaryEmbedding(toy_eagle_config(V, H))
    q, k = apply_rotary_pos_emb(q, k, *rotary(x[None], torch.arange(n)[None]))
    k, v = (each.repeat_interleave(heads // key_heads, dim=1) for each in (k, v))
    scores = (q @ k.transpose(2, 3) / d**0.5).masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf)
    attended = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, H) @ t["self_attn.o_proj.weight"].T
    y = (normed if before else g) + attended
    z = norm(y, t["post_attention_layernorm.weight"])
    gate, up = (z @ t[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    y = y + (functional.silu(gate) * up) @ t["mlp.down_proj.weight"].T
    return y, norm(y, t["norm.weight"])


def fused(tensors: dict[str, Tensor], target: Target, ids: Tensor) -> Tensor:
    """g of every position, by transformers' own hidden states: [n, H]."""
    plain = toy_causal_lm(V, layers=LAYERS)  # the target's own weights, in transformers' layers
    states = plain(input_ids=ids[None], output_hidden_states=True).hidden_states
    inputs = torch.cat([states[i][0] for i in (2, LAYERS // 2, LAYERS - 3)], dim=-1)
    return inputs @ tensors["fc.weight"].float().T


@pytest.mark.parametrize("before", [False, True])
@torch.inference_mode()
def test_in_pieces_it_is_the_formulas_in_one_pass(target: Target, before: bool) -> None:
    tensors = eagle3_tensors(some_ids())
    draft = Eagle3Draft({**eagle3_config(), "norm_before_residual": before}, tensors, target)
    ids = torch.randint(0, V, (9,), generator=torch.Generator().manual_seed(3))
    g, cache = fused(tensors, target, ids), target.new_cache()

    # Prefill: five positions of the target, and the tokens after them.
    features = target.forward(ids[:5], cache, taps=draft.taps).features
    hidden = draft.extend(ids[:6], features)
    following = target.embedding(ids[1:6])
    after, read = plain_eagle3(tensors, following, g[:5], before)
    torch.testing.assert_close(hidden, read[-1:], atol=2e-3, rtol=0)

    # Two drafted steps feed on the draft's own g ...
    drafted = torch.tensor([11, 12])
    one = draft.step(drafted[:1], hidden)
    two = draft.step(drafted[1:], one)
    for count in (1, 2):
        embedded = torch.cat([following, target.embedding(drafted[:count])])
        chain = torch.cat([g[:5], after[4:]])
        after, read = plain_eagle3(tensors, embedded, chain, before)
        torch.testing.assert_close((one, two)[count - 1], read[-1:], atol=2e-3, rtol=0)

    # ... and are forgotten when the target has verified: it took in three more tokens and two of them stand.
    draft.rollback()
    features = target.forward(ids[5:8], cache, taps=draft.taps).features[:2]
    hidden = draft.extend(ids[6:8], features)
    _, read = plain_eagle3(tensors, target.embedding(ids[1:8]), g[:7], before)
    torch.testing.assert_close(hidden, read[-1:], atol=2e-3, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("slots", [None, 8])
def test_the_text_is_the_targets(target: Target, temperature: float, slots: int | None) -> None:
    draft = Eagle3Draft(eagle3_config(), eagle3_tensors(some_ids()), target)
    params = SamplingParams(temperature=temperature, max_new_tokens=24, seed=5, ignore_eos=True)
    dynamic = None if slots is None else DynamicConfig(slots=slots)
    found = SpeculativeDecoder(target, draft, draft.vocab, dynamic).generate([5, 6, 7], params)
    assert len(found.target_ids) == 24
    if temperature == 0:
        assert found.target_ids == SpeculativeDecoder(target).generate([5, 6, 7], params).target_ids


@pytest.mark.parametrize("shape", [(4, 2), (3, 4, 12)])
def test_trees(target: Target, shape: tuple[int, ...]) -> None:
    draft = Eagle3Draft(eagle3_config(), eagle3_tensors(some_ids()), target)
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    found = SpeculativeDecoder(target, draft, shape=DraftShape(*shape)).generate([5, 6, 7], params)
    assert found.target_ids == SpeculativeDecoder(target).generate([5, 6, 7], params).target_ids


@torch.inference_mode()
def test_a_branch_of_a_tree_is_a_chain(target: Target) -> None:
    ids, made = torch.tensor([5, 6, 7, 8]), []
    for _ in range(2):
        draft = Eagle3Draft(eagle3_config(), eagle3_tensors(some_ids()), target)
        made.append((draft, draft.extend(ids, torch.ones(4, 3 * H))))
    (tree, root), (chain, state) = made
    first = tree.step(torch.tensor([20, 21]), root.expand(2, -1), torch.tensor([-1, -1]))
    second = tree.step(torch.tensor([30, 31]), first[[1, 0]], torch.tensor([1, 0]))
    # 30 follows 21, and 31 follows 20.
    for target_id in (20, 31):
        state = chain.step(torch.tensor([target_id]), state)
    torch.testing.assert_close(second[1:], state, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_an_id_without_a_row_is_never_drafted(target: Target) -> None:
    ids = some_ids()
    draft = Eagle3Draft(eagle3_config(), eagle3_tensors(ids), target)
    assert draft.vocab is not None
    assert draft.vocab.target_ids.tolist() == ids.tolist()
    decoder = SpeculativeDecoder(target, draft)
    assert decoder.hot is not None
    assert decoder.hot.head.target_ids.tolist() == ids.tolist()
    logits = draft.lm_head.finish(functional.linear(torch.randn(2, H), draft.lm_head.weight, draft.lm_head.bias))
    assert torch.isneginf(logits[:, np.setdiff1d(np.arange(V), ids)]).all()
    assert torch.isfinite(logits[:, ids]).all()


def test_without_a_head_of_its_own_it_reads_the_targets(target: Target) -> None:
    tensors = eagle3_tensors(some_ids())
    bare = {name: tensor for name, tensor in tensors.items() if name not in ("lm_head.weight", "d2t", "t2d")}
    copied = bare | {"lm_head.weight": target.lm_head.weight.clone()}
    answers = []
    for found in (bare, copied):
        draft = Eagle3Draft(eagle3_config(None), found, target)
        assert draft.vocab is not None
        assert draft.vocab.is_full
        answers.append(SpeculativeDecoder(target, draft).generate([5, 6, 7], SamplingParams(max_new_tokens=30)))
    assert answers[0].stats.misses == 0
    assert answers[0].target_ids == answers[1].target_ids
    assert answers[0].stats.rounds == answers[1].stats.rounds


def test_a_pruned_draft_is_the_draft_over_the_same_vocabulary(target: Target, tmp_path: Path) -> None:
    folder = save_eagle3(tmp_path / "draft", some_ids())
    ranking = TokenRanking(np.random.default_rng(5).permutation(V) + 1, "")
    vocab = prune(folder, ranking, tmp_path / "out", sizes={"size": 64}).vocab
    params = SamplingParams(max_new_tokens=30, ignore_eos=True)
    answers = []
    for draft in (load_draft(str(folder), target), load_draft(str(tmp_path / "out"), target)):
        assert isinstance(draft, Eagle3Draft)
        over = DraftVocab.from_target_ids(vocab.target_ids, V)
        answers.append(SpeculativeDecoder(target, draft, over).generate([5, 6, 7], params))
    assert answers[0].target_ids == answers[1].target_ids
    assert answers[0].stats.rounds == answers[1].stats.rounds


def test_speculators_layout_is_read(target: Target, tmp_path: Path) -> None:
    inner = eagle3_config(None)
    config = {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "draft_vocab_size": 192}
    tensors = eagle3_tensors(some_ids(), prefix="layers.0.")
    tensors["embed_tokens.weight"] = torch.randn(V, H)
    folder = save_draft(tmp_path / "draft", tensors, {**config, "transformer_layer_config": inner})
    assert isinstance(load_draft(str(folder), target), Eagle3Draft)


def drop(tensors: dict[str, Any], name: str) -> None:
    del tensors[name]


@pytest.mark.parametrize(
    ("change", "config", "error", "says"),
    [
        (lambda t: drop(t, "norm.weight"), {}, DraftMismatch, "missing norm.weight"),
        (lambda t: drop(t, "lm_head.weight"), {}, DraftMismatch, "brings no lm_head.weight"),
        (lambda t: drop(t, "d2t"), {}, DraftMismatch, "missing d2t"),
        (lambda t: t.update(more=torch.ones(1)), {}, DraftMismatch, "extra more"),
        (lambda t: t.update({"fc.weight": torch.ones(H, 2 * H)}), {}, DraftMismatch, "fc.weight has shape"),
        (lambda t: t.update(d2t=torch.zeros(192, dtype=torch.int64)), {}, InputError, "all zeros"),
        (lambda t: None, {"model_type": "qwen3"}, DraftMismatch, "'qwen3' layers"),
        (lambda t: None, {"num_hidden_layers": 2}, DraftMismatch, "has 1 layer; found 2"),
        (lambda t: None, {"eagle_aux_hidden_state_layer_ids": [1, 2]}, DraftMismatch, r"found \[1, 2\]"),
        (lambda t: None, {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, DraftMismatch, "it has 6"),
    ],
)
def test_strict_loading(target: Target, change: Any, config: dict[str, Any], error: type, says: str) -> None:
    tensors = eagle3_tensors(some_ids())
    change(tensors)
    with pytest.raises(error, match=says):
        Eagle3Draft(eagle3_config(**config), tensors, target)


def test_which_layers_it_reads(target: Target) -> None:
    assert fused_layer_ids({}, target) == (2, 3, 3)
    assert fused_layer_ids({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}, target) == (0, 1, 2)
    small = Target(toy_causal_lm(layers=2, eos_token_id=toy_tokenizer().eos_token_id), toy_tokenizer())
    with pytest.raises(DraftMismatch, match="it has 2"):
        Eagle3Draft(eagle3_config(), eagle3_tensors(some_ids()), small)
