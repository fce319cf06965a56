"""``hothead inspect``: what a map, counts or a draft is, what it holds, and what is wrong with it."""

from pathlib import Path
from typing import Annotated

import typer

from hothead.cli.common import JsonOption, print_json, quiet_stdout, stdout
from hothead.cli.engine_options import option, with_options
from hothead.cli.export_options import TargetOptions
from hothead.errors import InputError
from hothead.export.inspect import Inspection, inspect_path


@with_options
def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A map or counts file, a draft folder, or a GGUF.")],
    known: TargetOptions,
    from_format: Annotated[str, option("Where the file could be several.", "--from", metavar="FORMAT")] = "",
    as_json: JsonOption = False,
) -> None:
    """Explain a token map, token counts or a draft of any known format, and what is wrong with it.

    With --target it also says what the vocabulary cannot spell. Status 2 if something in it is an error.
    """
    with quiet_stdout(as_json):
        target, tokenizer = known.known()
        found = inspect_path(path, target, tokenizer, from_format or None)
    if as_json:
        print_json(found)
    else:
        show(found)
    if found.has_errors:
        count = sum(problem.severity == "error" for problem in found.problems)
        raise InputError(f"{path}: {count} error{'s' if count > 1 else ''} found, see above")


def show(found: Inspection) -> None:
    lines: list[tuple[str, object]] = [("format", f"{found.format}: {found.about}"), ("ids", found.convention)]
    if found.rows is not None:
        share = f" ({found.rows / found.target_vocab_size:.1%})" if found.target_vocab_size else ""
        of = f" of {found.target_vocab_size:,} target ids" if found.target_vocab_size else ""
        lines.append(("rows" if found.tokens_counted is None else "seen", f"{found.rows:,}{of}{share}"))
    elif found.target_vocab_size:
        lines.append(("target ids", f"{found.target_vocab_size:,}"))
    if found.lowest_id is not None:
        lines.append(("range", f"{found.lowest_id} to {found.highest_id}"))
    if found.tokens_counted is not None:
        lines.append(("counted", f"{found.tokens_counted:,} tokens"))
    lines += [("tokenizer", found.tokenizer_fingerprint[:12]), ("made from", found.source)]
    if found.coverage is not None:
        coverage = found.coverage
        kept = coverage.byte_tokens - coverage.byte_tokens_missing
        lines.append(("byte tokens", f"{kept} of {coverage.byte_tokens}"))
        lines.append(("cannot spell", ", ".join(f"{n} ({coverage.letters[n]:.0%})" for n in coverage.unspelt) or "-"))
    lines += [("tensor", tensor) for tensor in found.tensors]
    for name, value in lines:
        if value:
            stdout.print(f"{name:<13} {value}", markup=False, soft_wrap=True)
    if found.advice:
        stdout.print(f"{'smaller:':<13} {found.advice}", markup=False, soft_wrap=True)
    for problem in found.problems:
        stdout.print(f"{problem.severity + ':':<13} {problem.text}", markup=False, soft_wrap=True)
