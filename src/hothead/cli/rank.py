"""``hothead rank``: count a corpus, or what a model answers, into a token ranking; merge and show rankings."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hothead.cli.common import (
    JsonOption,
    check_output,
    print_json,
    print_table,
    progress,
    quiet_stdout,
    stdout,
    verb_app,
)
from hothead.errors import InputError
from hothead.ranking.answers import AnswerLog, Prompt, prompts_of
from hothead.ranking.corpus import Corpus, Format
from hothead.ranking.counts import Counted, Counts, PartialCount, count_records
from hothead.ranking.generate import Sampling
from hothead.ranking.ranking import Source, TokenRanking
from hothead.tokenizer import Tokenizer, fingerprint, load_tokenizer, tokenizer_size

SIZES = tuple(2**power for power in range(8, 18))
RESUME = "what is done is kept, run the same command again to go on"


class RankGroup(TyperGroup):
    """``build`` is what ``rank`` does unless another subcommand is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["build", *(args or ["--help"])]
        return super().parse_args(ctx, args)


app = verb_app(cls=RankGroup)

OutputOption = Annotated[Path, typer.Option("--output", "-o", help="The ranking to write (.safetensors).")]


@app.command(epilog="Also: hothead rank merge, hothead rank show (see their --help).")
def build(
    output: OutputOption,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Text, .jsonl, .json or .parquet files (.gz, .zst too), globs, or - for standard input."),
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer", "--target", metavar="SPEC", help="Folder, .gguf, tokenizer.json, package:NAME or Hub name."
        ),
    ] = "",
    count: Annotated[
        Counted, typer.Option(help="Of chats: what the assistant says, or all of it. Texts count whole.")
    ] = "assistant",
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="JSON field or parquet column to count (a.b.0 for inner ones).")
    ] = None,
    format: Annotated[Format | None, typer.Option(help="Of the inputs, where the name does not tell.")] = None,
    generate_with: Annotated[
        str, typer.Option("--generate-with", metavar="MODEL", help="Let this model answer the prompts; count that.")
    ] = "",
    endpoint: Annotated[
        str, typer.Option(metavar="URL", help="Let an OpenAI-compatible server answer (key: HOTHEAD_API_KEY).")
    ] = "",
    prompts: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Prompts to answer: chats, turns, or a line each.")
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="The server's name of the model; default its first.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Of each answer.")] = 512,
    temperature: Annotated[float, typer.Option(min=0, metavar="T", help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of sampling.")] = 0,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts at once, with --generate-with.")] = 8,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Requests at once, with --endpoint.")] = 16,
    as_json: JsonOption = False,
) -> None:
    """Rank a tokenizer's tokens by how often they occur in your text, or in a model's answers.

    Interrupted runs go on where they stopped when the same command is run again.
    """
    if generate_with and endpoint:
        raise InputError("--generate-with and --endpoint exclude each other")
    answering = generate_with or endpoint
    if bool(answering) != bool(prompts):
        raise InputError("--prompts goes with --generate-with or --endpoint, and they with it")
    if bool(inputs) == bool(prompts):
        raise InputError("give input files, or --prompts to have answered; rankings are added with `rank merge`")
    if not (spec := tokenizer or generate_with):
        raise InputError("--tokenizer is missing: the target's, whose token ids are to be ranked")
    check_output(output)
    with quiet_stdout(as_json):
        loaded: Tokenizer
        if answering:
            sampling = Sampling(temperature, max_tokens, seed)
            asked = Corpus(prompts or [], format, field, lines=True)
            loaded = load_tokenizer(spec)
            ranking, skipped = (
                rank_generated(asked, generate_with, loaded, output, sampling, batch)
                if generate_with
                else rank_endpoint(asked, endpoint, model, loaded, output, sampling, concurrency)
            )
        else:
            corpus = Corpus(inputs or [], format, field)
            loaded = load_tokenizer(spec)
            ranking, skipped = rank_corpus(corpus, loaded, output, count), []
    if as_json:
        print_json({"output": output, **summary(ranking), "skipped": len(skipped)})
        return
    records = sum(source.records for source in ranking.sources)
    stdout.print(f"{output}: {ranking.token_total:,} tokens of {records:,} records")
    if skipped:
        stdout.print(f"{len(skipped)} prompts without an answer, such as: {skipped[0]}")
    show_coverage(ranking)


