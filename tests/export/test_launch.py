"""Launch commands, and the combinations that SGLang gets wrong: that it does, and that they are refused."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from engine_rules import sglang_standalone_token_map, sglang_token_map

from hothead.errors import InputError
from hothead.export.launch import (
    SGLANG_ALGORITHMS,
    Serving,
    llama_command,
    save_commands,
    sglang_command,
    vllm_command,
)

V, H = 300, 8


def test_the_commands_name_what_they_serve() -> None:
    serving = Serving("my target", "draft", num_steps=5, tensor_parallel=2)
    words = shlex.split(vllm_command(Path("out dir"), serving))
    assert words[:3] == ["vllm", "serve", "my target"]
    assert json.loads(words[4]) == {"method": "eagle3", "model": "out dir", "num_speculative_tokens": 5}
    assert words[5:] == ["--tensor-parallel-size", "2"]
    words = shlex.split(sglang_command(Serving("t", "d"), "EAGLE", Path("map.pt")))
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    assert flags["--speculative-token-map"] == "map.pt"
    assert flags["--speculative-num-draft-tokens"] == "4"
    words = shlex.split(llama_command(Path("d.gguf"), Serving("t.gguf")))
    assert words[-4:] == ["--spec-type", "draft-eagle3", "--spec-draft-n-max", "3"]


def test_they_are_saved_in_a_folder_or_beside_a_file(tmp_path: Path) -> None:
    assert save_commands(tmp_path, {"vllm": "a"}) == tmp_path / "launch.txt"
    assert save_commands(tmp_path / "map.pt", {"sglang": "b"}).read_text() == "# sglang\nb\n"


@pytest.mark.parametrize(
    ("algorithm", "tensor_parallel", "says"),
    [
        ("EAGLE3", 1, "ignores --speculative-token-map with EAGLE3"),
        ("STANDALONE", 1, "every draft would be another token"),
        ("EAGLE", 2, "issue 4328"),
        ("NEXTN", 4, "issue 4328"),
        ("NGRAM", 1, "one of EAGLE, NEXTN"),
    ],
)
def test_what_sglang_gets_wrong_is_refused(algorithm: str, tensor_parallel: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        sglang_command(Serving(tensor_parallel=tensor_parallel), algorithm, Path("map.pt"))


@pytest.mark.parametrize("algorithm", SGLANG_ALGORITHMS)
def test_without_a_map_sglang_takes_each(algorithm: str) -> None:
    assert algorithm in sglang_command(Serving(tensor_parallel=4), algorithm)


def test_sglang_by_its_own_rules(tmp_path: Path) -> None:
    """The rules as SGLang has them: right for EAGLE on one device, wrong in the two refused cases."""
    head = torch.randn(V, H)
    hot = [290, 3, 170, 42]
    torch.save(hot, tmp_path / "map.pt")
    rows, ids = sglang_token_map(tmp_path / "map.pt", head)
    assert ids.tolist() == hot
    assert torch.equal(rows, head[hot])
    with pytest.raises(IndexError):
        sglang_token_map(tmp_path / "map.pt", head, tensor_parallel=2)
    torch.save([3, 7, 42], tmp_path / "low.pt")  # all in the first shard: no failure, but every other shard is wrong
    second_shard = head.chunk(2)[1]
    assert not torch.equal(second_shard[torch.tensor([3, 7, 42])], head[[3, 7, 42]])
    draft_head, ids = sglang_standalone_token_map(tmp_path / "map.pt", head)
    assert len(draft_head) != len(ids)  # row 5 has no id, and row 0 is taken for id 290
