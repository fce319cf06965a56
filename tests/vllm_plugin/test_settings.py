"""The settings block, the vocabulary it makes, and what both refuse. Needs no vLLM."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hothead.errors import HotheadError, InputError, TokenizerMismatch
from hothead.export.base import FORMATS, Format, Known, write_map
from hothead.models.toy import save_toy_target, toy_tokenizer
from hothead.ranking.ranking import TokenRanking
from hothead.tokenizer import byte_target_ids, fingerprint, special_target_ids
from hothead.vllm_plugin.settings import Settings, read_settings
from hothead.vllm_plugin.vocabulary import make_vocab
from hothead.vocab import DraftVocab

TOTAL = 320


def settings(**block: Any) -> Settings:
    found = read_settings({"hothead": block})
    assert found is not None
    return found


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_toy_target(tmp_path_factory.mktemp("target"), TOTAL))


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranking") / "ranking.safetensors"
    TokenRanking.from_texts(["a small hot draft vocabulary"] * 3, toy_tokenizer()).save(path)
    return path


def test_no_block_is_no_settings() -> None:
    assert read_settings({}) is None
    assert read_settings({"other": {"hothead": 1}}) is None


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"ranking": "r", "sise": 3}, "no setting is called 'sise'; did you mean 'size'?"),
        ({"ranking": "r", "zzz": 3}, "no setting is called 'zzz'; known are ranking, token_map"),
        ({}, "give exactly one of ranking, token_map, token_ids, token_ids_by_frequency; found none"),
        ({"ranking": "r", "token_map": "m", "size": 3}, "found ranking and token_map"),
        ({"ranking": "r"}, "with ranking give exactly one of size, ratio, pruning_ratio, coverage; found none"),
        ({"ranking": "r", "size": 3, "ratio": 0.5}, "found size and ratio"),
        ({"token_ids": [1], "size": 1}, "token_ids are the vocabulary itself, and size would choose from it"),
        ({"token_map": "m", "coverage": 0.9}, "a token_map has no counts"),
        ({"ranking": "r", "size": 0}, "size: Input should be greater than or equal to 1; found 0"),
        ({"ranking": "r", "pruning_ratio": 1.0}, "pruning_ratio: Input should be less than 1; found 1.0"),
        ({"token_ids": [1], "policy": "target_topk"}, "policy 'target_topk' is not one of on_miss, prompt, none"),
        ({"token_ids": [1], "dynamic_slots": -1}, "dynamic_slots"),
        ({"token_ids": []}, "token_ids"),
    ],
)
def test_wrong_settings_are_one_clear_line(block: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as error:
        read_settings({"hothead": block})
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_block_must_be_an_object() -> None:
    with pytest.raises(InputError, match="must be an object of settings; found list"):
        read_settings({"hothead": ["ranking"]})


def test_policies() -> None:
    assert settings(token_ids=[1]).policies == ("on_miss", "prompt")
    assert settings(token_ids=[1], policy="none").policies == ()
    assert settings(token_ids=[1], dynamic_slots=0).policies == ()


def test_ranking_gives_what_from_ranking_gives(ranking: Path, target: str) -> None:
    made = make_vocab(settings(ranking=str(ranking), pruning_ratio=0.1), TOTAL, target)
    assert made == DraftVocab.from_ranking(TokenRanking.load(ranking), pruning_ratio=0.1, target_vocab_size=TOTAL)


def test_ranking_of_another_tokenizer_is_refused(ranking: Path, tmp_path: Path) -> None:
    other = toy_tokenizer()
    other.add_tokens(["<|more|>"])
    other.save_pretrained(tmp_path)
    with pytest.raises(TokenizerMismatch):
        make_vocab(settings(ranking=str(ranking), size=290), TOTAL, str(tmp_path))


def test_special_tokens_of_a_ranking(ranking: Path) -> None:
    small = settings(ranking=str(ranking), size=64, special_tokens="ignore")
    assert len(make_vocab(small, TOTAL, None)) == 64
    with pytest.raises(InputError, match="too small"):
        make_vocab(settings(ranking=str(ranking), size=64), TOTAL, None)
    chosen = make_vocab(settings(ranking=str(ranking), size=64, special_tokens=[300 - 50]), TOTAL, None)
    assert 250 in chosen


def test_token_ids_keep_the_tokenizers_special_tokens(target: str) -> None:
    tokenizer = toy_tokenizer()
    required = np.union1d(special_target_ids(tokenizer), byte_target_ids(tokenizer))
    made = make_vocab(settings(token_ids=[3, 300]), TOTAL, target)
    assert set(made.target_ids) == {3, 300, *required}
    assert set(make_vocab(settings(token_ids=[3, 300], special_tokens="ignore"), TOTAL, target).target_ids) == {3, 300}


@given(st.permutations(range(200)), st.integers(64, 128))
def test_a_token_map_is_cut_in_its_own_order(order: list[int], size: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map.json"
        path.write_text(json.dumps(order))
        made = make_vocab(settings(token_map=str(path), size=size, special_tokens="ignore"), TOTAL, None)
    rows = 64 if size == 64 else 128  # whole blocks of 64
    assert set(made.target_ids) == set(order[:rows])
    assert list(made.next_target_ids) == order[rows:]


@pytest.mark.parametrize("form", [form for form in FORMATS if "map" in form.holds], ids=lambda form: form.name)
def test_token_maps_of_every_format(tmp_path: Path, form: Format) -> None:
    suffix = {"own": ".safetensors", "torch_files": ".pt", "gguf": ".gguf", "arrays": "", "text": ".json"}[form.module]
    path = tmp_path / f"map{'.safetensors' if form.name == 'eagle3' else '.txt' if form.name == 'text' else suffix}"
    write_map(path, Known(TOTAL).token_map(np.array([7, 3, 5]), is_ranked=True), form.name)
    made = make_vocab(settings(token_map=str(path), special_tokens="ignore"), TOTAL, None)
    assert made.target_ids.tolist() == [3, 5, 7]
    with pytest.raises(HotheadError, match=r"another tokenizer|larger head|past the|ids"):
        make_vocab(settings(token_map=str(path), special_tokens="ignore"), 4, None)


def test_a_map_without_an_order_cannot_be_cut(tmp_path: Path) -> None:
    path = tmp_path / "vocab.safetensors"
    DraftVocab.from_target_ids(np.arange(128), TOTAL).save(path)
    with pytest.raises(InputError, match="in no order of frequency"):
        make_vocab(settings(token_map=str(path), size=64), TOTAL, None)


def test_counts_are_no_map(tmp_path: Path, ranking: Path) -> None:
    with pytest.raises(InputError, match="holds counts"):
        make_vocab(settings(token_map=str(ranking)), toy_tokenizer().vocab_size + 3, None)


def test_a_pickle_with_code_in_it_is_refused(tmp_path: Path) -> None:
    import pickle

    path = tmp_path / "map.pt"
    path.write_bytes(pickle.dumps(Path("x")))
    with pytest.raises(InputError, match=r"map\.pt"):
        make_vocab(settings(token_map=str(path)), TOTAL, None)


def test_frequencies_by_target_id(tmp_path: Path, target: str) -> None:
    """The vLLM request's form: indexed by target id, counts or shares, inline or in a file."""
    import torch

    frequency = np.zeros(259)
    frequency[[5, 9]] = [0.75, 0.25]
    torch.save(torch.tensor(frequency), tmp_path / "frequency.pt")
    inline = settings(token_ids_by_frequency=frequency.tolist(), ratio=0.2, special_tokens="ignore")
    in_file = settings(
        token_ids_by_frequency=str(tmp_path / "frequency.pt"), pruning_ratio=0.8, special_tokens="ignore"
    )
    made = make_vocab(inline, TOTAL, None)
    assert len(made) == 64
    assert {5, 9} <= set(made.target_ids)
    assert made == make_vocab(in_file, TOTAL, None)
    kept = make_vocab(settings(token_ids_by_frequency=frequency.tolist(), size=TOTAL), TOTAL, target)
    assert kept.tokenizer_fingerprint == fingerprint(toy_tokenizer())
