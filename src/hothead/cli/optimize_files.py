"""What ``hothead optimize`` hands over: the vocabulary in every form an engine reads, and commands that serve it."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from hothead.cli.export_options import map_of_ranking
from hothead.cli.prune import commands_for, own_fingerprint
from hothead.errors import DraftMismatch, InputError
from hothead.export.base import Known, TokenMap, write_map
from hothead.export.checkpoint import open_checkpoint
from hothead.export.drafts import OWN_HEAD, Draft
from hothead.export.launch import Serving, save_commands, sglang_command
from hothead.export.prune import prune
from hothead.plan.schema import DO_NOT_SPECULATE, PRUNE, BatchPlan, Candidate
from hothead.ranking.ranking import TokenRanking
from hothead.vocab import DraftVocab

VOCAB = "vocab.safetensors"
TOKEN_MAP = "token_map.pt"
DRAFT = "draft"


@dataclass
class HandedOver:
    """Files by what they are, commands by engine, and what could not be written and why."""

    files: dict[str, Path] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def hand_over(
    plan: BatchPlan, folder: Path, target: str, draft: str, ranking: TokenRanking, ranking_path: Path
) -> HandedOver:
    """Write what the verdict calls for into ``folder``; with a full vocabulary, or none, commands only."""
    found = HandedOver()
    if plan.verdict == PRUNE:
        vocab = DraftVocab.from_ranking(ranking, size=plan.choice.size, target_vocab_size=plan.full.size)
        found.files["draft vocabulary"] = folder / VOCAB
        vocab.save(folder / VOCAB)
        _write_for_other_engines(found, vocab, plan.choice, folder, target, draft, ranking)
    found.commands = {**_own_commands(plan, folder, target, draft, ranking_path), **found.commands}
    found.files["launch commands"] = save_commands(folder, found.commands)
    return found


def _own_commands(plan: BatchPlan, folder: Path, target: str, draft: str, ranking_path: Path) -> dict[str, str]:
    """hothead's own engine, and vLLM with the plugin."""
    choice, serve, chat = plan.choice, ["hothead", "serve", target], ["hothead", "chat", "--target", target]
    if plan.verdict != DO_NOT_SPECULATE:
        drafting = ["--draft", draft, "--num-steps", str(choice.num_steps)]
        serve, chat = serve + drafting, chat + drafting
        if plan.verdict == PRUNE:
            slots = ["--slots", str(choice.slots), "--policy", choice.policy]
            serve += ["--ranking", str(ranking_path), "--size", str(choice.size), *slots]
            chat += ["--vocab", str(folder / VOCAB), *slots]
        else:
            serve.append("--full")
    return {"vLLM with hothead's plugin": shlex.join(serve), "hothead": shlex.join(chat)}


def _write_for_other_engines(
    found: HandedOver,
    vocab: DraftVocab,
    choice: Candidate,
    folder: Path,
    target: str,
    draft: str,
    ranking: TokenRanking,
) -> None:
    known = Known(vocab.target_vocab_size, vocab.tokenizer_fingerprint)
    write_map(folder / TOKEN_MAP, map_of_ranking(ranking, known, {"size": len(vocab)}), "sglang")
    found.files["token map"] = folder / TOKEN_MAP
    path = Path(draft).expanduser()
    if not path.exists():
        found.notes.append(f"{draft} is no local folder: hothead prune cuts its head once it is downloaded")
        return
    if choice.slots:
        found.notes.append(f"the {choice.slots} slots exist in hothead's engine and plugin; other engines get the rows")
    if path.is_file() and path.suffix != ".gguf":
        return
    try:
        kind = "gguf" if path.is_file() else Draft(open_checkpoint(path)).kind
        if kind == "eagle":  # the target's head: stock engines take a token map, where they take anything
            serving = Serving(target, draft, choice.num_steps)
            found.commands["SGLang"] = sglang_command(serving, "EAGLE", folder / TOKEN_MAP)
        elif kind in (*OWN_HEAD, "gguf"):
            output = folder / (f"{DRAFT}.gguf" if kind == "gguf" else DRAFT)
            fingerprint = own_fingerprint(path)
            pruned = prune(path, TokenMap(vocab), output, known=known, fingerprint=fingerprint, force=True)
            found.files["pruned draft"] = output
            found.commands |= commands_for(pruned, Serving(target, str(output), choice.num_steps))
    except (DraftMismatch, InputError) as error:
        found.notes.append(str(error))
