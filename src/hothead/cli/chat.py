"""``hothead chat``: a conversation in the terminal, or over a pipe with one line a turn."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from hothead.bench.prompts import Prompt
from hothead.cli.common import JsonOption, print_json, quiet_stdout
from hothead.cli.engine_options import EngineOptions, SamplingOptions, option, with_options
from hothead.cli.generate import answer_document, stats_line
from hothead.errors import ContextOverflow, InputError

if TYPE_CHECKING:
    from hothead.engine.generate import SpeculativeDecoder
    from hothead.engine.sampling import SamplingParams

HINT = "Ctrl-C stops an answer; /reset starts over; /quit leaves."
TURNS = 4  # that a talk may well have


@with_options
def chat(
    engine: EngineOptions,
    sampling: SamplingOptions,
    system: Annotated[str | None, option("System prompt.", metavar="TEXT")] = None,
    as_json: JsonOption = False,
) -> None:
    """Talk to the target. Lines come from the terminal or a pipe.

    Ctrl-C stops an answer; /reset starts over; /quit or the end of the input leaves. With --json the talk itself goes
    to standard error.
    """
    params = sampling.params()
    with quiet_stdout(as_json):
        loaded = engine.load(TURNS * params.max_new_tokens)
        from hothead.tokenizer import has_chat_template

        if not has_chat_template(loaded.target.tokenizer):
            raise InputError("this model has no chat template to talk by; hothead generate --raw continues text")
        conversation = Chat(loaded.decoder(), params, system)
        conversation.run()
    if as_json:
        print_json({"engine": loaded.settings, "answers": conversation.documents})


class Chat:
    """A conversation: what was said so far, and a decoder whose dynamic vocabulary it keeps feeding.

    Attributes:
        documents: every finished answer as ``--json`` has it, those before a reset included.
    """

    def __init__(self, decoder: "SpeculativeDecoder", params: "SamplingParams", system: str | None = None) -> None:
        self._decoder, self._params = decoder, params
        self._history = () if system is None else ({"role": "system", "content": system},)
        self._turns: list[str] = []
        self._answers: list[str] = []
        self.documents: list[dict[str, Any]] = []

    def run(self) -> None:
        """Answer line after line until there are no more, or ``/quit``."""
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            print(HINT, file=sys.stderr)
        for line in _lines(is_terminal):
            if line == "/quit":
                return
            if line == "/reset":
                self._turns, self._answers = [], []
                print("[new conversation]", file=sys.stderr, flush=True)
            elif line.startswith("/"):
                print(f"[no command {line.split()[0]}. {HINT}]", file=sys.stderr, flush=True)
            elif line:
                self._answer(line)

    def _answer(self, line: str) -> None:
        from hothead.bench.compare import prompt_ids

        prompt = Prompt("chat", "chat", (*self._turns, line), self._history)
        try:
            stream = self._decoder.stream(prompt_ids(self._decoder.target, prompt, self._answers), self._params)
        except ContextOverflow as error:
            print(f"[{error}; /reset starts over]", file=sys.stderr, flush=True)
            return
        try:
            for chunk in stream:
                print(chunk.text, end="", flush=True)
            remark = stats_line(stream.result)
            self.documents.append({"prompt": line, **answer_document(stream.result)})
        except KeyboardInterrupt:
            remark = "[stopped]"
        print(flush=True)
        print(remark, file=sys.stderr, flush=True)
        # What was said before an interruption was said.
        self._turns.append(line)
        self._answers.append(stream.result.text)


def _lines(is_terminal: bool) -> Iterator[str]:
    if not is_terminal:
        yield from (line.strip() for line in sys.stdin)
        return
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            print(file=sys.stderr)
            return
