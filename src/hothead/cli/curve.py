"""``hothead curve``: exact acceptance of every vocabulary size from one pass; ``curve show`` reads what it wrote."""

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hothead.bench.prompts import Prompt, prompts_digest, read_prompts
from hothead.cli import common
from hothead.cli.common import JsonOption, numbers, print_json, print_table, quiet_stdout, verb_app
from hothead.cli.engine_options import DTYPES, check_device, check_threads, option, require_torch, with_options
from hothead.errors import InputError
from hothead.ranking.ranking import TokenRanking
from hothead.replay.curve import AcceptanceCurves, read_curves
from hothead.report import curve as report
from hothead.report.figures import check_plot_path

if TYPE_CHECKING:
    from hothead.engine.sampling import SamplingParams
    from hothead.models.draft import Draft
    from hothead.models.target import Target
    from hothead.replay.measure import CurveMeasurement, DynamicSetting
    from hothead.replay.missed import EmittedTokens
    from hothead.replay.paths import Paths

app = verb_app()
# Which rows the answers are drafted with decides how fast they come, not what they say.
ANSWERING_RATIO = 1 / 6
DYNAMIC_RATIOS = (0.1, 0.25)
DEFAULT_POLICY = "on_miss+prompt"

PlotOption = Annotated[Path | None, option("Draw into a .png, .svg or .pdf.", metavar="FILE")]


@dataclass(frozen=True)
class CurveOptions:
    """The models, the rankings and the prompts."""

    target: Annotated[str | None, option("Folder, .gguf file, Hub name or package:NAME.", metavar="MODEL")] = None
    draft: Annotated[str | None, option("EAGLE-1/2 folder or a causal LM.", metavar="MODEL")] = None
    ranking: Annotated[list[Path] | None, option("Token ranking; may be repeated.", metavar="FILE")] = None
    prompts: Annotated[Path | None, option("Prompt set: .jsonl, .parquet or text.", metavar="FILE")] = None
    per_group: Annotated[int | None, option("Only the first so many of each group.")] = None
    num_steps: Annotated[str, option("Tokens drafted per round, 1 to 16.", metavar="NUMBERS")] = "4"
    max_new_tokens: Annotated[int, option("Tokens per answer at most.", "--max-new-tokens", "-n")] = 64
    temperature: Annotated[float, option("0: greedy.")] = 0.0
    top_p: Annotated[float, option("Keep the likeliest tokens of this total.")] = 1.0
    top_k: Annotated[int, option("Keep this many tokens; 0: all.")] = 0
    seed: Annotated[int, option("Of the sampled answers.")] = 0
    draft_sampling: Annotated[str, option("probabilistic, or greedy drafts.", metavar="NAME")] = "probabilistic"
    every: Annotated[int, option("Sizes are multiples of this.")] = 64
    slots: Annotated[str | None, option("Also replay so many dynamic rows.", metavar="NUMBERS")] = None
    policy: Annotated[
        list[str] | None, option(f"What fills them; may be repeated ({DEFAULT_POLICY}).", metavar="NAMES")
    ] = None
    sizes: Annotated[str | None, option("Static rows beside them (10 % and 25 % of all).", metavar="NUMBERS")] = None
    rows: Annotated[str | None, option("In place of --sizes: static rows and slots together.", metavar="NUMBERS")] = (
        None
    )
    cache: Annotated[Path | None, option("Where answers are kept.", metavar="FOLDER")] = None
    keep: Annotated[bool, option("Keep answers and hidden states on disk.", "--keep/--no-keep")] = True
    dtype: Annotated[str, option(f"{', '.join(DTYPES)}.", metavar="NAME")] = "bfloat16"
    device: Annotated[str, option("As torch names it.", metavar="NAME")] = "cpu"
    threads: Annotated[int | None, option("Of torch on the CPU; none: its own choice.")] = None

    def check(self) -> None:
        """
        Raises:
            InputError: an option is missing or out of range.
        """
        for name in ("target", "draft", "ranking", "prompts"):
            if not getattr(self, name):
                raise InputError(f"give the {name}: --{name}; a curve needs a target, a draft, a ranking and prompts")
        if self.dtype not in DTYPES:
            raise InputError(f"--dtype must be one of {', '.join(DTYPES)}; found {self.dtype!r}")
        check_threads(self.threads)
        if self.every < 1:
            raise InputError(f"--every must be at least 1; found {self.every}")
        if self.slots is None and (self.sizes is not None or self.rows is not None or self.policy):
            raise InputError("--sizes, --rows and --policy describe dynamic vocabularies: give --slots too")
        if self.sizes is not None and self.rows is not None:
            raise InputError("--sizes counts static rows and --rows slots too; give one of them")

    @property
    def cache_folder(self) -> Path | None:
        """Where answers are kept: as asked, or in the user's cache."""
        if not self.keep:
            return None
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return (self.cache or Path(home) / "hothead" / "replay").expanduser()

    def params(self) -> "SamplingParams":
        """Of the answers and the drafts.

        Raises:
            InputError: a value out of range.
        """
        from hothead.engine.sampling import SamplingParams

        return SamplingParams(
            self.temperature,
            self.top_p,
            self.top_k,
            self.seed,
            self.max_new_tokens,
            draft_sampling=self.draft_sampling,
        )

    def check_values(self) -> None:
        """
        Raises:
            InputError: k, slots or sizes that are no numbers, a policy that does not exist, or a value out of range.
        """
        from hothead.dynamic import FULL_REFRESH, DynamicConfig
        from hothead.replay.measure import check_num_steps

        check_num_steps(numbers(self.num_steps, "--num-steps"))
        self.params()
        slots = numbers(self.slots, "--slots") if self.slots is not None else (0,)
        if self.sizes is not None:
            numbers(self.sizes, "--sizes")
        if self.rows is not None and min(numbers(self.rows, "--rows")) <= max(slots):
            raise InputError(f"--rows must be above --slots, which are among them; found {self.rows} and {self.slots}")
        for policy in self.policies:
            if policy != FULL_REFRESH:
                DynamicConfig(min(slots), policy)

    @property
    def policies(self) -> list[str]:
        return self.policy or [DEFAULT_POLICY]

    def dynamic(self, target_vocab_size: int) -> "tuple[DynamicSetting, ...]":
        """Every combination of static rows, slots and policy; ``full_refresh`` has no slots."""
        from hothead.dynamic import FULL_REFRESH
        from hothead.replay.measure import DynamicSetting

        if self.slots is None:
            return ()
        asked = numbers(self.slots, "--slots")
        settings = [
            DynamicSetting(size, slots, policy)
            for policy in self.policies
            for slots in ((0,) if policy == FULL_REFRESH else asked)
            for size in self._sizes_beside(slots, target_vocab_size)
        ]
        return tuple(dict.fromkeys(settings))

    def _sizes_beside(self, slots: int, target_vocab_size: int) -> list[int]:
        """Static rows."""
        if self.rows is not None:
            return [rows - slots for rows in numbers(self.rows, "--rows")]
        if self.sizes is not None:
            return list(numbers(self.sizes, "--sizes"))
        return [int(target_vocab_size * ratio) for ratio in DYNAMIC_RATIOS]