def rank_corpus(corpus: Corpus, tokenizer: Tokenizer, output: Path, counted: Counted) -> TokenRanking:
    """Count a corpus with a progress bar, keeping a partial count beside ``output`` while at it."""
    partial = None
    if not corpus.has_stdin:
        partial = PartialCount(output, [corpus.identity(), fingerprint(tokenizer), counted])
    seen_bytes, seen_tokens = 0, -1  # no count yet

    def moved(counts: Counts) -> None:
        nonlocal seen_bytes, seen_tokens
        new_tokens = counts.tokens - seen_tokens if seen_tokens >= 0 else 0  # resumed ones are not this run's speed
        bar.advance(corpus.bytes_read - seen_bytes, new_tokens)
        seen_bytes, seen_tokens = corpus.bytes_read, counts.tokens

    try:
        with progress("counting", corpus.bytes_total or None, "tokens") as bar:
            counts = count_records(corpus, tokenizer, tokenizer_size(tokenizer), counted, partial, moved)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(RESUME if partial else "standard input cannot be resumed") from None
    if counts.tokens == 0 and counts.records:
        raise InputError(
            f"nothing to count in {counts.records} records: prompts without answers count only with --count all, "
            "or have them answered (--generate-with, --endpoint)"
        )
    source = Source(corpus.names, counted, counts.records, counts.tokens)
    ranking = TokenRanking.from_counts(counts, tokenizer, source)
    ranking.save(output)
    if partial:
        partial.remove()
    return ranking


def rank_generated(
    asked: Corpus, spec: str, tokenizer: Tokenizer, output: Path, sampling: Sampling, batch: int
) -> tuple[TokenRanking, list[str]]:
    """Have a model loaded here answer; returns the ranking of its output, and why prompts were skipped."""
    return rank_prompts(prompts_of(asked), asked.names, spec, tokenizer, output, sampling, batch)


def rank_prompts(
    prompts: list[Prompt],
    names: tuple[str, ...],
    spec: str,
    tokenizer: Tokenizer,
    output: Path,
    sampling: Sampling,
    batch: int,
) -> tuple[TokenRanking, list[str]]:
    """As :func:`rank_generated`, of prompts that were read from the files called ``names``."""
    from hothead.ranking.generate import LocalModel, generate_answers, generation_settings

    log = AnswerLog(answers_path(output), generation_settings(spec, tokenizer, sampling))
    keys = log.keys(prompts)
    if not all(log.is_done(key, prompt) for key, prompt in zip(keys, prompts, strict=True)):
        model = LocalModel(spec, tokenizer)
        todo = sum(len(prompt.turns) - len(log.answers(key)) for key, prompt in zip(keys, prompts, strict=True))
        try:
            with progress("answering", todo, "tokens") as bar:
                generate_answers(
                    prompts,
                    model,
                    log,
                    sampling,
                    batch,
                    lambda answers: bar.advance(len(answers), sum(len(a.target_ids or ()) for a in answers)),
                )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(RESUME) from None
    return rank_answers(log, keys, names, tokenizer, output, f"{Path(spec).name}, {sampling}")


def rank_endpoint(
    asked: Corpus,
    url: str,
    name: str,
    tokenizer: Tokenizer,
    output: Path,
    sampling: Sampling,
    concurrency: int,
) -> tuple[TokenRanking, list[str]]:
    """Have a server answer; returns the ranking of its output, and why prompts were skipped."""
    from hothead.ranking.endpoint import Endpoint, ask_endpoint, endpoint_settings, find_model

    prompts = prompts_of(asked)
    endpoint = Endpoint(url, name, concurrency)
    model = find_model(endpoint)
    log = AnswerLog(answers_path(output), endpoint_settings(model, sampling))
    keys = log.keys(prompts)
    todo = sum(len(prompt.turns) - len(log.answers(key)) for key, prompt in zip(keys, prompts, strict=True))
    try:
        with progress("asking", todo, "answers") as bar:
            ask_endpoint(prompts, endpoint, model, log, sampling, lambda answers: bar.advance(len(answers)))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(RESUME) from None
    return rank_answers(log, keys, asked.names, tokenizer, output, f"{model}, {sampling}")


def answers_path(output: Path) -> Path:
    """The answers stay beside the ranking: they are worth more than it."""
    return output.with_name(f"{output.stem}.answers.jsonl")


