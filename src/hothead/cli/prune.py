"""``hothead prune``: cut a trained draft's head down to the rows a vocabulary keeps."""

from pathlib import Path
from typing import Annotated

import typer

from hothead.cli.common import JsonOption, print_json, progress, quiet_stdout, say, short_number, stdout
from hothead.cli.engine_options import option, with_options
from hothead.cli.export_options import SizeOptions, TargetOptions, remark_unseen
from hothead.errors import InputError
from hothead.export.base import Known, TokenMap, read_map
from hothead.export.checkpoint import open_checkpoint
from hothead.export.drafts import Draft
from hothead.export.gguf import target_vocab_size
from hothead.export.gguf_file import read_gguf
from hothead.export.launch import Serving, llama_command, save_commands, sglang_command, vllm_command
from hothead.export.prune import Pruned, check_free
from hothead.export.prune import prune as prune_draft
from hothead.tokenizer import fingerprint, load_tokenizer


@with_options
def prune(
    draft: Annotated[Path, typer.Argument(metavar="DRAFT", help="A checkpoint folder or a draft .gguf.")],
    known: TargetOptions,
    sizes: SizeOptions,
    output: Annotated[Path, option("The folder (or .gguf) to write.", "--output", "-o", metavar="OUT")] = Path(),
    ranking: Annotated[Path | None, option("Token ranking, or counts of any format.", metavar="FILE")] = None,
    vocab: Annotated[Path | None, option("Map of any format, in place of --ranking.", metavar="FILE")] = None,
    tp: Annotated[int, option("For the command: tensor-parallel size.")] = 1,
    num_steps: Annotated[int, option("For the command: tokens drafted per round.")] = 3,
    force: Annotated[bool, option("Replace OUT if it is there.", "--force")] = False,
    as_json: JsonOption = False,
) -> None:
    """Prune a trained draft: fewer rows in its head, for engines to load as they are.

    Takes EAGLE-3 and DFlash drafts (checkpoints, speculators' too, and llama.cpp's GGUF), also ones that were reduced
    before. For other drafts, says what to do instead.
    """
    if output == Path():
        raise InputError("--output is missing: the folder (or .gguf) to write")
    if (ranking is None) == (vocab is None):
        raise InputError("give the rows to keep: --ranking FILE with --size or its like, or --vocab FILE")
    check_free(draft, output, force)
    if not draft.exists():
        raise InputError(f"{draft}: no such file or folder")
    with quiet_stdout(as_json):
        target, _ = known.known()
        chosen = ranking if ranking is not None else vocab
        assert chosen is not None
        content = read_map(chosen, size_of_draft(draft, target)).content
        if isinstance(content, TokenMap) != (vocab is not None):
            kind, other = ("a map", "--vocab") if isinstance(content, TokenMap) else ("counts", "--ranking")
            raise InputError(f"{chosen} holds {kind}; give it with {other}")
        total = sum(file.stat().st_size for file in ([draft] if draft.is_file() else draft.iterdir()))
        with progress("pruning", total, "bytes") as bar:
            pruned = prune_draft(
                draft,
                content,
                output,
                sizes=sizes.given(),
                known=target,
                fingerprint=own_fingerprint(draft),
                force=force,
                moved=bar.advance,
            )
        commands = commands_for(pruned, Serving(known.target or "TARGET", str(output), num_steps, tp))
        saved = save_commands(output, commands)
    remark_unseen(pruned.vocab)
    if pruned.left_out:
        say(f"hothead: the draft has no row for {pruned.left_out} of the map's ids; they were left out")
    for note in pruned.notes:
        say(f"hothead: {draft}: {note}")
    if as_json:
        report = {"rows": len(pruned.vocab), "target_vocab_size": pruned.vocab.target_vocab_size}
        names = ("output", "kind", "rows_before", "left_out", "bytes_before", "bytes_after", "notes")
        facts = {name: getattr(pruned, name) for name in names}
        print_json({**facts, **report, "unseen": pruned.vocab.unseen, "commands": commands, "saved_commands": saved})
        return
    sizes_said = f"{short_number(pruned.bytes_before)}B -> {short_number(pruned.bytes_after)}B"
    stdout.print(f"{output}: {pruned.rows_before:,} -> {len(pruned.vocab):,} rows, {sizes_said}", soft_wrap=True)
    for engine, command in commands.items():
        stdout.print(f"\n{engine}:\n{command}", markup=False, soft_wrap=True)
    stdout.print(f"\n(also in {saved})", soft_wrap=True)


def size_of_draft(draft: Path, target: Known) -> Known:
    """What is known of the target, with the size that the draft says: a list of ids says none itself."""
    said = target.target_vocab_size
    if said is None:
        said = target_vocab_size(read_gguf(draft)) if draft.is_file() else Draft(open_checkpoint(draft)).vocab_size
    return Known(said, target.tokenizer_fingerprint)


def own_fingerprint(draft: Path) -> str:
    """Of the tokenizer in the draft's folder; "" if there is none."""
    if draft.is_dir() and (draft / "tokenizer.json").is_file():
        return fingerprint(load_tokenizer(draft))
    return ""


def commands_for(pruned: Pruned, serving: Serving) -> dict[str, str]:
    """The command of each stock engine that loads what was written."""
    if pruned.kind.startswith("gguf"):
        return {"llama.cpp": llama_command(pruned.output, serving, pruned.kind.split()[-1])}
    commands = {"vllm": vllm_command(pruned.output, serving, pruned.kind)}
    if pruned.kind == "eagle3":
        commands["sglang"] = sglang_command(serving, "EAGLE3")
    return commands
