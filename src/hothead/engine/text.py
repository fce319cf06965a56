"""Text from ids, piece by piece, up to a stop string."""

from tokenizers.decoders import DecodeStream

from hothead.tokenizer import Tokenizer


class TextStream:
    """Decodes a growing answer; holds back half characters and what may be the start of a stop string.

    Args:
        tokenizer: of the target.
        stop: strings that end the answer.

    Attributes:
        text: everything decoded and released so far.
        stopped: whether a stop string came; ``text`` ends before it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._held = ""
        self.text = ""
        self.stopped = False

    def push(self, target_id: int) -> str:
        """Take in one id; return the text that it releases."""
        return self._release(self._held + (self._stream.step(self._tokenizer, target_id) or ""))

    def finish(self) -> str:
        """No more ids: release what was held back."""
        released, self._held = self._held, ""
        self.text += released
        return released

    def _release(self, pending: str) -> str:
        found = [at for at in (pending.find(text) for text in self._stop) if at >= 0]
        if found:
            self.stopped = True
            released, self._held = pending[: min(found)], ""
        else:
            held = max((_overlap(pending, text) for text in self._stop), default=0)
            released, self._held = pending[: len(pending) - held], pending[len(pending) - held :]
        self.text += released
        return released


def _overlap(text: str, stop: str) -> int:
    """The longest end of ``text`` that is a proper start of ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