@app.callback(invoke_without_command=True)
@with_options
def curve(
    ctx: typer.Context,
    options: CurveOptions,
    output: Annotated[Path | None, option("Result file, JSON.", "--output", "-o", metavar="FILE")] = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Acceptance of every draft vocabulary size, exactly, from one pass over the target's answers."""
    if ctx.invoked_subcommand is not None:
        return
    options.check()
    common.check_outputs(output, plot=plot)
    require_torch()
    assert options.prompts is not None and options.ranking is not None
    prompts = read_prompts(options.prompts, options.per_group)
    rankings = read_rankings(options.ranking)
    with quiet_stdout(as_json):
        curves = _measure(options, prompts, rankings)
    if output is not None:
        curves.save(output)
    _show(curves, plot, as_json)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="What hothead curve -o wrote.")],
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the tables of a result file again; needs no torch."""
    if plot is not None:
        check_plot_path(plot)
    _show(read_curves(file), plot, as_json)


def _measure(options: CurveOptions, prompts: tuple[Prompt, ...], rankings: dict[str, TokenRanking]) -> AcceptanceCurves:
    import torch

    from hothead.models.loading import load_draft, load_target

    options.check_values()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    check_device(options.device)
    assert options.target is not None and options.draft is not None
    target = load_target(options.target, options.dtype, options.device)
    for ranking in rankings.values():
        ranking.check_tokenizer(target.tokenizer_fingerprint)
    return measure_curves(options, target, load_draft(options.draft, target), prompts, rankings)


def measure_curves(
    options: CurveOptions,
    target: "Target",
    draft: "Draft",
    prompts: tuple[Prompt, ...],
    rankings: dict[str, TokenRanking],
) -> AcceptanceCurves:
    """Replay the prompts with models that are loaded, with a progress bar."""
    from hothead.replay.measure import CurveMeasurement
    from hothead.replay.missed import EmittedTokens

    start, cpu_start = time.perf_counter(), time.process_time()
    num_steps, params = numbers(options.num_steps, "--num-steps"), options.params()
    measurement = CurveMeasurement(
        draft.lm_head, rankings, prompts, num_steps, params, options.dynamic(target.vocab_size), options.every
    )
    paths = _paths(options, target, draft, prompts, next(iter(rankings.values())), max(num_steps))
    emitted = EmittedTokens()
    try:
        with common.progress("reading answers", len(paths), "tokens") as bar:
            for path in measurement.run(paths):
                bar.advance(1, 0 if path.answer is None else len(path.answer.path))
                if path.answer is not None:
                    emitted.add(path.answer.target_ids.tolist())
    except KeyboardInterrupt:
        if options.cache_folder is not None:
            common.say(f"hothead: {measurement.answers} answers are kept; the same command goes on after them")
        raise
    took = time.perf_counter() - start, time.process_time() - cpu_start
    return _document(options, target, prompts, rankings, measurement, paths, emitted, took)


def _paths(
    options: CurveOptions,
    target: "Target",
    draft: "Draft",
    prompts: tuple[Prompt, ...],
    ranking: TokenRanking,
    depth: int,
) -> "Paths":
    from hothead.bench.machine import model_identity
    from hothead.engine.generate import SpeculativeDecoder
    from hothead.replay.paths import PathCache, Paths
    from hothead.vocab import DraftVocab

    assert options.target is not None and options.draft is not None
    least = len(ranking.special_target_ids) + len(ranking.byte_target_ids)
    size = min(target.vocab_size, max(int(target.vocab_size * ANSWERING_RATIO), least))
    vocab = DraftVocab.from_ranking(ranking, size=size, target_vocab_size=target.vocab_size)
    cache = PathCache(
        options.cache_folder,
        {"target": model_identity(options.target).model_dump(), "dtype": options.dtype},
    )
    decoder = SpeculativeDecoder(target, draft, vocab)
    draft_identity = str(model_identity(options.draft).model_dump())
    return Paths(decoder, draft, prompts, options.params(), depth, cache, draft_identity)


def _document(
    options: CurveOptions,
    target: "Target",
    prompts: tuple[Prompt, ...],
    rankings: dict[str, TokenRanking],
    measurement: "CurveMeasurement",
    paths: "Paths",
    emitted: "EmittedTokens",
    took: tuple[float, float],
) -> AcceptanceCurves:
    from hothead.bench.machine import model_identity, peak_memory_gib, this_machine, versions
    from hothead.bench.schema import PromptSetIdentity
    from hothead.replay.curve import Cost, CurveSettings, RankingIdentity, standard_sizes

    assert options.target is not None and options.draft is not None and options.prompts is not None
    settings: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("temperature", "top_p", "top_k", "seed", "draft_sampling", "max_new_tokens")
    }
    return AcceptanceCurves(
        versions=versions(),
        machine=this_machine(options.device),
        target=model_identity(options.target),
        draft=model_identity(options.draft),
        tokenizer_fingerprint=target.tokenizer_fingerprint,
        dtype=options.dtype,
        device=options.device,
        prompt_set=PromptSetIdentity(name=options.prompts.stem, prompts=len(prompts), digest=prompts_digest(prompts)),
        settings=CurveSettings(
            **settings, num_steps=numbers(options.num_steps, "--num-steps"), multiple_of=options.every
        ),
        rankings=tuple(
            RankingIdentity(name=name, digest=hashlib.sha256(ranking.target_ids.astype("<i8").tobytes()).hexdigest())
            for name, ranking in rankings.items()
        ),
        sizes=tuple(measurement.sizes.tolist()),
        groups=measurement.groups,
        curves=measurement.curves(),
        dynamic=measurement.dynamic(),
        missed=emitted.missed(measurement.orders, standard_sizes(measurement.sizes.tolist())[:-1], target.tokenizer),
        skipped=tuple(measurement.skipped),
        cost=Cost(
            generate_s=paths.generate_s,
            pass_s=paths.pass_s,
            head_s=measurement.static.head_s,
            sizes_s=measurement.static.sizes_s,
            dynamic_s=measurement.dynamic_s,
            answers=measurement.answers,
            cached=paths.cached,
            wall_s=took[0],
            cpu_s=took[1],
            peak_memory_gib=peak_memory_gib(),
        ),
    )


def _show(curves: AcceptanceCurves, plot: Path | None, as_json: bool) -> None:
    """Tables or the JSON document, and the plot."""
    if as_json:
        print_json(curves.model_dump())
    else:
        out = common.stdout
        out.print(report.headline(curves), style="dim", soft_wrap=True, markup=False)
        for table in report.tables(curves):
            out.print()
            print_table(table.columns, table.rows, table.title)
        out.print()
        for line in report.remarks(curves):
            out.print(line, soft_wrap=True, markup=False)
    if plot is not None:
        report.plot(curves, plot)


def read_rankings(paths: Sequence[Path]) -> dict[str, TokenRanking]:
    """Rankings by the name of their file; the folder's name is added where two files share one.

    Raises:
        InputError: a file that is no ranking, or the same one twice.
    """
    stems = [path.stem for path in paths]
    names = [f"{p.resolve().parent.name}/{p.stem}" if stems.count(p.stem) > 1 else p.stem for p in paths]
    if len(set(names)) < len(names):
        raise InputError(f"two rankings are called {next(n for n in names if names.count(n) > 1)!r}; rename one file")
    return {name: TokenRanking.load(path) for name, path in zip(names, paths, strict=True)}
