"""A model's own answers: batches do not change greedy ones, nothing is generated twice, and only answers count."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hothead.errors import InputError  # noqa: E402
from hothead.ranking.answers import Answer, AnswerLog, Prompt  # noqa: E402
from hothead.ranking.generate import (  # noqa: E402
    LocalModel,
    Sampling,
    generate_answers,
    generation_settings,
)
from hothead.tokenizer import chat_ids  # noqa: E402

PROMPTS = [Prompt(("short",)), Prompt(("a prompt that is quite a bit longer than the others " * 3,))] + [
    Prompt((f"question {i}", "and then?")) for i in range(5)
]


@pytest.fixture(scope="module")
def model(toy_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """A random Llama of two small layers, saved and loaded as a real one is; its answers vary in length."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(toy_tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
        eos_token_id=toy_tokenizer.eos_token_id,
    )
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return LocalModel(folder, toy_tokenizer)


def answers_of(model: LocalModel, path: Path, sampling: Sampling, prompts: Any = PROMPTS, **options: Any) -> Any:
    log = AnswerLog(path, generation_settings("toy", model.tokenizer, sampling))
    generate_answers(prompts, model, log, sampling, **options)
    return [[answer.target_ids for answer in log.answers(key)] for key in log.keys(prompts)]


def greedy_one_by_one(model: LocalModel, ids: list[int], length: int) -> tuple[int, ...]:
    """The plainest greedy decoding there is: no cache, no padding, no batch."""
    found: list[int] = []
    while len(found) < length and not (found and found[-1] in model.stop_ids):
        with torch.inference_mode():
            logits = model.model(torch.tensor([ids + found])).logits[0, -1]
        found.append(int(logits.argmax()))
    return tuple(found)


def test_batched_greedy_answers_are_the_models_own(model: LocalModel, tmp_path: Path) -> None:
    sampling = Sampling(max_tokens=8)
    found = answers_of(model, tmp_path / "log", sampling, batch_size=4)
    assert [len(answers) for answers in found] == [len(prompt.turns) for prompt in PROMPTS]
    for prompt, answers in zip(PROMPTS, found, strict=True):
        said: list[str] = []
        for answer in answers:
            ids = chat_ids(model.tokenizer, prompt.messages(said))
            assert answer == greedy_one_by_one(model, ids, 8)
            said.append(model.tokenizer.decode(answer, skip_special_tokens=True))


def test_an_answer_ends_with_its_end_of_turn_token(model: LocalModel) -> None:
    end = model.tokenizer.eos_token_id
    pad = model.tokenizer.pad_token_id
    assert model._answer([5, 6, end, pad, pad]) == Answer((5, 6, end), model.tokenizer.decode([5, 6]), finished=True)
    assert model._answer([5, 6]) == Answer((5, 6), model.tokenizer.decode([5, 6]), finished=False)


def test_an_interrupted_run_goes_on(model: LocalModel, tmp_path: Path) -> None:
    for sampling in (Sampling(max_tokens=8), Sampling(temperature=1.0, max_tokens=8, seed=7)):
        whole = answers_of(model, tmp_path / f"whole{sampling.seed}", sampling, batch_size=2)
        cut = tmp_path / f"cut{sampling.seed}"
        calls = 0

        def interrupt(_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            answers_of(model, cut, sampling, batch_size=2, on_answers=interrupt)
        kept = len(cut.read_text().splitlines())
        assert 0 < kept < sum(len(prompt.turns) for prompt in PROMPTS)
        assert answers_of(model, cut, sampling, batch_size=2) == whole
        size = cut.stat().st_size
        answers_of(model, cut, sampling, batch_size=2)
        assert cut.stat().st_size == size  # nothing left to do


def test_sampling_follows_its_seed(model: LocalModel, tmp_path: Path) -> None:
    runs = [
        answers_of(model, tmp_path / str(i), Sampling(temperature=1.0, max_tokens=8, seed=seed))
        for i, seed in enumerate((1, 1, 2))
    ]
    assert runs[0] == runs[1] != runs[2]


def test_a_prompt_past_the_context_is_skipped(model: LocalModel, tmp_path: Path) -> None:
    prompts = [Prompt(("x" * 600,)), PROMPTS[0]]
    log = AnswerLog(tmp_path / "log", {})
    generate_answers(prompts, model, log, Sampling(max_tokens=4))
    keys = log.keys(prompts)
    assert [len(log.skipped([key])) for key in keys] == [1, 0]
    assert "exceed 512" in log.skipped(keys)[0]


def test_what_is_no_model_is_said(tmp_path: Path, toy_tokenizer: Any) -> None:
    toy_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="not a model transformers can load"):
        LocalModel(tmp_path, toy_tokenizer)
    with pytest.raises(InputError, match="at least 1"):
        Sampling(max_tokens=0)
