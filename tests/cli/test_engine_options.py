"""Shared options: their defaults are the engine's, and what does not fit is refused before anything is loaded."""

import dataclasses
import inspect
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch
import typer
from conftest import ToyFiles

from hothead import native
from hothead.cli.common import verb_app
from hothead.cli.engine_options import (
    DTYPES,
    ENGINE_MODES,
    WORTH_COMPILING,
    EngineOptions,
    SamplingOptions,
    option,
    with_options,
)
from hothead.dynamic import DynamicConfig, Slots
from hothead.engine.sampling import SamplingParams
from hothead.engine.tree import DraftShape
from hothead.errors import InputError, TokenizerMismatch
from hothead.models import loading
from hothead.models.toy import save_toy_eagle, toy_tokenizer
from hothead.ranking.ranking import TokenRanking
from hothead.vocab import DraftVocab


def options(toy_files: ToyFiles, **changes: object) -> EngineOptions:
    values = {
        "target": toy_files.target,
        "draft": toy_files.draft,
        "ranking": Path(toy_files.ranking),
        "size": 192,
        "slots": 16,
        "dtype": "float32",
    }
    return EngineOptions(**{**values, **changes})


def test_defaults_are_the_engines() -> None:
    assert EngineOptions().slots == DynamicConfig().slots
    assert EngineOptions().policy == DynamicConfig().policy
    assert EngineOptions().shape() == DraftShape()
    load = inspect.signature(loading.load_target).parameters
    assert EngineOptions().dtype == load["dtype"].default
    assert EngineOptions().device == load["device"].default
    assert SamplingOptions().params() == SamplingParams()
    assert EngineOptions().engine_mode == load["engine_mode"].default
    assert set(DTYPES) == set(loading.DTYPES)
    assert ENGINE_MODES == native.ENGINE_MODES


def test_the_options_make_the_decoder_they_name(toy_files: ToyFiles) -> None:
    dynamic = options(toy_files, num_steps=3).load().decoder()
    assert dynamic.shape.num_steps == 3
    tree = options(toy_files, draft_topk=2, num_draft_tokens=6, draft_p_min=0.25, verify_p_min=0.5).load().decoder()
    assert tree.shape == DraftShape(tree.shape.num_steps, 2, 6, 0.25, 0.5)
    assert isinstance(dynamic.hot, Slots)
    assert (dynamic.hot.head.num_static, dynamic.hot.head.num_slots) == (192, 16)
    static = options(toy_files, slots=0).load().decoder()
    assert static.hot is not None
    assert static.hot.head.num_slots == 0
    full = options(toy_files, ranking=None, size=None).load().decoder()
    assert full.hot is not None
    assert full.hot.head.num_static == 320
    plain = options(toy_files, draft=None, ranking=None, size=None).load().decoder()
    assert plain.hot is None
    refresh = options(toy_files, policy="full_refresh").load().decoder()
    assert type(refresh.hot).__name__ == "FullRefresh"


