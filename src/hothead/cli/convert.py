"""``hothead convert``: a token map or token counts from one tool's file format to another's."""

from pathlib import Path
from typing import Annotated

import typer

from hothead.cli.common import JsonOption, check_output, print_json, quiet_stdout, say, stdout
from hothead.cli.engine_options import option, with_options
from hothead.cli.export_options import SizeOptions, TargetOptions, map_of_ranking
from hothead.errors import InputError
from hothead.export.base import NAMES, TokenMap, format_named, read_map, write_map
from hothead.export.checkpoint import open_checkpoint
from hothead.export.drafts import Draft
from hothead.export.launch import Serving, save_commands, sglang_command
from hothead.ranking.ranking import TokenRanking

# How SGLang is asked to run each kind of draft.
ALGORITHMS = {"eagle": "EAGLE", "mtp": "NEXTN", "eagle3": "EAGLE3", "standalone": "STANDALONE"}


@with_options
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A map, counts, or a draft with a map in it.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write (for d2t: a folder).")],
    known: TargetOptions,
    sizes: SizeOptions,
    to: Annotated[str, option(f"{', '.join(NAMES)}.", metavar="FORMAT")] = "",
    from_format: Annotated[str, option("Of IN, where it could be several.", "--from", metavar="FORMAT")] = "",
    draft: Annotated[str, option("For SGLang's command: the draft it will serve.", metavar="MODEL")] = "",
    algorithm: Annotated[str, option("For SGLang's command: EAGLE, NEXTN, ...", metavar="NAME")] = "",
    tp: Annotated[int, option("For SGLang's command: tensor-parallel size.")] = 1,
    num_steps: Annotated[int, option("For SGLang's command: tokens drafted per round.")] = 3,
    force: Annotated[bool, option("Replace OUT if it is there.", "--force")] = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a token map or token counts between the files of SGLang, vLLM, speculators, EAGLE-3 and llama.cpp.

    Counts become a map with --size or its like.
    """
    if not to:
        raise InputError(f"--to is missing; one of {', '.join(NAMES)}")
    form = format_named(to)
    written = output / "d2t.npy" if to == "d2t" and output.suffix != ".npy" else output
    if written.exists() and not force:
        raise InputError(f"{written} is there already; name another file, or replace it with --force")
    serving = Serving(known.target or "TARGET", draft or "DRAFT", num_steps, tp, algorithm or algorithm_of(draft))
    with quiet_stdout(as_json):
        commands = {"sglang": sglang_command(serving, serving.algorithm, output)} if to == "sglang" else {}
        target, _ = known.known()
        loaded = read_map(source, target, from_format or None)
        content, given = loaded.content, sizes.given()
        if isinstance(content, TokenRanking):
            if given or "counts" not in form.holds:
                content = map_of_ranking(content, target, given)
        elif given:
            raise InputError(f"a map says its own size; --{next(iter(given)).replace('_', '-')} goes with counts")
        check_output(written)
        write_map(output, content, to)
        saved = save_commands(output, commands) if commands else None
    if isinstance(content, TokenMap):
        ids, total = len(content.vocab), content.vocab.target_vocab_size
        for note in content.notes:
            say(f"hothead: {source}: {note}")
    else:
        ids, total = int((content.counts > 0).sum()), content.vocab_size
    if as_json:
        document = {"input": source, "from": loaded.format, "output": output, "to": to, "ids": ids}
        print_json({**document, "target_vocab_size": total, "commands": commands, "saved_commands": saved})
        return
    stdout.print(f"{output}: {ids:,} of {total:,} ids, {loaded.format} -> {to}", soft_wrap=True)
    for command in commands.values():
        stdout.print(f"\n{command}\n\n(also in {saved})", soft_wrap=True)


def algorithm_of(draft: str) -> str:
    """What SGLang calls the kind of a draft that is here to be looked at; EAGLE for others."""
    if not draft or not Path(draft).is_dir():
        return "EAGLE"
    return ALGORITHMS.get(Draft(open_checkpoint(Path(draft))).kind, "EAGLE")
