"""The command that serves an export, and the combinations that an engine gets wrong.

The flags are those of vLLM's ``--speculative-config``, SGLang's ``--speculative-*`` and llama-server's ``--spec-*``.
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from hothead.errors import InputError
from hothead.files import write_text

SGLANG_ALGORITHMS = ("EAGLE", "NEXTN", "EAGLE3", "STANDALONE")


@dataclass(frozen=True)
class Serving:
    """How the export will be served."""

    target: str = "TARGET"
    draft: str = "DRAFT"
    num_steps: int = 3
    tensor_parallel: int = 1
    algorithm: str = "EAGLE"  # of SGLang, for a token map


def vllm_command(draft: Path, serving: Serving, method: str = "eagle3") -> str:
    """For a draft with its own head."""
    config = {"method": method, "model": str(draft), "num_speculative_tokens": serving.num_steps}
    words = ["vllm", "serve", serving.target, "--speculative-config", json.dumps(config)]
    if serving.tensor_parallel > 1:
        words += ["--tensor-parallel-size", str(serving.tensor_parallel)]
    return shlex.join(words)


def sglang_command(serving: Serving, algorithm: str, token_map: Path | None = None) -> str:
    """For a draft with its own head (EAGLE3), or for the target's head cut down by a token map.

    Raises:
        InputError: a combination that SGLang accepts and gets wrong.
    """
    if algorithm not in SGLANG_ALGORITHMS:
        raise InputError(f"SGLang's algorithm is one of {', '.join(SGLANG_ALGORITHMS)}; found {algorithm!r}")
    if token_map is not None:
        _check_token_map(algorithm, serving.tensor_parallel)
    words = ["python", "-m", "sglang.launch_server", "--model-path", serving.target]
    words += ["--speculative-algorithm", algorithm, "--speculative-draft-model-path", serving.draft]
    words += ["--speculative-num-steps", str(serving.num_steps), "--speculative-eagle-topk", "1"]
    words += ["--speculative-num-draft-tokens", str(serving.num_steps + 1)]
    if token_map is not None:
        words += ["--speculative-token-map", str(token_map)]
    if serving.tensor_parallel > 1:
        words += ["--tp-size", str(serving.tensor_parallel)]
    return shlex.join(words)


def _check_token_map(algorithm: str, tensor_parallel: int) -> None:
    if algorithm == "EAGLE3":
        raise InputError(
            "SGLang ignores --speculative-token-map with EAGLE3, whose draft carries its own map: the head would stay "
            "as large as it is. Prune the draft instead: hothead prune DRAFT"
        )
    if algorithm == "STANDALONE":
        raise InputError(
            "SGLang's STANDALONE drafts keep their full head and yet translate its row numbers through the token map: "
            "every draft would be another token. Serve it without a map"
        )
    if tensor_parallel > 1:
        raise InputError(
            f"SGLang picks the map's rows from each of the {tensor_parallel} shards of the head by the whole head's "
            "numbers: it fails, or drafts other tokens (sgl-project/sglang issue 4328). Serve with a tensor-parallel "
            "size of 1, or prune an EAGLE-3 draft"
        )


def llama_command(draft: Path, serving: Serving, architecture: str = "eagle3") -> str:
    """For a draft GGUF with its own head."""
    words = ["llama-server", "-m", serving.target, "-md", str(draft), "--spec-type", f"draft-{architecture}"]
    return shlex.join([*words, "--spec-draft-n-max", str(serving.num_steps)])


def save_commands(path: Path, commands: dict[str, str]) -> Path:
    """Write the commands beside an export (in it, if it is a folder); returns the file."""
    out = path / "launch.txt" if path.is_dir() else path.with_name(f"{path.name}.launch.txt")
    write_text(out, "".join(f"# {engine}\n{command}\n" for engine, command in commands.items()))
    return out
