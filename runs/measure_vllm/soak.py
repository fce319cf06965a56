"""Mixed load on a running hothead server for a while: long prompts, aborted and bad requests, several at once.

Says at the end whether it still answers, how its memory grew, and what its counters hold; exits 1 if a good request
failed or the server stopped answering.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx

from hothead.bench.prompts import Prompt, read_prompts
from hothead.bench.server import read_metrics

KINDS = ("good",) * 7 + ("aborted", "bad", "long")


async def one(client: httpx.AsyncClient, url: str, model: str, prompt: Prompt, kind: str) -> bool:
    """Whether the request went as its kind should."""
    messages = prompt.messages()
    if kind == "long":
        messages[-1]["content"] += "\n" + "and so on " * 500
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": random.randint(1, 160),
        "temperature": random.choice((0, 1)),
    }
    if kind == "bad":
        body["max_tokens"] = -1
    if kind == "aborted":
        with suppress(httpx.TimeoutException):
            await client.post(
                f"{url}/v1/chat/completions", json={**body, "max_tokens": 400}, timeout=random.uniform(0.05, 2)
            )
        return True
    status = (await client.post(f"{url}/v1/chat/completions", json=body)).status_code
    return status == 400 if kind == "bad" else status == 200


async def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--pid", type=int, help="of the engine process, to watch its memory")
    args = parser.parse_args()
    prompts, done, wrong = read_prompts(args.prompts), dict.fromkeys(sorted(set(KINDS)), 0), 0
    end = time.monotonic() + 60 * args.minutes
    async with httpx.AsyncClient(timeout=600) as client:
        model = (await client.get(f"{args.url}/v1/models")).json()["data"][0]["id"]

        async def worker() -> None:
            nonlocal wrong
            while time.monotonic() < end:
                kind = random.choice(KINDS)
                wrong += not await one(client, args.url, model, random.choice(prompts), kind)
                done[kind] += 1

        warm = time.monotonic() + 60
        tasks = [asyncio.create_task(worker()) for _ in range(args.concurrency)]
        await asyncio.sleep(max(0.0, min(warm, end) - time.monotonic()))
        memory = resident_kib(args.pid)
        await asyncio.gather(*tasks)
    grown = resident_kib(args.pid) - memory
    healthy = httpx.get(f"{args.url}/health").is_success
    print({"requests": done, "wrong": wrong, "healthy": healthy, "memory_grown_kib": grown, **read_metrics(args.url)})
    return int(wrong > 0 or not healthy)


def resident_kib(pid: int | None) -> int:
    """Memory of a process, 0 without one."""
    if pid is None:
        return 0
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
