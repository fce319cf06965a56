"""A 2 GB checkpoint is pruned in little memory and about the time of copying it."""

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from toy_drafts import eagle3_config

from hothead.ranking.ranking import TokenRanking

V, H = 128_256, 4096
MAX_MEMORY = 600 << 20
MAX_TIMES_COPYING = 2.0
PRUNE = """
import sys, time
from pathlib import Path
from hothead.export.prune import prune
from hothead.ranking.ranking import TokenRanking
draft, ranking, out = map(Path, sys.argv[1:])
start = time.perf_counter()
prune(draft, TokenRanking.load(ranking), out, sizes={"size": 32_000})
seconds = time.perf_counter() - start
# Not getrusage's, which knows the peak of the process that started this one too.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(seconds, int(status["VmHWM"].split()[0]) * 1024)
"""


def write_large(folder: Path) -> Path:
    """An EAGLE-3 checkpoint of 2.4 GB with an embedding of its own, one file, bytes that do not compress."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(eagle3_config(V, vocab_size=V, hidden_size=H)))
    shapes = {
        "lm_head.weight": (V, H),
        "embed_tokens.weight": (V, H),
        "fc.weight": (H, 3 * H),
        "midlayer.hidden_norm.weight": (H,),
        "midlayer.mlp.up_proj.weight": (4 * H, H),
    }
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = np.random.default_rng(0).bytes(16 << 20)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while offset:
            file.write(block[: min(offset, len(block))])
            offset -= min(offset, len(block))
        os.fsync(file.fileno())
    return folder


@pytest.mark.slow
def test_memory_and_time(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("reads its memory from /proc")
    if shutil.disk_usage(tmp_path).free < 10 << 30:
        pytest.skip("needs 10 GB of disk")
    draft = write_large(tmp_path / "draft")
    size = (draft / "model.safetensors").stat().st_size
    assert size > 2e9
    TokenRanking(np.random.default_rng(1).permutation(V) + 1, "").save(tmp_path / "ranking.safetensors")
    copied, pruned, memory = [], [], 0.0
    for turn in range(5):  # in turn, so that a busy machine slows both
        copy = tmp_path / f"copy-{turn}"
        start = time.perf_counter()
        shutil.copyfile(draft / "model.safetensors", copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())  # pruning does it too
        copied.append(time.perf_counter() - start)
        copy.unlink()
        out = tmp_path / f"out-{turn}"
        command = [sys.executable, "-c", PRUNE, str(draft), str(tmp_path / "ranking.safetensors"), str(out)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, memory = map(float, result.stdout.split())
        pruned.append(seconds)
        shutil.rmtree(out)
    copying, pruning = (float(np.median(seconds)) for seconds in (copied, pruned))
    print(f"{size / 1e9:.2f} GB: copied in {copying:.2f} s, pruned in {pruning:.2f} s, {memory / 2**20:.0f} MiB")
    assert memory < MAX_MEMORY
    assert pruning < MAX_TIMES_COPYING * copying
