"""Streaming text equals decoding at once, and stop strings are found across pieces."""

from hypothesis import given
from hypothesis import strategies as st

from hothead.engine.text import TextStream
from hothead.models.toy import toy_tokenizer

TOKENIZER = toy_tokenizer()


def stream(text: str, stop: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    made = TextStream(TOKENIZER, stop)
    pieces = []
    for target_id in TOKENIZER(text)["input_ids"]:
        pieces.append(made.push(target_id))
        if made.stopped:
            break
    pieces.append(made.finish())
    assert "".join(pieces) == made.text
    return made.text, pieces


def without_special_tokens(text: str) -> bool:
    return not any(token in text for token in TOKENIZER.all_special_tokens)


@given(st.text().filter(without_special_tokens))
def test_bytes_become_the_text(text: str) -> None:
    assert stream(text)[0] == text


@given(st.text(alphabet="ab\n", max_size=30), st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_first_stop_string_to_complete(text: str, stop: list[str]) -> None:
    expected = text
    for end in range(len(text) + 1):
        found = [text[:end].find(s) for s in stop if s in text[:end]]
        if found:
            expected = text[: min(found)]
            break
    assert stream(text, tuple(stop))[0] == expected


def test_nothing_of_a_stop_string_is_shown_early() -> None:
    assert stream("one END two", ("END",))[1][:6] == ["o", "n", "e", " ", "", ""]
    assert stream("one EN", ("END",))[0] == "one EN"


def test_half_characters_are_held_back() -> None:
    assert stream("é")[1] == ["", "é", ""]
