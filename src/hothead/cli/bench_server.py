"""``hothead bench server``: the same prompts to servers with and without a hot draft head, interleaved."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hothead.bench.prompts import Prompt, read_prompts
from hothead.bench.server import Load, Row, Server, Wave, read_waves, run, summarize, waves_of
from hothead.bench.stats import Estimate
from hothead.cli.common import check_output, print_json, print_table, progress, quiet_stdout, say, stdout, verb_app
from hothead.cli.engine_options import option
from hothead.errors import InputError
from hothead.vllm_plugin.launch import ServerConfig, draft_method, find_ranking, require_vllm, servable_model

app = verb_app()
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
CONFIGS = ("plain", "full", "static", "dynamic")


@app.command(context_settings=PASS_ON)
def bench_server(
    ctx: typer.Context,
    output: Annotated[Path, option("Result file, JSON lines.", "--output", "-o", metavar="FILE")],
    prompts: Annotated[Path | None, option("Prompt set; none: print a result file again.", metavar="FILE")] = None,
    per_group: Annotated[int | None, option("Only the first so many of each group.")] = None,
    url: Annotated[list[str] | None, option("A running server, as NAME=http://...", metavar="NAME=URL")] = None,
    target: Annotated[str | None, option("Model to start servers for.", metavar="MODEL")] = None,
    draft: Annotated[str | None, option("Its draft.", metavar="MODEL")] = None,
    method: Annotated[str | None, option("vLLM's name of the draft's kind; none: look.", metavar="NAME")] = None,
    num_steps: Annotated[int, option("Tokens drafted per round.")] = 4,
    ranking: Annotated[Path | None, option("Token ranking; none: the draft folder's.", metavar="FILE")] = None,
    size: Annotated[int, option("Rows to keep.")] = 8192,
    slots: Annotated[int, option("Dynamic rows of the dynamic configuration.")] = 512,
    configs: Annotated[str, option(f"Of {', '.join(CONFIGS)}.", metavar="NAMES")] = ",".join(CONFIGS),
    concurrency: Annotated[int, option("Requests in flight.")] = 1,
    temperature: Annotated[float, option("0: greedy.")] = 0.0,
    max_new_tokens: Annotated[int, option("Tokens per answer at most.", "--max-new-tokens", "-n")] = 128,
    ignore_eos: Annotated[bool, option("Always that many tokens.", "--ignore-eos")] = False,
    logs: Annotated[Path, option("Folder for the servers' output.", metavar="FOLDER")] = Path("server-logs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Compare OpenAI servers on the same prompts; other options go to the vLLM servers that it starts."""
    if prompts is None:
        _show(read_waves(output)[1], as_json)
        return
    if concurrency < 1 or max_new_tokens < 1:
        raise InputError("--concurrency and --max-new-tokens must be at least 1")
    check_output(output)
    asked = read_prompts(prompts, per_group)
    load = Load(concurrency=concurrency, temperature=temperature, max_tokens=max_new_tokens, ignore_eos=ignore_eos)
    with quiet_stdout(as_json):
        if url:
            if target is not None or ctx.args:
                raise InputError("--url names running servers, and --target or vLLM options start some; give one kind")
            waves = _run([_running(text) for text in url], asked, load, output, prompts.stem)
        else:
            from hothead.bench.servers import start_servers

            wanted = _wanted(target, draft, method, num_steps, ranking, size, slots, configs, tuple(ctx.args))
            say(f"hothead: starting {len(wanted)} servers; their output is in {logs}")
            with start_servers(wanted, logs) as servers:
                waves = _run(servers, asked, load, output, prompts.stem)
    _show(waves, as_json)


def _running(text: str) -> Server:
    name, _, url = text.partition("=")
    if not name or not url.startswith(("http://", "https://")):
        raise InputError(f"--url must be NAME=http://host:port; found {text!r}")
    return Server(name, url.rstrip("/").removesuffix("/v1"))


def _wanted(
    target: str | None,
    draft: str | None,
    method: str | None,
    num_steps: int,
    ranking: Path | None,
    size: int,
    slots: int,
    configs: str,
    extra: tuple[str, ...],
) -> dict[str, ServerConfig]:
    """The configurations to start, by name."""
    names = [name.strip() for name in configs.split(",")]
    for name in names:
        if name not in CONFIGS:
            raise InputError(f"no configuration is called {name!r}; expected {', '.join(CONFIGS)}")
    if target is None:
        raise InputError("give --url NAME=URL of running servers, or --target (and --draft) to start some")
    if draft is None and names != ["plain"]:
        raise InputError("only the plain configuration does without a draft; give --draft")
    require_vllm()
    model = servable_model(target)
    served = None if draft is None else servable_model(draft)
    wanted = {}
    for name in names:
        settings: dict[str, Any] | None = None
        if name in ("static", "dynamic"):
            assert draft is not None
            path = ranking or find_ranking(draft)
            if path is None:
                raise InputError(f"{draft}: no ranking in this folder; give --ranking FILE")
            settings = {
                "ranking": str(path.resolve()),
                "size": size,
                "dynamic_slots": slots if name == "dynamic" else 0,
            }
        used = None if name == "plain" else served
        kind = "eagle" if used is None else method or draft_method(used)
        wanted[name] = ServerConfig(model, used, kind, num_steps, settings, extra)
    return wanted


def _run(servers: list[Server], asked: tuple[Prompt, ...], load: Load, output: Path, name: str) -> list[Wave]:
    total = sum(1 for _ in waves_of(asked, load.concurrency)) * len(servers)
    with progress("asking", total, "tokens") as bar:
        return run(servers, asked, load, output, name, lambda wave: bar.advance(1, wave.tokens))


def _show(waves: list[Wave], as_json: bool) -> None:
    rows = summarize(waves)
    if as_json:
        print_json({"rows": rows})
        return
    columns = ("group", "config", "tok/s", "x plain, 95%", "x full, 95%", "accept", "miss%", "same text%", "errors")
    print_table(columns, [_cells(row) for row in rows])
    failed = [error for wave in waves for error in wave.errors]
    if failed:
        stdout.print(f"{len(failed)} requests failed, such as: {failed[0]}")


def _cells(row: Row) -> tuple[str, ...]:
    def ratio(estimate: Estimate | None) -> str:
        if estimate is None:
            return "-"
        bounds = "" if estimate.low is None else f" {estimate.low:.2f}-{estimate.high:.2f}"
        return f"{estimate.value:.2f}{bounds}"

    def percent(share: float | None) -> str:
        return "-" if share is None else f"{100 * share:.1f}"

    return (
        row.group,
        row.config,
        f"{row.rate.value:.1f}",
        ratio(row.versus.get("plain")),
        ratio(row.versus.get("full")),
        "-" if row.acceptance is None else f"{row.acceptance:.2f}",
        percent(row.missed),
        percent(row.same_text),
        str(row.errors),
    )
