"""The errors hothead raises on purpose: each says what was found, what was expected and what to do next."""


class HotheadError(Exception):
    """Base of every expected failure. The command line prints its message as one line and exits with status 2."""


class InputError(HotheadError):
    """An input file, option or text cannot be used as it is."""


class TokenizerMismatch(HotheadError):
    """An artefact was made with another tokenizer than the one it is used with."""


class DraftMismatch(HotheadError):
    """A draft checkpoint does not fit the target, or is not in a known layout."""


class ContextOverflow(HotheadError):
    """Prompt and answer do not fit the target's context."""
