"""The EAGLE-3 draft in the servers of one engine, asked in turn: stock vLLM and vLLM with the plugin, or llama-server.

Of each engine: plain decoding, the draft as it was trained, and the draft pruned; of vLLM also the plugin, which
prunes the same draft at load.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hothead.bench.prompts import read_prompts
from hothead.bench.server import Load, Server, run, summarize
from hothead.bench.servers import asleep, free_port, running, wait_until_healthy
from hothead.vllm_plugin.launch import ServerConfig

VLLM_OPTIONS = ("--max-model-len", "2048", "--max-num-seqs", "1", "--enforce-eager")


@contextmanager
def plugins(names: str | None) -> Iterator[None]:
    """Which plugins a vLLM that is started here loads; None is all that are installed."""
    if names is None:
        os.environ.pop("VLLM_PLUGINS", None)
    else:
        os.environ["VLLM_PLUGINS"] = names
    yield
    os.environ.pop("VLLM_PLUGINS", None)


def vllm_servers(args: argparse.Namespace) -> dict[str, tuple[ServerConfig, str | None]]:
    """Each configuration, and the plugins it may load."""
    extra = (*VLLM_OPTIONS, "--dtype", args.dtype)
    settings = {"ranking": str(args.ranking), "size": args.size, "dynamic_slots": args.slots}

    def config(draft: Path | None, hothead: dict[str, object] | None = None) -> ServerConfig:
        name = None if draft is None else str(draft)
        return ServerConfig(str(args.target), name, "eagle3", args.num_steps, hothead, extra)

    return {
        "vllm plain": (config(None), ""),
        "vllm full": (config(args.draft), ""),
        "vllm pruned": (config(args.pruned), ""),
        "vllm plugin": (config(args.draft, settings), None),
    }


def llama_servers(args: argparse.Namespace) -> dict[str, list[str]]:
    """Each configuration's command, without the port. Caches in float32, as the other engines have them here."""
    threads = str(len(os.sched_getaffinity(0)))
    command = [str(args.llama_server), "-m", str(args.target_gguf), "--ctx-size", "2048", "--parallel", "1"]
    command += ["--threads", threads, "--metrics", "--no-ui", "--cache-ram", "0", "--reasoning-format", "none"]
    command += ["--cache-type-k", "f32", "--cache-type-v", "f32", "--no-cache-prompt"]
    speculative = ["--spec-type", "draft-eagle3", "--spec-draft-n-max", str(args.num_steps)]
    speculative += ["--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32"]
    return {
        "llama.cpp plain": command,
        "llama.cpp full": [*command, *speculative, "-md", str(args.draft_gguf)],
        "llama.cpp pruned": [*command, *speculative, "-md", str(args.pruned_gguf)],
    }


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--target", type=Path, required=True, help="the target as a folder that vLLM loads")
    add("--draft", type=Path, required=True, help="the EAGLE-3 draft's folder")
    add("--pruned", type=Path, required=True, help="that draft pruned")
    add("--ranking", type=Path, required=True, help="what it was pruned by, for the plugin")
    add("--size", type=int, required=True, help="rows of the pruned head, for the plugin")
    add("--slots", type=int, default=0, help="the plugin's dynamic rows; 0 is a static head, as the pruned draft's")
    add("--target-gguf", type=Path, required=True)
    add("--draft-gguf", type=Path, required=True)
    add("--pruned-gguf", type=Path, required=True)
    add("--llama-server", type=Path, required=True)
    add("--engine", choices=("vllm", "llama.cpp"), required=True)
    add("--dtype", choices=("float32", "bfloat16"), required=True, help="vLLM's; the GGUFs say llama.cpp's")
    add("--num-steps", type=int, default=4)
    add("--prompts", type=Path, required=True)
    add("--per-group", type=int)
    add("--max-new-tokens", type=int, default=64)
    add("--output", "-o", type=Path, required=True)
    add("--logs", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    """Start the servers, one after another, and ask them."""
    args = parse()
    args.logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        servers: list[Server] = []

        def start(name: str, command: list[str], port: int) -> None:
            log, url = args.logs / f"{name.replace(' ', '_')}.log", f"http://127.0.0.1:{port}"
            process = stack.enter_context(running(command, log))
            wait_until_healthy(name, url, process, log)
            servers.append(Server(name, url, tuple(command), asleep(process)))

        if args.engine == "vllm":
            for name, (config, loads) in vllm_servers(args).items():
                port = free_port()
                with plugins(loads):
                    start(name, config.command(port), port)
        else:
            for name, command in llama_servers(args).items():
                port = free_port()
                start(name, [*command, "--port", str(port)], port)
        prompts = read_prompts(args.prompts, args.per_group)
        load = Load(concurrency=1, temperature=0.0, max_tokens=args.max_new_tokens)
        waves = run(servers, prompts, load, args.output, args.prompts.stem)
    for row in summarize(waves):
        if row.group == "overall":
            accepted = "-" if row.acceptance is None else f"{row.acceptance:.3f}"
            print(f"{row.config}: {row.rate.value:.1f} tokens/s, acceptance {accepted}, same text {row.same_text}")


if __name__ == "__main__":
    main()
