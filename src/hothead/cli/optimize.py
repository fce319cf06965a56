"""``hothead optimize``: from prompts to a vocabulary with its evidence: rank, curve, times, plan, write, verify."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter

from hothead.bench.head_results import EMITTED_PER_ROUND
from hothead.bench.prompts import Prompt, prompts_digest, read_prompts
from hothead.bench.schema import DYNAMIC, FULL, PLAIN, STATIC, ModelIdentity, Results, Settings, read_results
from hothead.cli.bench_head import HeadOptions, measure_heads
from hothead.cli.common import JsonOption, print_json, print_table, quiet_stdout, say, stdout
from hothead.cli.compare import refuse_bad
from hothead.cli.curve import DEFAULT_POLICY, CurveOptions, measure_curves, numbers
from hothead.cli.engine_options import (
    DTYPES,
    Engine,
    EngineOptions,
    check_device,
    option,
    require_torch,
    with_options,
)
from hothead.cli.optimize_files import HandedOver, hand_over
from hothead.cli.plan import TimesOptions, measure_times
from hothead.errors import InputError
from hothead.plan.choice import make_plan
from hothead.plan.schema import Plan, Times, read_times
from hothead.plan.verify import Verification, verify
from hothead.plan.workspace import Workspace, file_digest
from hothead.ranking.ranking import TokenRanking
from hothead.replay.curve import AcceptanceCurves, read_curves
from hothead.report import optimize as report
from hothead.report.html import write_report
from hothead.vocab import DraftVocab, SelectionOrder

if TYPE_CHECKING:
    from hothead.models.draft import Draft
    from hothead.models.target import Target

RANKING, CURVE, TIMES, HEAD, PLAN, RUN, REPORT = (
    "ranking.safetensors", "curve.json", "times.json", "head.json", "plan.json", "compare.jsonl", "report.html"
)  # fmt: skip
RANKING_BATCH = 8  # answers at once while ranking
DYNAMIC_RATIOS = (0.05, 0.1, 0.2)  # static rows beside slots, of all
HEAD_HALVINGS = 4  # the head alone is timed whole and halved so often,
HEAD_BATCHES = "1,16,256"  # at these batches,
HEAD_SECONDS = 4.0  # each for so long


@dataclass(frozen=True)
class OptimizeOptions:
    """The models, the prompts, and how thorough to be."""

    target: Annotated[str | None, option("Folder, .gguf file, Hub name or package:NAME.", metavar="MODEL")] = None
    draft: Annotated[str | None, option("EAGLE-1/2 folder or a causal LM.", metavar="MODEL")] = None
    prompts: Annotated[Path | None, option("Your prompts: .jsonl, .parquet or text.", metavar="FILE")] = None
    out: Annotated[Path | None, option("Where all results go.", "--out", "-o", metavar="DIR")] = None
    ranking: Annotated[Path | None, option("Use this token ranking; none: make one.", metavar="FILE")] = None
    per_group: Annotated[int | None, option("Only the first so many prompts of each group.")] = None
    num_steps: Annotated[str, option("Tokens drafted per round to consider.", metavar="NUMBERS")] = "1,2,3,4,5,6"
    slots: Annotated[str, option("Dynamic rows to consider; 0: static only.", metavar="NUMBERS")] = "512"
    max_new_tokens: Annotated[int, option("Tokens per answer at most.", "--max-new-tokens", "-n")] = 64
    temperature: Annotated[float, option("0: greedy.")] = 0.0
    seed: Annotated[int, option("Of the sampled answers.")] = 0
    timed_prompts: Annotated[int, option("Prompts to time, evenly chosen.")] = 8
    repeats: Annotated[int, option("Of each timed answer.")] = 3
    verify_prompts: Annotated[int, option("Prompts of the verifying run, evenly chosen.")] = 24
    dtype: Annotated[str, option(f"{', '.join(DTYPES)}.", metavar="NAME")] = "bfloat16"
    device: Annotated[str, option("As torch names it.", metavar="NAME")] = "cpu"
    threads: Annotated[int | None, option("Of torch on the CPU; none: its own choice.")] = None

    def check(self) -> None:
        """
        Raises:
            InputError: an option is missing or out of range.
        """
        for name in ("target", "draft", "prompts", "out"):
            if not getattr(self, name):
                raise InputError(f"give --{name}: a target, its draft, your prompts and a folder for the results")
        if min(self.timed_prompts, self.repeats, self.verify_prompts) < 1:
            raise InputError("--timed-prompts, --repeats and --verify-prompts must be at least 1")
        self.curve(Path()).check()
        self.curve(Path()).check_values()

    def curve(self, ranking: Path) -> CurveOptions:
        """Of the curve stage."""
        models = ("target", "draft", "dtype", "device", "threads")
        answers = ("prompts", "num_steps", "max_new_tokens", "temperature", "seed")
        values: dict[str, Any] = {name: getattr(self, name) for name in (*models, *answers)}
        assert self.out is not None  # check
        slots = None if self.slots == "0" else self.slots
        return CurveOptions(**values, ranking=[ranking], slots=slots, cache=self.out / "cache")

    def head(self, vocab_size: int, weights: str) -> HeadOptions:
        """Of timing the head alone."""
        sizes = ",".join(str(vocab_size >> halvings) for halvings in range(1, HEAD_HALVINGS + 1))
        asked = max(numbers(self.slots, "--slots")) or HeadOptions.slots
        slots = max(EMITTED_PER_ROUND, min(asked, vocab_size // 4))
        return HeadOptions(
            target=weights, sizes=sizes, slots=slots, batch=HEAD_BATCHES, seconds=HEAD_SECONDS,
            dtype=self.dtype, device=self.device, threads=self.threads,
        )  # fmt: skip

    def times(self) -> TimesOptions:
        """Of the timing stage."""
        return TimesOptions(
            device=self.device, threads=self.threads, timed_prompts=self.timed_prompts, repeats=self.repeats
        )


@with_options
def optimize(options: OptimizeOptions, as_json: JsonOption = False) -> None:
    """Find the draft vocabulary that decodes your prompts fastest, prove it, and write it for your engine.

    Every stage leaves its result in the folder; the same command goes on after what is there.
    """
    require_torch()
    options.check()
    with quiet_stdout(as_json):
        outcome = Optimization(options).run()
    if as_json:
        print_json(outcome.document())
    else:
        show(outcome)
    refuse_bad(outcome.results)


def show(outcome: "Outcome") -> None:
    """The one screen at the end."""
    table = report.checks_table(outcome.verification)
    stdout.print(report.headline(outcome.plan), style="bold", soft_wrap=True, markup=False)
    stdout.print()
    print_table(table.columns, table.rows, table.title)
    stdout.print()
    for line in report.lines(outcome.plan, outcome.verification, outcome.handed_over.notes):
        stdout.print(line, soft_wrap=True, markup=False)
    for engine, command in outcome.handed_over.commands.items():
        stdout.print(f"\n{engine}:\n  {command}", soft_wrap=True, markup=False)
    stdout.print()
    for what, path in outcome.files.items():
        stdout.print(f"{what + ':':18} {path}", soft_wrap=True, markup=False)


@dataclass(frozen=True)
class Outcome:
    """What came of it all."""

    plan: Plan
    results: Results
    verification: Verification
    handed_over: HandedOver
    files: dict[str, Path]

    def document(self) -> dict[str, Any]:
        """The ``--json`` document."""
        batch = self.plan.batches[0]
        return {
            "verdict": batch.verdict,
            "reason": batch.reason,
            "choice": batch.choice.model_dump(),
            "verification": TypeAdapter(Verification).dump_python(self.verification, mode="json"),
            "files": self.files,
            "commands": self.handed_over.commands,
            "notes": self.handed_over.notes,
        }


class Optimization:
    """The stages, one after the other; models are loaded when the first stage needs them."""

    def __init__(self, options: OptimizeOptions) -> None:
        import torch

        from hothead.bench.machine import model_identity

        assert options.target is not None and options.draft is not None
        assert options.prompts is not None and options.out is not None
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        check_device(options.device)
        self.options, self.target_spec, self.draft_spec = options, options.target, options.draft
        self.prompts_path = options.prompts
        asked = read_prompts(options.prompts, options.per_group)
        self.ranking_prompts, self.prompts = ((), asked) if options.ranking is not None else held_out(asked)
        if options.ranking is not None:
            TokenRanking.load(options.ranking)  # a wrong file is noticed at once
        self.identities: tuple[ModelIdentity, ModelIdentity] = (
            model_identity(self.target_spec),
            model_identity(self.draft_spec),
        )
        self.workspace = Workspace(options.out)

    @cached_property
    def target(self) -> "Target":
        from hothead.models.loading import load_target

        return load_target(self.target_spec, self.options.dtype, self.options.device)

    @cached_property
    def draft(self) -> "Draft":
        from hothead.models.loading import load_draft

        return load_draft(self.draft_spec, self.target)

    def run(self) -> Outcome:
        """All stages.

        Raises:
            HotheadError: an input does not fit, or an artefact cannot be written.
        """
        folder = self.workspace.folder
        ranking_path = self.options.ranking or self._ranked()
        ranking = TokenRanking.load(ranking_path)
        curves = self._curves(ranking, ranking_path)
        times = self._times(ranking, curves, ranking_path)
        head_path = self._head()
        plan = make_plan(curves, times)
        plan.save(folder / PLAN)
        batch = plan.batches[0]
        say(f"hothead: plan: {batch.verdict}")
        handed_over = hand_over(batch, folder, self.target_spec, self.draft_spec, ranking, ranking_path)
        results = self._verified(plan, ranking)
        verification = verify(batch, results)
        evidence = {
            "ranking": ranking_path, "curve": folder / CURVE, "times": folder / TIMES, "head times": head_path,
            "plan": folder / PLAN, "verifying run": folder / RUN,
        }  # fmt: skip
        files = {**evidence, **handed_over.files}
        shown = [ranking_path, *(folder / name for name in (CURVE, HEAD, PLAN, RUN))]
        write_report(shown, folder / REPORT)
        return Outcome(plan, results, verification, handed_over, {**files, "report": folder / REPORT})

    def _made_from(self, **more: Any) -> dict[str, Any]:
        """What every stage depends on."""
        target, draft = (identity.model_dump() for identity in self.identities)
        return {"target": target, "draft": draft, **more}

    def _stage(self, name: str, inputs: dict[str, Any], make: Any) -> Path:
        what = name.partition(".")[0]
        path, is_new = self.workspace.artefact(name, inputs, make)
        say(f"hothead: {what}: {'made' if is_new else 'kept'} {path}")
        return path

    def _ranked(self) -> Path:
        """Count what the target answers to one half of the prompts."""

        def make(path: Path) -> None:
            from hothead.cli.rank import rank_prompts
            from hothead.ranking.answers import Prompt as Asked
            from hothead.ranking.generate import Sampling
            from hothead.tokenizer import load_tokenizer

            asked = [Asked(prompt.turns, prompt.history) for prompt in self.ranking_prompts]
            sampling = Sampling(self.options.temperature, self.options.max_new_tokens, self.options.seed)
            tokenizer, names = load_tokenizer(self.target_spec), (self.prompts_path.name,)
            rank_prompts(asked, names, self.target_spec, tokenizer, path, sampling, RANKING_BATCH)

        sampling = (self.options.temperature, self.options.max_new_tokens, self.options.seed)
        return self._stage(
            RANKING, self._made_from(prompts=prompts_digest(self.ranking_prompts), sampling=sampling), make
        )

    def _curves(self, ranking: TokenRanking, ranking_path: Path) -> AcceptanceCurves:
        options = self.options.curve(ranking_path)

        def make(path: Path) -> None:
            ranking.check_tokenizer(self.target.tokenizer_fingerprint)
            asked = with_dynamic_sizes(options, ranking, self.target.vocab_size)
            measure_curves(asked, self.target, self.draft, self.prompts, {ranking_path.stem: ranking}).save(path)

        names = ("num_steps", "slots", "max_new_tokens", "temperature", "seed")
        asked = {name: getattr(options, name) for name in names}
        asked |= {"dtype": options.dtype, "ranking": file_digest(ranking_path), "policy": DEFAULT_POLICY}
        return read_curves(self._stage(CURVE, self._made_from(prompts=prompts_digest(self.prompts), **asked), make))

    def _head(self) -> Path:
        """The draft's head alone, by rows and batch, against the machine's limits: for the report."""
        from hothead.bench.machine import this_machine

        machine = this_machine(self.options.device).model_dump()
        asked = {"machine": machine, "device": self.options.device, "dtype": self.options.dtype}

        def make(path: Path) -> None:
            lm_head = self.draft.lm_head
            options = self.options.head(lm_head.vocab_size, Path(self.draft_spec).name)
            measure_heads(options, lm_head).save(path)

        return self._stage(HEAD, self._made_from(slots=self.options.slots, **asked), make)

    def _times(self, ranking: TokenRanking, curves: AcceptanceCurves, ranking_path: Path) -> Times:
        from hothead.bench.machine import this_machine

        options = self.options.times()

        def make(path: Path) -> None:
            models = self.target, self.draft
            measure_times(*models, self.identities, ranking, self.prompts, curves, options).save(path)

        machine = this_machine(options.device).model_dump()
        asked = {name: getattr(options, name) for name in ("device", "timed_prompts", "repeats")}
        asked |= {"curve": file_digest(self.workspace.folder / CURVE), "ranking": file_digest(ranking_path)}
        return read_times(self._stage(TIMES, self._made_from(machine=machine, **asked), make))

    def _verified(self, plan: Plan, ranking: TokenRanking) -> Results:
        """Plain, the full vocabulary and the choice answer prompts in turn; goes on where an earlier run ended."""
        from hothead.cli.compare import comparison_header, run_comparison
        from hothead.dynamic import DynamicConfig

        choice, asked, vocab = plan.batches[0].choice, self.options, None
        methods = [PLAIN, FULL]
        if choice.size < plan.target_vocab_size:
            vocab = DraftVocab.from_ranking(ranking, size=choice.size, target_vocab_size=plan.target_vocab_size)
            methods.append(DYNAMIC if choice.slots else STATIC)
        dynamic = DynamicConfig(choice.slots, choice.policy)
        options = EngineOptions(
            target=self.target_spec, draft=self.draft_spec, slots=choice.slots, policy=choice.policy,
            num_steps=choice.num_steps, dtype=asked.dtype, device=asked.device, threads=asked.threads,
        )  # fmt: skip
        settings = Settings(
            methods=tuple(methods), repeats=1, num_steps=choice.num_steps, slots=choice.slots, policy=choice.policy,
            max_new_tokens=asked.max_new_tokens, temperature=asked.temperature, top_p=1.0, top_k=0, seed=asked.seed,
        )  # fmt: skip
        engine = Engine(self.target, self.draft, vocab, None, dynamic, options)
        prompts = self.prompts[:: -(-len(self.prompts) // asked.verify_prompts)]
        path, name = self.workspace.folder / RUN, self.prompts_path.stem
        if path.exists() and read_results(path).header != comparison_header(engine, settings, name, prompts):
            path.unlink()  # of another plan
        return run_comparison(engine, settings, name, prompts, path)


def with_dynamic_sizes(options: CurveOptions, ranking: TokenRanking, target_vocab_size: int) -> CurveOptions:
    """Static rows to replay slots beside, as far as the required tokens and the head leave room."""
    if options.slots is None:
        return options
    least = int(SelectionOrder.of(ranking, target_vocab_size).sizes()[0])
    room = target_vocab_size - max(numbers(options.slots, "--slots"))
    sizes = sorted({max(least, int(ratio * target_vocab_size)) for ratio in DYNAMIC_RATIOS})
    fitting = [str(size) for size in sizes if size <= room]
    return replace(options, sizes=",".join(fitting)) if fitting else replace(options, slots=None)


def held_out(prompts: tuple[Prompt, ...]) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Every second prompt of each group to rank on, and the others to measure on: never the same ones.

    Raises:
        InputError: too few prompts for that.
    """
    seen: dict[str, int] = {}
    halves: tuple[list[Prompt], list[Prompt]] = ([], [])
    for prompt in prompts:
        number = seen.get(prompt.group, 0)
        seen[prompt.group] = number + 1
        halves[(number + 1) % 2].append(prompt)  # a group's only prompt is measured
    if not halves[0]:
        raise InputError(
            "no group has two prompts: one to rank tokens on, another to measure on. Give more prompts, or a ranking: "
            "--ranking FILE"
        )
    return tuple(halves[0]), tuple(halves[1])
