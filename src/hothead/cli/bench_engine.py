"""``hothead bench engine``: our methods and other engines on the same prompts; ``bench engine show`` reads results."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hothead.bench.methods import DEFAULT_TREE, parse_shape, split_names
from hothead.bench.prompts import read_prompt_sets
from hothead.bench.schema import PEERS, Results, Settings, read_results
from hothead.bench.summary import WHOLE_ANSWER, summarize
from hothead.cli import common
from hothead.cli.common import JsonOption, print_json, print_table, quiet_stdout, verb_app
from hothead.cli.compare import DEFAULT_METHODS, PlotOption, document, refuse_bad, run_comparison
from hothead.cli.engine_options import Engine, EngineOptions, option, require_torch, with_options
from hothead.errors import InputError
from hothead.report import compare as compare_report
from hothead.report import engine as report

if TYPE_CHECKING:
    from hothead.bench.peers.base import Peers

app = verb_app()
AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class PeerOptions:
    """Which other engines, and where they are."""

    peers: Annotated[str, option(f"auto, none, or of {', '.join(PEERS)}.", metavar="NAMES")] = AUTO
    prompt_lookup: Annotated[int, option("Tokens that prompt lookup copies.")] = 10
    llama_server: Annotated[Path | None, option("llama.cpp's server; none: look.", metavar="FILE")] = None
    vllm_python: Annotated[Path | None, option("Of vLLM's environment; none: this one.", metavar="FILE")] = None
    vllm_arguments: Annotated[str, option("More for vLLM's server, in one string.", metavar="TEXT")] = ""
    context: Annotated[int, option("Positions that a server has room for.")] = 4096
    logs: Annotated[Path, option("Folder for the servers' output.", metavar="FOLDER")] = Path("server-logs")

    @property
    def names(self) -> tuple[str, ...]:
        """As asked for, ``auto`` aside.

        Raises:
            InputError: an unknown peer, or one named twice.
        """
        if self.peers in (AUTO, NONE):
            return ()
        names = split_names(self.peers)
        for name in names:
            if name not in PEERS:
                raise InputError(f"no peer is called {name!r}; expected {AUTO}, {NONE} or some of {', '.join(PEERS)}")
        if len(set(names)) < len(names):
            raise InputError(f"a peer is named twice: {', '.join(names)}")
        return names

    def find(self, loaded: Engine) -> "Peers":
        """Those that were asked for, or that can run here."""
        import shlex

        import torch

        from hothead.bench.peers.base import Peers, Setup, available

        options = loaded.options
        assert options.target is not None  # it was loaded
        setup = Setup(
            loaded.target,
            options.target,
            loaded.draft,
            options.draft,
            options.dtype,
            torch.get_num_threads(),
            min(self.context, loaded.target.max_positions),
            options.num_steps,
            self.prompt_lookup,
            self.llama_server,
            self.vllm_python,
            tuple(shlex.split(self.vllm_arguments)),
            self.logs,
        )
        return Peers(available(setup) if self.peers == AUTO else self.names, setup)


@app.callback(invoke_without_command=True)
@with_options
def bench_engine(
    ctx: typer.Context,
    engine: EngineOptions,
    prompts: Annotated[list[Path] | None, option("Prompt set; may be repeated.", metavar="FILE")] = None,
    per_group: Annotated[int | None, option("Only the first so many of each group.")] = None,
    groups: Annotated[str, option("Only these groups.", metavar="NAMES")] = "",
    methods: Annotated[str, option("Kinds and words, see docs.", metavar="NAMES")] = DEFAULT_METHODS,
    tree: Annotated[str, option('Shape of methods named "... tree".', metavar="L/K/N")] = DEFAULT_TREE,
    others: PeerOptions = PeerOptions(),
    repeats: Annotated[int, option("How often each prompt is answered.")] = 1,
    max_new_tokens: Annotated[int, option("Tokens per answer at most.", "--max-new-tokens", "-n")] = 128,
    ignore_eos: Annotated[bool, option("Always that many tokens.", "--ignore-eos")] = False,
    output: Annotated[
        Path | None, option("Result file, JSON lines; continued if it exists.", "--output", "-o", metavar="FILE")
    ] = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare decoding methods and other engines, greedy, one prompt at a time, whole answers timed alike."""
    if ctx.invoked_subcommand is not None:
        return
    if not prompts:
        raise InputError("give the prompts: --prompts FILE")
    if repeats < 1 or max_new_tokens < 1 or others.prompt_lookup < 1 or others.context < 2:
        raise InputError("--repeats, --max-new-tokens, --prompt-lookup and --context must be at least 1")
    common.check_outputs(output, plot=plot)
    asked = read_prompt_sets(prompts, per_group, split_names(groups))
    own = _own_methods(engine, methods, tree)
    _ = others.names  # refused before anything is loaded
    with quiet_stdout(as_json):
        loaded = engine.load()
        peers = others.find(loaded)
        settings = Settings(
            methods=(*own, *peers.names),
            repeats=repeats,
            num_steps=engine.num_steps,
            draft_topk=engine.draft_topk,
            num_draft_tokens=None if engine.draft_topk == 1 else engine.shape().width,
            draft_p_min=engine.draft_p_min,
            verify_p_min=engine.verify_p_min,
            tree=tree,
            slots=engine.slots,
            policy=engine.policy,
            max_new_tokens=max_new_tokens,
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            seed=0,
            ignore_eos=ignore_eos,
        )
        if peers.names:
            common.say(f"hothead: the other engines are {', '.join(peers.names)}; servers' output is in {others.logs}")
        name = "+".join(path.stem for path in prompts)
        results = run_comparison(loaded, settings, name, asked, output, peers=peers)
    _finish(results, plot, as_json)
    refuse_bad(results)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="What hothead bench engine -o wrote.")],
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the tables of a result file again; needs no torch."""
    common.check_outputs(plot=plot)
    _finish(read_results(file), plot, as_json)


def _own_methods(engine: EngineOptions, methods: str, tree: str) -> tuple[str, ...]:
    """Names of the engine's methods, checked before anything is loaded."""
    require_torch()
    from hothead.bench.compare import check_methods

    parse_shape(tree)
    names = split_names(methods)
    has_vocab = engine.ranking is not None or engine.vocab is not None
    check_methods(names, engine.draft is not None, has_vocab, engine.ranking is not None, tree)
    return names


def _finish(results: Results, plot: Path | None, as_json: bool) -> None:
    """Tables or the JSON document, and the plot."""
    if as_json:
        print_json(document(results, clock=WHOLE_ANSWER))
    else:
        summaries = summarize(results, WHOLE_ANSWER)
        common.stdout.print(compare_report.headline(results), style="dim", soft_wrap=True, markup=False)
        if not summaries:
            common.stdout.print("No complete block of answers yet.")
        for table in (
            (report.speed_table(summaries), compare_report.breakdown_table(summaries[-1])) if summaries else ()
        ):
            common.stdout.print()
            print_table(table.columns, table.rows, table.title)
        common.stdout.print()
        for line in report.remarks(results):
            common.stdout.print(line, soft_wrap=True, markup=False)
    if plot is not None:
        compare_report.plot(results, plot, WHOLE_ANSWER)
