"""``hothead serve``: vLLM's OpenAI server with a hot draft head; everything hothead does not know goes to vLLM."""

from pathlib import Path
from typing import Annotated

import typer

from hothead.cli.common import print_json, quiet_stdout, say, verb_app
from hothead.cli.engine_options import option
from hothead.errors import InputError
from hothead.vllm_plugin.launch import (
    RANKING,
    ServerConfig,
    draft_method,
    find_ranking,
    replace_process,
    require_vllm,
    servable_model,
)

app = verb_app()
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
DEFAULT_SIZE = 8192


@app.command(context_settings=PASS_ON)
def serve(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(help="Folder, .gguf file, Hub name or package:NAME.", metavar="MODEL")],
    draft: Annotated[str | None, option("Draft folder or Hub name; none: plain.", metavar="MODEL")] = None,
    method: Annotated[str | None, option("vLLM's name of the draft's kind; none: look.", metavar="NAME")] = None,
    num_steps: Annotated[int, option("Tokens drafted per round.")] = 4,
    ranking: Annotated[Path | None, option("Token ranking; none: the draft folder's.", metavar="FILE")] = None,
    corpus: Annotated[
        list[Path] | None, option("Make the ranking from this, if it is not there.", metavar="FILE")
    ] = None,
    size: Annotated[int | None, option(f"Rows to keep; none: {DEFAULT_SIZE}.")] = None,
    ratio: Annotated[float | None, option("Share of the rows to keep.")] = None,
    pruning_ratio: Annotated[float | None, option("Share of the rows to drop.")] = None,
    coverage: Annotated[float | None, option("Share of the ranked tokens to cover.")] = None,
    slots: Annotated[int, option("Dynamic rows beside the static ones; 0: static.")] = 512,
    policy: Annotated[str, option("What fills the slots: on_miss, prompt, both, none.")] = "on_miss+prompt",
    record_counts: Annotated[Path | None, option("Keep a ranking of what is emitted.", metavar="FILE")] = None,
    full: Annotated[bool, option("Leave the draft's head whole.", "--full")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the command as JSON; start nothing.")] = False,
) -> None:
    """Serve a model with vLLM and a hot draft head; other options are vLLM's own (--port, --dtype, ...)."""
    require_vllm()
    with quiet_stdout(as_json):
        hothead = None
        if draft is None and (ranking or corpus or record_counts):
            raise InputError("a draft vocabulary needs a draft: give --draft")
        served = None
        if draft is not None:
            served = servable_model(draft)
            method = method or draft_method(served)
        if draft is not None and not full:
            sizes = {"size": size, "ratio": ratio, "pruning_ratio": pruning_ratio, "coverage": coverage}
            given = {name: value for name, value in sizes.items() if value is not None} or {"size": DEFAULT_SIZE}
            path = _ranking(ranking, draft, corpus or [], target)
            hothead = {"ranking": str(path.resolve()), **given, "dynamic_slots": slots, "policy": policy}
            if record_counts is not None:
                hothead["record_counts"] = str(record_counts.resolve())
        config = ServerConfig(servable_model(target), served, method or "eagle", num_steps, hothead, tuple(ctx.args))
        command = config.command()
    if as_json:
        print_json({"command": command, "hothead": hothead})
        return
    vocabulary = "" if hothead is None else f" with the vocabulary of {hothead['ranking']}"
    say(f"hothead: starting vLLM{vocabulary}")
    replace_process(command)


def _ranking(given: Path | None, draft: str, corpus: list[Path], target: str) -> Path:
    """Find the ranking, or count one."""
    path = given or find_ranking(draft)
    if path is not None and path.is_file():
        return path
    if not corpus:
        missing = f"{given}: no such file" if given else f"{draft}: no ranking in this folder"
        raise InputError(
            f"{missing}; give --ranking FILE, or --corpus FILE to count one, or --full to leave the head whole"
        )
    from hothead.cli.rank import rank_corpus
    from hothead.ranking.corpus import Corpus
    from hothead.tokenizer import load_tokenizer

    path = path or Path(RANKING)
    ranking = rank_corpus(Corpus(corpus), load_tokenizer(target), path, "assistant")
    say(f"hothead: counted {ranking.token_total:,} tokens into {path}")
    return path