def test_every_way_to_say_the_size(toy_files: ToyFiles, tmp_path: Path) -> None:
    def rows(**changes: object) -> int:
        vocab = options(toy_files, size=None, **changes).load().vocab
        assert vocab is not None
        return len(vocab)

    assert rows(ratio=0.5) == 192  # 160, up to a multiple of 64
    assert rows(pruning_ratio=0.9) == 64
    assert rows(coverage=0.5) == 64
    vocab = DraftVocab.from_target_ids(np.arange(40), 320)
    vocab.save(tmp_path / "vocab.safetensors")
    assert rows(ranking=None, vocab=tmp_path / "vocab.safetensors") == 40


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": None}, "give the target"),
        ({"dtype": "int8"}, "--dtype must be one of bfloat16, float16, float32"),
        ({"threads": 0}, "--threads must be at least 1"),
        ({"engine_mode": "fast"}, "--engine-mode must be one of auto, eager, compiled; found 'fast'"),
        ({"num_steps": 0}, "--num-steps must be at least 1"),
        ({"draft_topk": 0}, "--draft-topk must be at least 1"),
        ({"draft_p_min": 2.0}, "--draft-p-min is a probability, from 0 to 1; found 2.0"),
        ({"verify_p_min": -1.0}, "--verify-p-min is a probability, from 0 to 1; found -1.0"),
        ({"num_draft_tokens": 9}, "a chain .* of 4 steps verifies 5 tokens"),
        ({"draft_topk": 2, "num_draft_tokens": 99}, "between 2 and 15"),
        ({"slots": -1}, "--slots must be 0 or more"),
        ({"vocab": Path("v")}, "--ranking and --vocab both give"),
        ({"ranking": None}, "--size needs a ranking"),
        ({"size": None}, "exactly one of --size, --ratio, --pruning-ratio, --coverage"),
        ({"ratio": 0.5}, "exactly one of --size, --ratio, --pruning-ratio, --coverage"),
        ({"draft": None}, "a draft vocabulary needs a draft"),
    ],
)
def test_options_that_do_not_fit_are_refused_unloaded(
    toy_files: ToyFiles, monkeypatch: pytest.MonkeyPatch, changes: dict, said: str
) -> None:
    monkeypatch.setattr(loading, "load_target", lambda *_: pytest.fail("loaded a model for nothing"))
    with pytest.raises(InputError, match=said):
        options(toy_files, **changes).load()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": 0}, "size must be between 1 and"),
        ({"size": -5}, "size must be between 1 and"),
        ({"size": 321}, "size must be between 1 and"),
        ({"size": None, "ratio": 1.5}, "ratio is the share"),
        ({"size": None, "pruning_ratio": 1.0}, "pruning_ratio is the share"),
        ({"size": None, "coverage": 0.0}, "coverage is the share"),
        ({"policy": "lru"}, "no policy is called 'lru'"),
        ({"device": "warp9"}, "--device warp9: not available here"),
        ({"target": "missing/place/x"}, "no such file or folder"),
        ({"draft": "missing/place/x"}, "no such file or folder"),
        ({"ranking": Path("missing.safetensors")}, "no such file"),
    ],
)
def test_values_that_cannot_be_used_are_refused(toy_files: ToyFiles, changes: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        options(toy_files, **changes).load()


def test_ids_of_another_tokenizer_are_refused(toy_files: ToyFiles, tmp_path: Path) -> None:
    other = toy_tokenizer(words=200)
    TokenRanking.from_texts(["w1 w2 w3"], other).save(tmp_path / "r.safetensors")
    with pytest.raises(TokenizerMismatch, match="rank again with the right one"):
        options(toy_files, ranking=tmp_path / "r.safetensors").load()
    DraftVocab.from_target_ids(np.arange(64), 320, "f" * 64).save(tmp_path / "v.safetensors")
    with pytest.raises(TokenizerMismatch, match="the same ids mean other tokens"):
        options(toy_files, ranking=None, size=None, vocab=tmp_path / "v.safetensors").load()
    DraftVocab.from_target_ids(np.arange(64), 999).save(tmp_path / "w.safetensors")
    with pytest.raises(TokenizerMismatch, match="999"):
        options(toy_files, ranking=None, size=None, vocab=tmp_path / "w.safetensors").load()


def test_drafts_that_do_not_fit_are_refused(toy_files: ToyFiles, tmp_path: Path) -> None:
    from hothead.errors import DraftMismatch

    for name, changes in (("vocab", {"vocab_size": 400}), ("hidden", {"hidden_size": 64})):
        folder = save_toy_eagle(tmp_path / name, **changes)
        with pytest.raises(DraftMismatch):
            options(toy_files, draft=str(folder)).load()


def test_pickles_with_code_and_truncated_files_are_refused(toy_files: ToyFiles, tmp_path: Path) -> None:
    folder = save_toy_eagle(tmp_path / "draft")
    (folder / "model.safetensors").unlink()
    torch.save({"fc.weight": print}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="refused"):
        options(toy_files, draft=str(folder)).load()
    (folder / "pytorch_model.bin").unlink()
    whole = Path(toy_files.draft, "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="unreadable or truncated"):
        options(toy_files, draft=str(folder)).load()
    (tmp_path / "r.safetensors").write_bytes(Path(toy_files.ranking).read_bytes()[:300])
    with pytest.raises(InputError, match="not a readable safetensors file"):
        options(toy_files, ranking=tmp_path / "r.safetensors").load()


def test_a_group_of_options_is_one_parameter() -> None:
    @dataclasses.dataclass(frozen=True)
    class Colours:
        red: Annotated[int, option("Red.")] = 1
        names: Annotated[list[str] | None, option("Names.", "--name")] = None

    seen = []

    @with_options
    def paint(colours: Colours, width: Annotated[int, option("Width.")] = 5) -> None:
        """Paint."""
        seen.append((colours, width))

    app = verb_app()
    app.command()(paint)
    command = typer.main.get_command(app)
    command.main(["--red", "7", "--name", "a", "--name", "b"], standalone_mode=False)
    command.main([], standalone_mode=False)
    assert seen == [(Colours(7, ["a", "b"]), 5), (Colours(), 5)]
    assert command.help == "Paint."


@pytest.mark.parametrize("verb", ["generate", "chat", "compare", "compare show", "bench head", "report"])
def test_help_fits_a_terminal(run_cli, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("COLUMNS", "80")
    outcome = run_cli(*verb.split(), "--help")
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80


def test_the_engine_says_how_it_runs(toy_files: ToyFiles) -> None:
    loaded = options(toy_files, engine_mode="eager", threads=1).load()
    assert loaded.settings["mode"] == "eager"
    assert (loaded.settings["threads"], loaded.settings["dtype"]) == (1, "float32")
    assert {"cores", "binding", "load_1min"} <= loaded.settings.keys()


def test_without_a_compiler_it_goes_on_eagerly_with_a_line(
    toy_files: ToyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    for mode, tokens, lines in (("compiled", 1, 1), ("auto", WORTH_COMPILING, 1), ("auto", 1, 0), ("eager", 9999, 0)):
        loaded = options(toy_files, engine_mode=mode).load(tokens)
        assert not loaded.target.is_compiled
        said = [line for line in capsys.readouterr().err.splitlines() if "going on eagerly" in line]
        assert len(said) == lines, mode


def test_auto_builds_for_long_work_only(toy_files: ToyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[bool] = []
    monkeypatch.setattr(native, "obstacle", lambda *_: None)
    monkeypatch.setattr(native, "is_built", lambda: False)
    monkeypatch.setattr(native, "build", lambda: built.append(True))
    monkeypatch.setattr(loading, "is_built", lambda: False)
    for tokens, times in ((WORTH_COMPILING - 1, 0), (WORTH_COMPILING, 1)):
        options(toy_files).load(tokens)
        assert len(built) == times
