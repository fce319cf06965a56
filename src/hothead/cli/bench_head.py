"""``hothead bench head``: how long an LM head of each vocabulary takes; ``bench head show`` reads what it wrote."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hothead.bench.head_results import HeadBench, HeadBenchConfig, HeadSeries, read_head_bench
from hothead.cli import common
from hothead.cli.common import JsonOption, numbers, print_json, print_table, quiet_stdout, verb_app
from hothead.cli.engine_options import DTYPES, check_device, check_threads, option, require_torch, with_options
from hothead.errors import InputError
from hothead.report import head as report
from hothead.report.figures import check_plot_path

if TYPE_CHECKING:
    from hothead.head import LMHead

app = verb_app()

PlotOption = Annotated[Path | None, option("Draw into a .png, .svg or .pdf.", metavar="FILE")]


@dataclass(frozen=True)
class HeadOptions:
    """Which heads, and how to time them."""

    vocab_size: Annotated[str, option("V, rows of the full head.", metavar="NUMBERS")] = "49152"
    hidden_size: Annotated[str, option("H, values per row.", "--hidden-size", "--hidden", metavar="NUMBERS")] = "576"
    target: Annotated[str | None, option("Take the head of this model instead.", metavar="MODEL")] = None
    sizes: Annotated[str, option("Rows of the pruned heads.", metavar="NUMBERS")] = "4096,8192,16384"
    slots: Annotated[int, option("Dynamic rows beside them.")] = 512
    batch: Annotated[str, option("Hidden states per call, each timed apart.", metavar="NUMBERS")] = "1"
    repeats: Annotated[int, option("Rounds; each times every head once.")] = 100
    seconds: Annotated[float, option("Begin no more rounds of a batch after this.")] = 30.0
    dtype: Annotated[str, option(f"{', '.join(DTYPES)}, or several.", metavar="NAMES")] = "bfloat16"
    device: Annotated[str, option("As torch names it.", metavar="NAME")] = "cpu"
    threads: Annotated[int | None, option("Of torch on the CPU; none: its own choice.")] = None

    @property
    def config(self) -> HeadBenchConfig:
        """What to time.

        Raises:
            InputError: a value out of range.
        """
        sizes, batches = numbers(self.sizes, "--sizes"), numbers(self.batch, "--batch")
        return HeadBenchConfig(sizes, self.slots, batches, self.repeats, self.seconds)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """
        Raises:
            InputError: not a dtype.
        """
        found = tuple(dict.fromkeys(name.strip() for name in self.dtype.split(",")))
        for name in found:
            if name not in DTYPES:
                raise InputError(f"--dtype must be one of {', '.join(DTYPES)}, or several; found {name!r}")
        return found

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(V, H) of each head to make.

        Raises:
            InputError: not numbers of rows and columns.
        """
        vocab_sizes = numbers(self.vocab_size, "--vocab-size")
        hidden_sizes = numbers(self.hidden_size, "--hidden-size")
        if min(*vocab_sizes, *hidden_sizes) < 1:
            raise InputError("--vocab-size and --hidden-size must be at least 1")
        return tuple((rows, width) for rows in vocab_sizes for width in hidden_sizes)


@app.callback(invoke_without_command=True)
@with_options
def bench_head(
    ctx: typer.Context,
    options: HeadOptions,
    output: Annotated[Path | None, option("Result file, JSON.", "--output", "-o", metavar="FILE")] = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time LM heads: full, static, with slots, and the updates that keep them hot."""
    if ctx.invoked_subcommand is not None:
        return
    check_threads(options.threads)
    common.check_outputs(output, plot=plot)
    _ = options.dtypes, options.shapes, options.config  # before torch is loaded
    require_torch()
    with quiet_stdout(as_json):
        found = measure_heads(options)
    if output is not None:
        found.save(output)
    _show(found, plot, as_json)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="What hothead bench head -o wrote.")],
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the tables of a result file again; needs no torch."""
    if plot is not None:
        check_plot_path(plot)
    _show(read_head_bench(file), plot, as_json)


def measure_heads(options: HeadOptions, given: "LMHead | None" = None) -> HeadBench:
    """Time heads with a progress bar, beside what the machine itself can do.

    Args:
        given: a head that is loaded, of the dtype and on the device that ``options`` name; then the only one.
    """
    import torch

    from hothead.bench import head as bench
    from hothead.bench.ceilings import measure_ceiling
    from hothead.bench.machine import this_machine, versions

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    check_device(options.device)
    config, heads = options.config, []
    is_made = given is None and options.target is None
    if is_made:
        for vocab_size, _ in options.shapes:
            bench.check_sizes(config, vocab_size)
    count = len(options.dtypes) * (len(options.shapes) if is_made else 1) * len(config.batches)
    with common.progress("timing heads", count * config.repeats, "rounds") as bar:
        for dtype in options.dtypes:
            ceiling = measure_ceiling(getattr(torch, dtype), options.device)
            for lm_head in _lm_heads(options, dtype) if given is None else (given,):
                rows, width = lm_head.weight.shape
                timings = bench.bench_head(lm_head, config, lambda: bar.advance(1))
                heads.append(
                    HeadSeries(
                        vocab_size=rows,
                        hidden_size=width,
                        dtype=dtype,
                        weights=Path(options.target).name if options.target else "random",
                        ceiling=ceiling,
                        timings=timings,
                    )
                )
    return HeadBench(
        versions=versions(),
        machine=this_machine(options.device),
        device=options.device,
        config=config,
        heads=tuple(heads),
    )


def _lm_heads(options: HeadOptions, dtype: str) -> "Iterator[LMHead]":
    """One at a time, so that only one is in memory."""
    import torch

    if options.target is not None:
        from hothead.models.loading import load_target

        yield load_target(options.target, dtype, options.device).lm_head
        return
    from hothead.bench.head import random_lm_head

    for vocab_size, hidden_size in options.shapes:
        yield random_lm_head(vocab_size, hidden_size, getattr(torch, dtype), options.device)


def _show(found: HeadBench, plot: Path | None, as_json: bool) -> None:
    """Tables or the JSON document, and the plot."""
    if as_json:
        print_json(found.model_dump())
    else:
        for table in report.tables(found):
            print_table(table.columns, table.rows, table.title)
            common.stdout.print()
        for line in report.remarks(found):
            common.stdout.print(line, soft_wrap=True, markup=False)
    if plot is not None:
        report.plot(found, plot)
