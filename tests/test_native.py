"""The compiled layer against the eager one and against transformers: every shape it may meet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from hothead import (
    DraftShape,
    DraftVocab,
    DynamicConfig,
    SamplingParams,
    SpeculativeDecoder,
    load_draft,
    load_target,
    native,
)
from hothead.errors import InputError
from hothead.models.compiled import CompiledLayers, CompiledNorm
from hothead.models.layers import FusedLayers, Rotary
from hothead.models.target import CausalLM
from hothead.models.toy import save_toy_eagle, save_toy_target, toy_causal_lm
from hothead.models.window import tree_window

pytestmark = pytest.mark.skipif(
    native.obstacle(torch.float32, "cpu") is not None,
    reason=f"cannot run compiled: {native.obstacle(torch.float32, 'cpu')}",
)

QWEN2 = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TREE = torch.tensor([-1, 0, 0, 1, 2, 2])


def qwen2() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**QWEN2))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_()
    return model


MODELS = {
    "llama": lambda: toy_causal_lm(64),
    "llama, heads of 40": lambda: toy_causal_lm(64, head_dim=40),
    "llama, heads of 64": lambda: toy_causal_lm(64, head_dim=64),
    "llama, heads of 128, no groups": lambda: toy_causal_lm(64, head_dim=128, num_key_value_heads=4),
    "qwen2, biases": qwen2,
}


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_passes_give_the_models_own_logits(name: str) -> None:
    plain = MODELS[name]().eval()
    ids = torch.randint(0, 64, (120,), generator=torch.Generator().manual_seed(1))
    expected = plain(input_ids=ids[None]).logits[0]
    model = CausalLM(plain, compiled=True)
    assert model.is_compiled
    cache = model.new_cache(capacity=4)  # grows
    logits, at = [], 0
    for n in (3, 1, 2, 70, 5, 33):  # 70 is more than it takes at once: torch's attention reads the same cache
        logits.append(model.forward(ids[at : at + n], cache).logits)
        model.forward(torch.tensor([9, 9, 9]), cache)  # a wrong draft ...
        cache.truncate(at := at + n)  # ... forgotten
    torch.testing.assert_close(torch.cat(logits), expected[:at], atol=2e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_tree_is_what_the_eager_layers_make_of_it(dtype: torch.dtype) -> None:
    if native.obstacle(dtype, "cpu") is not None:
        pytest.skip(f"no packed {dtype} products here")
    eager, compiled = (CausalLM(toy_causal_lm(64, head_dim=64).to(dtype), compiled=way) for way in (False, True))
    ids = torch.randint(0, 64, (37,), generator=torch.Generator().manual_seed(2))
    found = []
    for model in (eager, compiled):
        cache = model.new_cache()
        model.forward(ids[:31], cache)
        found.append(model.forward(ids[31:], cache, window=tree_window(TREE, 31), taps=(1,)))
    for ours, theirs in ((found[1].logits, found[0].logits), (found[1].features, found[0].features)):
        tolerance = (1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps) * float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_verifying_together_gives_the_bits_of_decoding_one_by_one(dtype: torch.dtype) -> None:
    if native.obstacle(dtype, "cpu") is not None:
        pytest.skip(f"no packed {dtype} products here")
    model = CausalLM(toy_causal_lm(64, head_dim=64).to(dtype), compiled=True)
    ids = torch.randint(0, 64, (140,), generator=torch.Generator().manual_seed(3))
    alone = model.new_cache()
    expected = torch.cat([model.forward(ids[at : at + 1], alone).logits for at in range(len(ids))])
    together, logits, at = model.new_cache(), [], 0
    for n in (3, 5, 13, 49, 8, 1, 2, 14, 17, 4, 5, 19):  # over every boundary of blocks of keys
        logits.append(model.forward(ids[at : at + n], together).logits)
        at += n
    assert at == len(ids)
    assert torch.equal(torch.cat(logits), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("past", [31, 61])  # the tree within a block of keys, and across two
@torch.inference_mode()
def test_a_path_of_a_tree_has_the_bits_of_the_same_chain(dtype: torch.dtype, past: int) -> None:
    if native.obstacle(dtype, "cpu") is not None:
        pytest.skip(f"no packed {dtype} products here")
    model = CausalLM(toy_causal_lm(64, head_dim=64).to(dtype), compiled=True)
    ids = torch.randint(0, 64, (past + len(TREE) + 1,), generator=torch.Generator().manual_seed(4))
    before, tree, after = ids[:past], ids[past:-1], ids[-1:]
    for path in ([0, 1, 3], [0, 2, 4], [0, 2, 5]):
        cache, alone = model.new_cache(), model.new_cache()
        model.forward(before, cache)
        found = model.forward(tree, cache, window=tree_window(TREE, past)).logits[path]
        cache.keep(past, path)
        model.forward(before, alone)
        expected = torch.cat([model.forward(token[None], alone).logits for token in tree[path]])
        assert torch.equal(found, expected)
        assert torch.equal(model.forward(after, cache).logits, model.forward(after, alone).logits)


@pytest.mark.parametrize("layers_class", [FusedLayers, CompiledLayers])
@pytest.mark.parametrize("model", [toy_causal_lm, qwen2])
@torch.inference_mode()
def test_the_last_rows_alone_are_those_of_all_and_leave_the_same_cache(model: Any, layers_class: Any) -> None:
    inner = model().eval().model
    layers, rotary = layers_class(inner.layers, inner.norm), Rotary(inner.rotary_emb)
    whole, part = layers.new_cache(16), layers.new_cache(16)
    generator = torch.Generator().manual_seed(5)
    for n, last in ((50, 1), (40, 7), (3, 3), (5, 1), (2, 1), (1, 1)):
        x = torch.randn(n, 32, generator=generator)
        rotation = rotary.at(whole.length, n, None, x.device)
        expected, tapped = layers(x, rotation, whole, None, (1,))
        found, tapped_too = layers(x, rotation, part, None, (1,), last=last)
        assert found.shape == (last, 32)
        if layers_class is CompiledLayers:
            assert torch.equal(found, expected[-last:])
            assert torch.equal(tapped_too, tapped)
        torch.testing.assert_close(found, expected[-last:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 5), (33, 48), (130, 577)], ids=str)
@pytest.mark.parametrize("pack", [True, False])
@torch.inference_mode()
def test_products_of_any_shape_are_the_plain_ones(dtype: torch.dtype, shape: tuple[int, int], pack: bool) -> None:
    if native.obstacle(dtype, "cpu") is not None:
        pytest.skip(f"no packed {dtype} products here")
    generator = torch.Generator().manual_seed(5)
    weight, bias, other = (torch.randn(size, generator=generator).to(dtype) for size in (shape, shape[0], shape))
    x = torch.randn(40, shape[1], generator=generator).to(dtype)
    product = native.NativeLinear(weight.clone(), bias, pack=pack)
    for now in (weight, other):
        product.reload(now, bias)
        expected = x.double() @ now.double().T + bias.double()
        found = product(x)
        # A sum of up to 577 float32 products, then rounded to the dtype.
        tolerance = max(torch.finfo(dtype).eps, 32 * torch.finfo(torch.float32).eps) * float(expected.abs().max())
        torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0)
        assert all(torch.equal(product(x[:n]), found[:n]) for n in range(1, 40))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 511, 512, 1300])
def test_the_likeliest_is_the_first_of_the_greatest(dtype: torch.dtype, width: int) -> None:
    if native.obstacle(dtype, "cpu") is not None:
        pytest.skip(f"no packed {dtype} products here")
    native.native_classes()
    logits = torch.randint(-9, 9, (40, width), generator=torch.Generator().manual_seed(5)).to(dtype)
    logits[1, : width - 1] = -torch.inf  # as empty slots have it
    expected = [(row == row.max()).nonzero()[0, 0] for row in logits]
    assert torch.equal(native.argmax(logits), torch.stack(expected))
    found, log_probs = native.likeliest(logits)
    assert torch.equal(found, torch.stack(expected))
    assert torch.isfinite(log_probs).all()
    torch.testing.assert_close(log_probs, logits.float().log_softmax(-1).amax(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [5, 16, 577])
def test_a_norm_is_the_plain_one(dtype: torch.dtype, width: int) -> None:
    if native.obstacle(dtype, "cpu") is not None:
        pytest.skip(f"no packed {dtype} products here")
    native.native_classes()
    norm = LlamaRMSNorm(width, 1e-5)
    norm.weight.data = torch.randn(width, generator=torch.Generator().manual_seed(6))
    x = torch.randn(7, 2 * width, generator=torch.Generator().manual_seed(5)).to(dtype)[:, :width]
    norm = norm.to(dtype)
    expected = norm.weight.double() * x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    found = CompiledNorm(norm)(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=max(torch.finfo(dtype).eps / 2, 1e-6), atol=1e-6)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    folder = tmp_path_factory.mktemp("native")
    yield (
        str(save_toy_target(folder / "target")),
        str(save_toy_eagle(folder / "eagle")),
        str(save_toy_target(folder / "draft", seed=3)),
    )


@pytest.mark.parametrize("draft", ["eagle", "causal_lm"])
@pytest.mark.parametrize("shape", [DraftShape(), DraftShape(3, 2, 6)], ids=["chain", "tree"])
def test_both_modes_give_the_same_text(folders: tuple[str, str, str], draft: str, shape: DraftShape) -> None:
    texts, rounds = set(), {}
    for mode in ("eager", "compiled"):
        target = load_target(folders[0], "float32", engine_mode=mode)
        assert target.is_compiled == (mode == "compiled")
        model = load_draft(folders[1 if draft == "eagle" else 2], target)
        vocab = DraftVocab.from_target_ids(range(200), target.vocab_size)
        for name, arguments in {
            "plain": (),
            "full": (model,),
            "static": (model, vocab),
            "dynamic": (model, vocab, DynamicConfig(16)),
        }.items():
            decoder = SpeculativeDecoder(target, *arguments, shape=shape)
            answer = decoder.generate(list(range(5, 45)), SamplingParams(max_new_tokens=24, ignore_eos=True))
            texts.add(tuple(answer.target_ids[:24]))
            rounds[mode, name] = answer.stats.rounds
    assert len(texts) == 1
    for name in ("full", "static", "dynamic"):  # the draft proposes the same, too
        assert rounds["eager", name] == rounds["compiled", name]


def test_what_cannot_run_compiled_is_refused(folders: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="only fused layers can"):
        load_target(folders[0], "float32", fuse=False, engine_mode="compiled")
    with pytest.raises(InputError, match="float16"):
        load_target(folders[0], "float16", engine_mode="compiled")
    with pytest.raises(InputError, match="auto, eager, compiled; found 'fast'"):
        load_target(folders[0], "float32", engine_mode="fast")
    assert not load_target(folders[0], "float16").is_compiled


def test_without_a_compiler_what_was_built_still_runs(
    folders: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    native.build()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert native.obstacle(torch.float32, "cpu") is None
    assert load_target(folders[0], "float32").is_compiled
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not load_target(folders[0], "float32").is_compiled
    with pytest.raises(InputError, match=r"no C\+\+ compiler is here"):
        load_target(folders[0], "float32", engine_mode="compiled")


def test_a_failing_compiler_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "layer.cpp"
    broken.write_text("int main( {")
    monkeypatch.setattr(native, "SOURCE", broken)
    with pytest.raises(InputError, match=r"cannot compile the engine .*error"):
        native.build()
    assert not native.is_built()
    assert list((tmp_path / "hothead").iterdir()) == []