def rank_answers(
    log: AnswerLog, keys: list[str], names: tuple[str, ...], tokenizer: Tokenizer, output: Path, made_by: str
) -> tuple[TokenRanking, list[str]]:
    counts = count_records(log.records(keys, tokenizer), tokenizer, tokenizer_size(tokenizer))
    skipped = log.skipped(keys)
    if not counts.tokens:
        raise InputError(f"no answers to count; {skipped[0] if skipped else 'every answer was empty'}")
    source = Source(names, "output", counts.records, counts.tokens, made_by)
    ranking = TokenRanking.from_counts(counts, tokenizer, source)
    ranking.save(output)
    return ranking, skipped


@app.command()
def merge(
    rankings: Annotated[list[Path], typer.Argument(help="Rankings of one tokenizer.")],
    output: OutputOption,
    weights: Annotated[
        str, typer.Option(metavar="W,W,...", help="What to multiply the counts of each by, such as 1,0.5.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Add rankings up, as if their inputs had been counted together."""
    check_output(output)
    try:
        factors = [float(weight) for weight in weights.split(",")] if weights else None
    except ValueError as error:
        raise InputError(f"--weights are numbers with commas between them, found {weights!r}") from error
    merged = TokenRanking.merge(*(TokenRanking.load(path) for path in rankings), weights=factors)
    merged.save(output)
    if as_json:
        print_json({"output": output, **summary(merged)})
    else:
        stdout.print(f"{output}: {merged.token_total:,} tokens of {len(rankings)} rankings")


@app.command()
def show(
    ranking: Annotated[Path, typer.Argument(help="A ranking.")],
    plot: Annotated[Path | None, typer.Option(help="Also draw the coverage curve (.png, .svg, .pdf).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a ranking was counted from, and how much of it vocabularies of each size cover."""
    if plot and plot.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"{plot}: plots are written as .png, .svg or .pdf")
    loaded = TokenRanking.load(ranking)
    if plot:
        draw_coverage(loaded, plot)
    if as_json:
        print_json({"ranking": ranking, **summary(loaded), "sources": loaded.sources})
        return
    seen = int((loaded.counts > 0).sum())
    stdout.print(f"{loaded.token_total:,} tokens; {seen:,} of the tokenizer's {loaded.vocab_size:,} occur")
    for source in loaded.sources:
        names = ", ".join(source.names[:3]) + (f" and {len(source.names) - 3} more" * (len(source.names) > 3))
        stdout.print(
            f"  {names}: {source.tokens:,} tokens of {source.records:,} records ({source.counted})"
            + (f" x {source.weight:g}" if source.weight != 1 else "")
            + (f", by {source.made_by}" if source.made_by else "")
        )
    stdout.print(f"  tokenizer {loaded.tokenizer_fingerprint[:12]}")
    show_coverage(loaded)


def coverage_of_sizes(ranking: TokenRanking) -> dict[int, float]:
    """Coverage at the standard sizes and at the whole vocabulary."""
    sizes = [size for size in SIZES if size < ranking.vocab_size]
    return {size: ranking.coverage(size) for size in [*sizes, ranking.vocab_size]}


def summary(ranking: TokenRanking) -> dict[str, Any]:
    return {
        "tokens": ranking.token_total,
        "vocab_size": ranking.vocab_size,
        "vocab_seen": int((ranking.counts > 0).sum()),
        "tokenizer_fingerprint": ranking.tokenizer_fingerprint,
        "coverage": {str(size): share for size, share in coverage_of_sizes(ranking).items()},
    }


def show_coverage(ranking: TokenRanking) -> None:
    print_table(
        ("size", "covers"),
        ((f"{size:>7,}", f"{share:.2%}") for size, share in coverage_of_sizes(ranking).items()),
    )


def draw_coverage(ranking: TokenRanking, path: Path) -> None:
    """Draw the share of the counted tokens over the size of the vocabulary."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import PercentFormatter, ScalarFormatter

    from hothead.files import atomic_path

    curve = ranking.coverage_curve()
    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    axes.plot(range(1, len(curve) + 1), curve, color="tab:red")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(xlim=(1, len(curve)), ylim=(0, 1.02), xlabel="vocabulary size", ylabel="tokens covered")
    axes.grid(alpha=0.3)
    check_output(path)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150)
    plt.close(figure)
