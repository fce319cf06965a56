"""``hothead plan``: acceptance of every vocabulary joined with times measured here or given; ``plan show`` reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hothead.bench.prompts import Prompt, read_prompts
from hothead.cli import common
from hothead.cli.common import JsonOption, numbers, print_json, print_table, quiet_stdout, verb_app
from hothead.cli.engine_options import check_device, check_threads, option, require_torch, with_options
from hothead.errors import InputError
from hothead.plan.choice import make_plan
from hothead.plan.schema import Plan, Times, read_plan, read_times
from hothead.ranking.ranking import TokenRanking
from hothead.replay.curve import AcceptanceCurves, read_curves
from hothead.report import plan_summary as report
from hothead.report.figures import check_plot_path
from hothead.threads import default_threads

if TYPE_CHECKING:
    from hothead.bench.schema import ModelIdentity
    from hothead.models.draft import Draft
    from hothead.models.target import Target

app = verb_app()

PlotOption = Annotated[Path | None, option("Draw into a .png, .svg or .pdf.", metavar="FILE")]


@dataclass(frozen=True)
class TimesOptions:
    """Where times come from: a file, or this machine."""

    times: Annotated[Path | None, option("Times of any machine, in place of the rest.", metavar="FILE")] = None
    target: Annotated[str | None, option("Folder, .gguf file, Hub name or package:NAME.", metavar="MODEL")] = None
    draft: Annotated[str | None, option("EAGLE folder or a causal LM.", metavar="MODEL")] = None
    ranking: Annotated[Path | None, option("The curve's token ranking.", metavar="FILE")] = None
    prompts: Annotated[Path | None, option("Prompts to time answers to.", metavar="FILE")] = None
    timed_prompts: Annotated[int, option("So many of them, evenly chosen.")] = 8
    repeats: Annotated[int, option("How often each is answered in every way.")] = 3
    timed_tokens: Annotated[int, option("Tokens per timed answer.")] = 32
    save_times: Annotated[Path | None, option("Keep the measured times.", metavar="FILE")] = None
    device: Annotated[str, option("As torch names it.", metavar="NAME")] = "cpu"
    threads: Annotated[int | None, option("Of torch on the CPU; none: its own choice.")] = None

    def check(self) -> None:
        """
        Raises:
            InputError: an option is missing, out of range or one too many.
        """
        measured = {name: getattr(self, name) for name in ("target", "draft", "ranking", "prompts")}
        if self.times is not None:
            given = next((name for name, value in (*measured.items(), ("save-times", self.save_times)) if value), None)
            if given is not None:
                raise InputError(f"--times gives the times and --{given} measures them; give one of them")
            return
        for name, value in measured.items():
            if not value:
                raise InputError(
                    f"give the {name}: --{name}; times are measured with --target, --draft, --ranking and --prompts, "
                    "or given with --times FILE"
                )
        if min(self.timed_prompts, self.repeats) < 1 or self.timed_tokens < 2:
            raise InputError("--timed-prompts and --repeats must be at least 1, --timed-tokens at least 2")
        check_threads(self.threads)


@app.callback(invoke_without_command=True)
@with_options
def plan(
    ctx: typer.Context,
    options: TimesOptions,
    curve: Annotated[Path | None, option("What hothead curve -o wrote.", metavar="FILE")] = None,
    batch: Annotated[str, option("Batch sizes that the times have.", metavar="NUMBERS")] = "1",
    group: Annotated[str | None, option("Plan for one task group of the curve.", metavar="NAME")] = None,
    output: Annotated[Path | None, option("Result file, JSON.", "--output", "-o", metavar="FILE")] = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the draft vocabulary and k that decode fastest, from a curve and the times of a machine."""
    if ctx.invoked_subcommand is not None:
        return
    if curve is None:
        raise InputError("give the acceptance: --curve FILE, as hothead curve -o writes it")
    options.check()
    common.check_outputs(output, options.save_times, plot=plot)
    curves = read_curves(curve)
    batches = numbers(batch, "--batch")
    if options.times is None and batches != (1,):
        raise InputError(
            "the embedded engine decodes one sequence at a time, so only --batch 1 is measured here; give the times of "
            "an engine that has larger batches: --times FILE"
        )
    with quiet_stdout(as_json):
        times = read_times(options.times) if options.times is not None else _measure(options, curves)
        if options.save_times is not None:
            times.save(options.save_times)
        made = make_plan(curves, times, batches, _ranking_name(options.ranking, curves), group)
    if output is not None:
        made.save(output)
    _show(made, plot, as_json)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="What hothead plan -o wrote.")],
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the tables of a result file again; needs no torch."""
    if plot is not None:
        check_plot_path(plot)
    _show(read_plan(file), plot, as_json)


def _ranking_name(path: Path | None, curves: AcceptanceCurves) -> str | None:
    """The curve's ranking that a file is, by its name; the first if no file is given or its name is not there."""
    names = [ranking.name for ranking in curves.rankings]
    return path.stem if path is not None and path.stem in names else None


