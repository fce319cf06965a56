"""Finding tokenizers, telling them apart, and what a chat template makes of a conversation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SMOLLM2, make_toy_tokenizer

from hothead import tokenizer as tk
from hothead.errors import InputError

CHAT = [
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Blue, user.\n"},
    {"role": "user", "content": "Another?"},
    {"role": "assistant", "content": "a"},
]


# --- finding --------------------------------------------------------------------------------------


def test_a_package_resolves_to_its_gguf_file(smollm2_tokenizer: Any) -> None:
    source = tk.resolve_model(SMOLLM2)
    assert source.gguf_file is not None and (Path(source.location) / source.gguf_file).is_file()
    assert source.keywords == {"gguf_file": source.gguf_file}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("package:no_such_package_here", "pip install no_such_package_here"),
        ("package:numpy", "no .gguf file"),
        ("./missing/folder", "no such file or folder"),
        ("missing.gguf", "no such file"),
        ("missing.json", "no such file"),
        ("a/b/c", "not the form of a Hub name"),
    ],
)
def test_what_is_not_there_is_said(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tk.resolve_model(spec)


def test_folders_and_files_resolve(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no \.gguf file in"):
        tk.resolve_model(tmp_path)
    (tmp_path / "a.gguf").touch()
    assert tk.resolve_model(tmp_path) == tk.ModelSource(str(tmp_path), "a.gguf")
    (tmp_path / "b.gguf").touch()
    with pytest.raises(InputError, match=r"several .gguf files \(a.gguf, b.gguf\)"):
        tk.resolve_model(tmp_path)
    assert tk.resolve_model(tmp_path / "b.gguf") == tk.ModelSource(str(tmp_path), "b.gguf")
    (tmp_path / "config.json").touch()
    assert tk.resolve_model(tmp_path) == tk.ModelSource(str(tmp_path))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="expected a model folder"):
        tk.resolve_model(tmp_path / "notes.txt")
    assert tk.resolve_model("owner/model-1.5") == tk.ModelSource("owner/model-1.5")


def test_a_broken_tokenizer_file_is_an_input_error(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{not json")
    with pytest.raises(InputError, match="gives no tokenizer"):
        tk.load_tokenizer(file)


# --- the id table ---------------------------------------------------------------------------------


def test_fingerprint_is_of_the_table_not_of_the_place(smollm2_tokenizer: Any, tmp_path: Path) -> None:
    smollm2_tokenizer.save_pretrained(tmp_path)
    for spec in (tmp_path, tmp_path / "tokenizer.json"):
        assert tk.fingerprint(tk.load_tokenizer(spec)) == tk.fingerprint(smollm2_tokenizer)
    (tmp_path / "tokenizer_config.json").unlink()
    alone = tk.load_tokenizer(tmp_path / "tokenizer.json")
    assert tk.fingerprint(alone) == tk.fingerprint(smollm2_tokenizer)


def test_fingerprint_tells_tokenizers_of_one_size_apart(toy_tokenizer: Any, other_tokenizer: Any) -> None:
    assert len(toy_tokenizer) == len(other_tokenizer)
    assert tk.fingerprint(toy_tokenizer) != tk.fingerprint(other_tokenizer)
    assert tk.fingerprint(toy_tokenizer) == tk.fingerprint(make_toy_tokenizer())


def test_padding_rows_of_a_gguf_do_not_count(toy_tokenizer: Any) -> None:
    padded = make_toy_tokenizer()
    size = len(padded)
    padded.add_tokens([f"[PAD{size}]", f"[PAD{size + 1}]"])
    assert len(padded) == size + 2
    assert tk.fingerprint(padded) == tk.fingerprint(toy_tokenizer)
    assert tk.tokenizer_size(padded) == tk.tokenizer_size(toy_tokenizer) == size


def test_byte_tokens_of_a_byte_level_tokenizer(smollm2_tokenizer: Any, toy_tokenizer: Any) -> None:
    assert len(tk.byte_target_ids(toy_tokenizer)) == 256
    ids = tk.byte_target_ids(smollm2_tokenizer)
    assert np.all(np.diff(ids) > 0)
    spelled = set(smollm2_tokenizer.convert_ids_to_tokens(ids.tolist()))
    assert all(len(token) == 1 for token in spelled)
    assert {"a", "Ġ", "Ċ", "Ã"} <= spelled  # plain, space, line break, first byte of é


def test_byte_tokens_of_a_sentencepiece_tokenizer() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "a": 257, "▁": 258}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    assert tk.byte_target_ids(tokenizer).tolist() == list(range(1, 257))


def test_a_word_tokenizer_has_no_byte_tokens() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a")))
    assert tk.byte_target_ids(tokenizer).tolist() == []
    assert tk.special_target_ids(tokenizer).tolist() == []


def test_special_tokens_are_all_the_template_can_write(smollm2_tokenizer: Any) -> None:
    ids = tk.special_target_ids(smollm2_tokenizer)
    assert ids.dtype == np.int64 and np.all(np.diff(ids) > 0)
    tokens = set(smollm2_tokenizer.convert_ids_to_tokens(ids.tolist()))
    assert {
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<repo_name>",
        "Ċ",
        "user",
        "ass",
        "istant",
    } <= tokens
    assert "ĠSm" not in tokens and len(ids) < 30  # the default system prompt's words are not special


def test_reserved_placeholders_are_not_special(toy_tokenizer: Any) -> None:
    tokens = toy_tokenizer.convert_ids_to_tokens(tk.special_target_ids(toy_tokenizer).tolist())
    assert "<|im_end|>" in tokens and "<|pad|>" in tokens and "<|reserved_7|>" not in tokens


# --- chats ----------------------------------------------------------------------------------------


def test_chat_ids_are_those_of_the_template(smollm2_tokenizer: Any) -> None:
    ids = tk.chat_ids(smollm2_tokenizer, CHAT[:1])
    expected = smollm2_tokenizer.apply_chat_template(CHAT[:1], add_generation_prompt=True, return_dict=False)
    assert ids == expected
    assert smollm2_tokenizer.decode(ids).endswith("<|im_start|>assistant\n")


def test_mask_covers_answers_and_their_end_of_turn(smollm2_tokenizer: Any) -> None:
    chat = tk.chat_ids_and_mask(smollm2_tokenizer, CHAT)
    assert chat.target_ids.tolist() == tk.chat_ids(smollm2_tokenizer, CHAT, add_generation_prompt=False)
    assert smollm2_tokenizer.decode(chat.target_ids[chat.assistant_mask]) == ("Blue, user.\n<|im_end|>a<|im_end|>")


@pytest.mark.parametrize(
    ("template", "emitted"),
    [
        # no control tokens, stripped contents
        (
            "{% for m in messages %}{{ m['role'] + ': ' + m['content'].strip() + '\n' }}{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}",
            "Blue, user.a",
        ),
        # says itself what is generated
        (
            "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
            "{% endgeneration %}{% else %}{{ '?' + m['content'] }}{% endif %}{% endfor %}",
            "Blue, user.\na",
        ),
        # writes the last answer differently, as templates of thinking models do
        (
            "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
            "{% if loop.last and m['role'] == 'assistant' %}{{ '<think></think>' }}{% endif %}"
            "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
            "Blue, user.\n<|im_end|><think></think>a<|im_end|>",
        ),
        # opens a thought for the answer to come, and leaves thoughts out of earlier ones
        (
            "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'].split('</t>')[-1] }}"
            "{{ '<|im_end|>' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<t>\n' }}{% endif %}",
            "Blue, user.\n<|im_end|>a<|im_end|>",
        ),
        # writes everything differently once there are later turns
        (
            "{{ messages | length }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
            "{{ m['content'] + '<|im_end|>' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
            "Blue, user.\n<|im_end|>a<|im_end|>",
        ),
    ],
)
def test_mask_with_other_templates(template: str, emitted: str) -> None:
    tokenizer = make_toy_tokenizer()
    tokenizer.chat_template = template
    chat = tk.chat_ids_and_mask(tokenizer, CHAT)
    assert tokenizer.decode(chat.target_ids[chat.assistant_mask]) == emitted


def test_a_thought_that_the_template_leaves_out_is_no_error() -> None:
    tokenizer = make_toy_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'].split('</t>')[-1] + '<|im_end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    chat = [CHAT[0], {"role": "assistant", "content": "<t>hm</t>Blue."}, *CHAT[2:]]
    tokens = tk.chat_ids_and_mask(tokenizer, chat)
    assert tokenizer.decode(tokens.target_ids[tokens.assistant_mask]) == "Blue.<|im_end|>a<|im_end|>"


def test_no_template_and_refused_messages_are_said() -> None:
    tokenizer = make_toy_tokenizer()
    with pytest.raises(InputError, match="refuses these messages"):
        tk.chat_ids(tokenizer, [{"role": "user"}])
    tokenizer.chat_template = "{{ raise_exception('only one user') }}"
    with pytest.raises(InputError, match="only one user"):
        tk.chat_ids(tokenizer, CHAT)
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="no chat template"):
        tk.chat_ids(tokenizer, CHAT)


def test_importing_the_module_loads_neither_torch_nor_transformers() -> None:
    import subprocess
    import sys

    code = (
        "import sys, json, hothead.tokenizer as _;"
        "print(json.dumps([m for m in ('torch', 'transformers') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
