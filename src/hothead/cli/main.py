"""The ``hothead`` command: one lazy table of verbs; every failure becomes one line and an exit status.

Exit status: 0 done; 2 an expected failure (bad input, bad option); 130 interrupted; 1 a bug.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hothead.cli.common import one_line, say, say_error, verb_app
from hothead.errors import HotheadError


@dataclass(frozen=True)
class Verb:
    """One command. ``name`` may be two words: ``bench head`` is the verb ``head`` of the group ``bench``.

    ``attribute`` of ``module`` is a function with Typer annotations, or, for a verb with subcommands, an app
    made by ``common.verb_app``. The module is imported only when the verb is used, so ``--help`` stays fast.
    """

    name: str
    module: str
    attribute: str
    help: str  # one line, for the list of verbs


# Adding a verb is one file in this folder and one line here.
VERBS: tuple[Verb, ...] = (
    Verb("rank", "hothead.cli.rank", "app", "Rank a tokenizer's tokens by how often they occur in your text."),
    Verb("generate", "hothead.cli.generate", "generate", "Answer a prompt with a drafted, verified text."),
    Verb("chat", "hothead.cli.chat", "chat", "Talk to a model in the terminal."),
    Verb("compare", "hothead.cli.compare", "app", "Compare decoding methods: speed, and the same text."),
    Verb("curve", "hothead.cli.curve", "app", "Acceptance of every draft vocabulary size, from one pass."),
    Verb("plan", "hothead.cli.plan", "app", "Choose the vocabulary and k that decode fastest on a machine."),
    Verb("optimize", "hothead.cli.optimize", "optimize", "Find, prove and write the fastest draft vocabulary."),
    Verb("report", "hothead.cli.report", "report", "Everything that was measured, in one HTML page."),
    Verb("convert", "hothead.cli.convert", "convert", "Convert a token map between the tools' file formats."),
    Verb("prune", "hothead.cli.prune", "prune", "Cut a trained draft's head down to the hot rows."),
    Verb("inspect", "hothead.cli.inspect", "inspect", "Explain a map or a draft, and what is wrong with it."),
    Verb("serve", "hothead.cli.serve", "app", "Serve a model with vLLM and a hot draft head."),
    Verb("bench head", "hothead.cli.bench_head", "app", "Time LM heads of different vocabularies."),
    Verb("bench engine", "hothead.cli.bench_engine", "app", "Compare the engine with other engines."),
    Verb("bench server", "hothead.cli.bench_server", "app", "Compare servers with and without a hot head."),
)

# One line for each first word of a two-word verb.
GROUPS: dict[str, str] = {
    "bench": "Measure a head, the engine or a server.",
}

# Typer exports only a subclass of it.
UsageError: Any = typer.BadParameter.__base__

HELP: dict[str, Any] = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """The verbs of the table under ``prefix``; help reads the table, only a verb in use is imported."""

    prefix = ""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for verb in VERBS:
            if not verb.name.startswith(self.prefix):
                continue
            word, _, rest = verb.name.removeprefix(self.prefix).partition(" ")
            if word not in self.commands:
                self.add_command(TyperCommand(word, help=GROUPS[word] if rest else verb.help))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = self.prefix + args[0]
        if any(verb.name.startswith(f"{name} ") for verb in VERBS):
            group = type("LazyGroup", (LazyGroup,), {"prefix": f"{name} "})
            self.add_command(group(name=args[0], help=GROUPS[args[0]], rich_markup_mode=None))
        for verb in VERBS:
            if verb.name == name:
                self.add_command(load_verb(verb), args[0])
        return super().resolve_command(ctx, args)


def load_verb(verb: Verb) -> Any:
    """Import ``verb`` and return its command object."""
    target = getattr(importlib.import_module(verb.module), verb.attribute)
    if isinstance(target, typer.Typer):
        app = target
    else:
        app = verb_app()
        app.command()(target)
    command = typer.main.get_command(app)
    command.name = verb.name.rpartition(" ")[2]
    return command


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"hothead {version('hothead')}")
        raise typer.Exit


app = typer.Typer(cls=LazyGroup, name="hothead", rich_markup_mode=None)


@app.callback()
def hothead(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere on the line.")] = False,
) -> None:
    """A small, hot draft vocabulary for speculative decoding: the same text, faster."""


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point: run one command line and exit with its status."""
    sys.exit(run_command(list(sys.argv[1:] if arguments is None else arguments)))


def run_command(arguments: list[str]) -> int:
    """Run one command line; every failure is one line on standard error. Returns the exit status."""
    command = typer.main.get_command(app)
    if "_HOTHEAD_COMPLETE" in os.environ:  # the shell asks for completions
        command.main(arguments, prog_name="hothead")
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in options
    arguments = [word for word in options if word != "--debug"] + arguments[len(options) :]
    try:
        status = execute(command, arguments)
        sys.stdout.flush()
        return status
    except (Exception, KeyboardInterrupt) as error:
        if debug and not isinstance(error, BrokenPipeError):
            raise
        return report(error)


def report(error: BaseException) -> int:
    """Say in one line what went wrong. Returns the exit status."""
    match error:
        case BrokenPipeError():
            drop_stdout()  # the reader (`head`, a closed pager) has enough
            return 141
        case KeyboardInterrupt() | typer.Abort():
            say(f"hothead: interrupted{f'; {error}' if str(error) else ''}")
            return 130
        case HotheadError():
            say_error(error)
            return 2
        case OSError():  # such as a full disk behind standard output
            drop_stdout()
            say_error(error)
            return 2
    found = f"{type(error).__name__}: {one_line(error)}"
    say(f"hothead: unexpected error: {found} (a bug; add --debug to see the traceback)")
    return 1


def execute(command: Any, arguments: list[str]) -> int:
    """Parse and invoke, without Typer's own error pages. Returns the exit status."""
    try:
        with command.make_context("hothead", arguments, **HELP) as ctx:
            command.invoke(ctx)
        return 0
    except typer.Exit as stop:
        return stop.exit_code
    except UsageError as error:
        where = getattr(error, "ctx", None)
        hint = f" (see {where.command_path} --help)" if where is not None else ""
        say_error(error.format_message() + hint)
        return 2


def drop_stdout() -> None:
    """Let what standard output still holds vanish: Python would fail on it again when it exits."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