def _measure(options: TimesOptions, curves: AcceptanceCurves) -> Times:
    require_torch()
    assert options.target is not None and options.draft is not None
    assert options.ranking is not None and options.prompts is not None
    prompts = read_prompts(options.prompts)
    ranking = TokenRanking.load(options.ranking)
    import torch

    from hothead.bench.machine import model_identity
    from hothead.models.loading import load_draft, load_target

    torch.set_num_threads(options.threads or default_threads())
    check_device(options.device)
    target = load_target(options.target, curves.dtype, options.device)
    draft = load_draft(options.draft, target)
    identities = model_identity(options.target), model_identity(options.draft)
    return measure_times(target, draft, identities, ranking, prompts, curves, options)


def measure_times(
    target: "Target",
    draft: "Draft",
    identities: "tuple[ModelIdentity, ModelIdentity]",
    ranking: TokenRanking,
    prompts: Sequence[Prompt],
    curves: AcceptanceCurves,
    options: TimesOptions,
) -> Times:
    """Time what the curve has candidates for, with a progress bar; models are loaded, in the curve's dtype."""
    from hothead.engine.sampling import SamplingParams
    from hothead.plan.times import TimesConfig, TimesMeasurement

    asked = curves.settings
    drawing = asked.model_dump(include={"temperature", "top_p", "top_k", "seed", "draft_sampling"})
    params = SamplingParams(**drawing)
    dynamic = sorted({(found.size, found.slots, found.policy) for found in curves.dynamic})
    config = TimesConfig(asked.num_steps, tuple(dynamic), options.repeats, options.timed_tokens)
    chosen = prompts[:: max(1, -(-len(prompts) // options.timed_prompts))]
    measurement = TimesMeasurement(target, draft, ranking, chosen, params, config)
    with common.progress("timing", len(measurement), "tokens") as bar:
        for tokens in measurement.run():
            bar.advance(1, tokens)
    return measurement.times(curves.dtype, options.device, *identities)


def _show(plan: Plan, plot: Path | None, as_json: bool) -> None:
    """Tables or the JSON document, and the plot."""
    if as_json:
        print_json(plan.model_dump(mode="json"))
    else:
        out = common.stdout
        out.print(report.headline(plan), style="dim", soft_wrap=True, markup=False)
        for batch in plan.batches:
            for table in (report.kinds_table(plan, batch), report.shares_table(batch)):
                out.print()
                print_table(table.columns, table.rows, table.title)
        out.print()
        for line in report.remarks(plan):
            out.print(line, soft_wrap=True, markup=False)
        out.print()
        for batch in plan.batches:
            out.print(report.verdict(batch), style="bold", soft_wrap=True, markup=False)
    if plot is not None:
        report.plot(plan, plot)
