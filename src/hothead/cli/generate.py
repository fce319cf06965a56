"""``hothead generate``: answer a prompt, or a file of them, and say what it cost."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hothead.bench.prompts import Prompt, read_prompts
from hothead.cli.common import JsonOption, check_outputs, print_json, print_table, quiet_stdout, say, stderr
from hothead.cli.engine_options import EngineOptions, SamplingOptions, option, with_options
from hothead.cli.profile import ProfileOption, span_costs, write_trace
from hothead.engine.trace import Trace
from hothead.errors import InputError
from hothead.report.compare import round_table
from hothead.report.profile import cost_remark, profile_document

if TYPE_CHECKING:
    from hothead.engine.generate import Generation, Stats


@with_options
def generate(
    engine: EngineOptions,
    sampling: SamplingOptions,
    prompt: Annotated[str | None, typer.Argument(help="Text to answer; - reads standard input.")] = None,
    prompts: Annotated[Path | None, option("Prompts to answer, in place of one.", metavar="FILE")] = None,
    raw: Annotated[bool, option("Continue the text; no chat template.", "--raw")] = False,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a prompt: the target's own text, drafted with a small vocabulary."""
    asked = _asked(prompt, prompts)
    check_outputs(profile)
    params = sampling.params()
    documents = []
    all_stats: list[Stats] = []
    with quiet_stdout(as_json):
        loaded = engine.load()
        from hothead.bench.compare import prompt_ids

        decoder = loaded.decoder()
        trace = None if profile is None else Trace()
        if trace is not None:
            decoder.profile = trace.track(loaded.method)
        for conversation in asked:
            answers: list[str] = []
            for turn in conversation.turns:
                stream = decoder.stream(prompt_ids(loaded.target, conversation, answers, raw), params)
                for chunk in stream:
                    if not as_json:
                        print(chunk.text, end="", flush=True)
                answers.append(stream.result.text)
                all_stats.append(stream.result.stats)
                documents.append({"prompt_id": conversation.id, "prompt": turn, **answer_document(stream.result)})
                if not as_json:
                    print(flush=True)
                    print(stats_line(stream.result), file=sys.stderr, flush=True)
        profiled = {}
        if profile is not None and trace is not None:
            write_trace(trace, profile)
            profiled = {"profile": _profile(trace, all_stats, engine.device, as_json)}
    if as_json:
        print_json({"answers": documents, **profiled})


def _profile(trace: Trace, all_stats: "list[Stats]", device: str, as_json: bool) -> dict[str, Any] | None:
    """Where the time of a round went, for people on standard error, and as a document; None without a round."""
    rounds = sum(stats.rounds for stats in all_stats)
    if not rounds:
        return None
    method = trace.tracks[0].name
    ms = {name: 1000 * sum(s.sections_s[name] for s in all_stats) / rounds for name in all_stats[0].sections_s}
    costs = span_costs(trace, device)
    if not as_json:
        table = round_table({method: ms}, f"{rounds} rounds")
        print_table(table.columns, table.rows, table.title, stderr)
        say(cost_remark(costs) or "")
    return profile_document({method: ms}, costs)


def _asked(prompt: str | None, prompts: Path | None) -> tuple[Prompt, ...]:
    if (prompt is None) == (prompts is None):
        raise InputError("give a prompt (- for standard input) or --prompts FILE; one of them")
    if prompts is not None:
        return read_prompts(prompts)
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text or not text.strip():
        raise InputError("the prompt is empty; give some text")
    return (Prompt("1", "", (text,)),)


def answer_document(answer: "Generation") -> dict[str, Any]:
    """An answer as ``--json`` has it."""
    return {
        "text": answer.text,
        "target_ids": answer.target_ids,
        "finish_reason": answer.finish_reason,
        "stats": stats_document(answer.stats),
    }


def stats_document(stats: "Stats") -> dict[str, Any]:
    """All counts and times, with what follows from them; null for what does not exist (no round was run)."""
    derived = {
        "acceptance_length": stats.acceptance_length if stats.rounds else None,
        "tokens_per_s": stats.tokens_per_s if stats.rounds else None,
    }
    return {**dataclasses.asdict(stats), **derived}


def stats_line(answer: "Generation") -> str:
    """One line for people."""
    stats = answer.stats
    parts = [f"{stats.new_tokens} tokens ({answer.finish_reason})", f"prefill {1000 * stats.prefill_s:.0f} ms"]
    if stats.rounds:
        parts.append(f"{stats.tokens_per_s:.1f} tokens/s")
        if stats.sections_s.get("draft_head"):
            parts.append(f"acceptance length {stats.acceptance_length:.2f}")
            parts.append(f"{stats.misses} misses")
    if stats.rows_copied:
        parts.append(f"{stats.rows_copied} rows copied")
    return f"[{', '.join(parts)}]"
