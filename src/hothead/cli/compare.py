"""``hothead compare``: every method on the same prompts, texts checked; ``compare show`` reads what it wrote."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hothead.bench.methods import DEFAULT_TREE, split_names
from hothead.bench.prompts import Prompt, prompts_digest, read_prompts
from hothead.bench.schema import DYNAMIC, FULL, METHODS, PEERS, PLAIN, STATIC, Answer, Results, Settings, read_results
from hothead.bench.summary import DECODING, OVERALL, Clock, count_equality, summarize
from hothead.cli import common
from hothead.cli.common import JsonOption, print_json, print_table, quiet_stdout, verb_app
from hothead.cli.engine_options import Engine, EngineOptions, SamplingOptions, option, require_torch, with_options
from hothead.cli.profile import ProfileOption, span_costs, write_trace
from hothead.engine.trace import Trace
from hothead.errors import HotheadError, InputError
from hothead.report import compare as report
from hothead.report.profile import SpanCost, cost_remark, profile_document

if TYPE_CHECKING:
    from hothead.bench.compare import Block
    from hothead.bench.peers.base import Peers
    from hothead.bench.schema import Header

app = verb_app()
DEFAULT_METHODS = ",".join((PLAIN, FULL, STATIC, DYNAMIC))
SHOWN_CHARACTERS = 400

PlotOption = Annotated[Path | None, option("Draw into a .png, .svg or .pdf.", metavar="FILE")]


@app.callback(invoke_without_command=True)
@with_options
def compare(
    ctx: typer.Context,
    engine: EngineOptions,
    sampling: SamplingOptions,
    prompts: Annotated[Path | None, option("Prompt set: .jsonl, .parquet or text.", metavar="FILE")] = None,
    per_group: Annotated[int | None, option("Only the first so many of each group.")] = None,
    methods: Annotated[str, option(f"Of {', '.join(METHODS)}.", metavar="NAMES")] = DEFAULT_METHODS,
    repeats: Annotated[int, option("How often each prompt is answered.")] = 1,
    output: Annotated[
        Path | None, option("Result file, JSON lines; continued if it exists.", "--output", "-o", metavar="FILE")
    ] = None,
    plot: PlotOption = None,
    profile: ProfileOption = None,
    show_texts: Annotated[bool, option("Print the answers too.", "--show-texts")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare decoding methods on the same prompts: speed, acceptance, texts."""
    if ctx.invoked_subcommand is not None:
        return
    if prompts is None:
        raise InputError("give the prompts: --prompts FILE")
    if repeats < 1:
        raise InputError(f"--repeats must be at least 1; found {repeats}")
    common.check_outputs(output, profile, plot=plot)
    asked = read_prompts(prompts, per_group)
    with quiet_stdout(as_json):
        settings = _settings(engine, sampling, methods, repeats, profiled=profile is not None)
        trace = None if profile is None else Trace()
        loaded = engine.load(_tokens(settings, asked))
        results = run_comparison(loaded, settings, prompts.stem, asked, output, show_texts and not as_json, trace)
        costs = None
        if profile is not None and trace is not None:
            write_trace(trace, profile)
            costs = span_costs(trace, engine.device)
    _finish(results, plot, as_json, costs)
    refuse_bad(results)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="What hothead compare -o wrote.")],
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the tables of a result file again; needs no torch."""
    if plot is not None:
        report.check_plot_path(plot)
    _finish(read_results(file), plot, as_json)


def _settings(engine: EngineOptions, sampling: SamplingOptions, methods: str, repeats: int, profiled: bool) -> Settings:
    """The settings as the result file has them, checked before anything is loaded."""
    require_torch()
    from hothead.bench.compare import check_methods

    names = split_names(methods)
    has_vocab = engine.ranking is not None or engine.vocab is not None
    check_methods(names, engine.draft is not None, has_vocab, engine.ranking is not None)
    params = sampling.params()
    return Settings(
        methods=names,
        repeats=repeats,
        num_steps=engine.num_steps,
        draft_topk=engine.draft_topk,
        num_draft_tokens=None if engine.draft_topk == 1 else engine.shape().width,
        draft_p_min=engine.draft_p_min,
        verify_p_min=engine.verify_p_min,
        slots=engine.slots,
        policy=engine.policy,
        max_new_tokens=params.max_new_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=params.seed or 0,
        stop=params.stop,
        profiled=profiled,
    )


def _tokens(settings: Settings, prompts: tuple[Prompt, ...]) -> int:
    """At most how many will be generated."""
    answers = sum(len(prompt.turns) for prompt in prompts) * len(settings.methods) * settings.repeats
    return answers * settings.max_new_tokens


def run_comparison(
    loaded: Engine,
    settings: Settings,
    prompt_set: str,
    prompts: tuple[Prompt, ...],
    output: Path | None,
    show_texts: bool = False,
    trace: Trace | None = None,
    peers: "Peers | None" = None,
) -> Results:
    """Compare with models that are loaded, going on with ``output`` if it exists, with a progress bar."""
    from hothead.bench.compare import Comparison, decoder_makers
    from hothead.bench.log import ResultLog

    makers = decoder_makers(
        [name for name in settings.methods if name not in PEERS],
        loaded.target,
        loaded.draft,
        loaded.vocab,
        loaded.dynamic,
        loaded.prior_counts,
        loaded.options.shape(),
        vocab_of=loaded.vocab_of,
        tree=settings.tree or DEFAULT_TREE,
    )
    log = ResultLog(comparison_header(loaded, settings, prompt_set, prompts, peers), output)
    blocks = sum(len(prompt.turns) for prompt in prompts) * settings.repeats
    if log.resumed_blocks:
        remark = f"{output}: {log.resumed_blocks} of {blocks} blocks are there; going on"
        common.stderr.print(remark, soft_wrap=True, markup=False)
    if log.resumed_blocks == blocks:
        return log.results
    with _saying_what_is_saved(output), ExitStack() as stack:
        if peers is not None:
            makers |= stack.enter_context(peers.open())
        comparison = Comparison(loaded.target, makers, prompts, settings, log, trace)
        if show_texts:  # they show the progress
            for block in comparison.run():
                _print_block(block)
        else:
            with common.progress("comparing", comparison.num_blocks, "tokens") as bar:
                bar.advance(log.resumed_blocks, 0)
                for block in comparison.run():
                    bar.advance(1, block.new_tokens)
    return log.results


@contextmanager
def _saying_what_is_saved(output: Path | None) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if output is not None:
            remark = f"{output} has all complete blocks; the same command goes on after them"
            common.stderr.print(remark, soft_wrap=True, markup=False)
        raise


def comparison_header(
    loaded: Engine, settings: Settings, prompt_set: str, prompts: tuple[Prompt, ...], peers: "Peers | None" = None
) -> "Header":
    """What is about to be compared."""
    from hothead.bench.compare import vocab_identity
    from hothead.bench.machine import model_identity, this_machine, versions
    from hothead.bench.schema import Header, PromptSetIdentity

    options = loaded.options
    assert options.target is not None  # it was loaded
    return Header(
        versions=versions(),
        machine=this_machine(options.device),
        target=model_identity(options.target),
        tokenizer_fingerprint=loaded.target.tokenizer_fingerprint,
        draft=None if options.draft is None else model_identity(options.draft),
        vocab=None if loaded.vocab is None else vocab_identity(loaded.vocab),
        dtype=options.dtype,
        device=options.device,
        engine_mode="compiled" if loaded.target.is_compiled else "eager",
        prompt_set=PromptSetIdentity(name=prompt_set, prompts=len(prompts), digest=prompts_digest(prompts)),
        settings=settings,
        peers={} if peers is None else peers.words,
    )


def _print_block(block: "Block") -> None:
    """A turn, plain decoding's answer, and how the other methods' compare with it."""
    if block.repeat > 0:
        return
    out = common.stdout
    out.print(f"\n{block.prompt.group} {block.prompt.id}, turn {block.turn + 1}", style="bold")
    out.print(_clipped(block.prompt.turns[block.turn], 160), style="dim", markup=False)
    if block.plain_text is not None:
        out.print(_clipped(block.plain_text, SHOWN_CHARACTERS), markup=False)
    equal = [o.method for o in block.outcomes if isinstance(o, Answer) and o.equality in ("reference", "equal")]
    if len(equal) > 1:
        out.print(f"✓ {' = '.join(equal)}", style="green")
    for outcome in block.outcomes:
        if not isinstance(outcome, Answer):
            out.print(f"✗ {outcome.method}: {outcome.error}", style="red", markup=False, soft_wrap=True)
        elif outcome.difference is not None:
            mark, style, what = ("≈", "yellow", "a tie") if outcome.equality == "tied" else ("✗", "red", "no tie")
            at = outcome.difference.position + 1
            out.print(f"{mark} {outcome.method} leaves it at token {at} ({what} of the top logits)", style=style)


def _clipped(text: str, characters: int) -> str:
    text = text.strip()
    return text if len(text) <= characters else text[:characters].rstrip() + " ..."


def _finish(results: Results, plot: Path | None, as_json: bool, costs: dict[str, SpanCost] | None = None) -> None:
    """Tables or the JSON document, and the plot."""
    if as_json:
        print_json(document(results, costs))
    else:
        _print_tables(results)
        if costs and (remark := cost_remark(costs)) is not None:
            common.stdout.print(remark, soft_wrap=True, markup=False)
    if plot is not None:
        report.plot(results, plot)


def _print_tables(results: Results) -> None:
    summaries = summarize(results)
    common.stdout.print(report.headline(results), style="dim", soft_wrap=True, markup=False)
    if summaries:
        for table in (report.speed_table(summaries), report.breakdown_table(summaries[-1])):
            common.stdout.print()
            print_table(table.columns, table.rows, table.title)
        common.stdout.print()
    else:
        common.stdout.print("No complete block of answers yet.")
    for line in report.remarks(results):
        common.stdout.print(line, soft_wrap=True, markup=False)


def document(results: Results, costs: dict[str, SpanCost] | None = None, clock: Clock = DECODING) -> dict[str, Any]:
    """The ``--json`` document: header, groups (the last is all of them), texts, errors; the profile if there is one."""
    summaries = summarize(results, clock)
    profile = {}
    if results.header.settings.profiled and summaries:
        profile = {"profile": profile_document({m.method: m.ms_per_round for m in summaries[-1].methods}, costs)}
    return {
        "header": results.header.model_dump(),
        "sessions": [session.model_dump() for session in results.sessions],
        "groups": summaries,
        **profile,
        "texts": count_equality(results.own_answers),
        "errors": [failure.model_dump() for failure in results.failures],
        "overall": OVERALL,
    }


def refuse_bad(results: Results) -> None:
    """
    Raises:
        HotheadError: an answer of the engine failed, or a text of it is not the target's. Of peers neither is an error.
    """
    different = [answer for answer in results.answers if answer.equality == "different"]
    if different:
        raise HotheadError(
            f"{len(different)} answers are not plain decoding's text, and not by a tie of logits; first "
            f"{report.place(different[0])}"
        )
    failures = [failure for failure in results.failures if failure.method not in PEERS]
    if failures:
        raise HotheadError(f"{len(failures)} answers failed; first {report.place(failures[0])}: {failures[0].error}")
