"""Secrets are shown neither whole nor in parts, wherever a text is cut and in whatever pieces it comes."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commands.redaction import MOST, REDACTED, RedactedStream, Redaction
from tests.security.test_bombs import operations

SECRET = "sesame-open-4711"

AWKWARD = ("abababab", "abababababb", "babababbaab", "aaaaaaaaa")
"""Parts of themselves and of each other."""


def streamed(redaction: Redaction, pieces: list[str]) -> list[str]:
    stream = RedactedStream(redaction)
    return [*(stream.next(piece) for piece in pieces), stream.end()]


@pytest.mark.parametrize("at", range(1, len(SECRET)))
def test_a_secret_in_two_pieces_is_held_back_until_it_is_whole(at: int) -> None:
    shown = streamed(Redaction([SECRET]), [f"before {SECRET[:at]}", f"{SECRET[at:]} after"])
    assert shown == ["before ", f"{REDACTED} after", ""]


def test_text_that_can_not_become_a_secret_is_shown_at_once() -> None:
    assert streamed(Redaction([SECRET]), ["sesam", "street\n", "ses"]) == ["", "sesamstreet\n", "", "ses"]
    assert streamed(Redaction(), ["a", "b"]) == ["a", "b", ""]


def test_a_whole_secret_is_not_cut_though_its_end_may_be_the_beginning_of_another() -> None:
    assert streamed(Redaction(["abcabcabc"]), ["abcabcabc", "\n"]) == [REDACTED, "\n", ""]


@given(st.text("ab", max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_in_pieces_it_is_shown_as_it_is_in_one(text: str, cuts: list[int]) -> None:
    redaction = Redaction(AWKWARD)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert "".join(streamed(redaction, pieces)) == redaction.text(text)


@given(st.text("ab", max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_two_parts_of_a_text_are_shown_as_the_whole_is(text: str, start: int, end: int) -> None:
    redaction = Redaction(AWKWARD)
    start, end = sorted((min(start, len(text)), min(end, len(text))))
    shown = [redaction.part(text, *part) for part in ((0, start), (start, end), (end, len(text)))]
    assert "".join(shown) == redaction.text(text)


@pytest.mark.parametrize("at", range(len(SECRET) + 1))
def test_of_a_stream_without_its_beginning_the_rest_of_a_secret_goes(at: int) -> None:
    stream = RedactedStream(Redaction([SECRET]), is_cut=True)
    shown = "".join([*(stream.next(letter) for letter in f"{SECRET[at:]}: {'x' * 40}"), stream.end()])
    assert shown.endswith("x" * 20)
    assert set(shown) <= set(": x")


def test_the_repr_of_a_redaction_contains_no_secret() -> None:
    stream = RedactedStream(Redaction([SECRET]))
    stream.next(SECRET[:-1])
    assert (repr(Redaction([SECRET])), repr(stream)) == ("Redaction()", "RedactedStream()")


@given(
    st.lists(st.text("ab", min_size=8, max_size=12), min_size=1, max_size=8),
    st.lists(st.sampled_from(["a", "b", "ab", "aabb", "abababab", "x"]), max_size=40).map("".join),
)
def test_secrets_are_found_as_a_pattern_of_them_would_find_them(secrets: list[str], text: str) -> None:
    longest_first = sorted(secrets, key=len, reverse=True)
    assert Redaction(secrets).text(text) == re.sub("|".join(longest_first), REDACTED, text)


def test_more_secrets_hardly_make_looking_for_them_longer() -> None:
    text = "an ordinary line of output, sk-proj-and-something\n" * 40
    few, many = (Redaction(f"sk-proj-{number:016x}" for number in range(size)) for size in (5, 500))
    assert operations(lambda: many.text(text)) < 2 * operations(lambda: few.text(text))


def test_more_secrets_make_learning_another_no_longer() -> None:
    few, many = (Redaction(f"sk-proj-{number:016x}" for number in range(size)) for size in (5, 500))
    assert operations(lambda: many.learn(["sk-proj-another"])) < 2 * operations(lambda: few.learn(["sk-proj-another"]))


def test_the_oldest_of_very_many_are_forgotten_whole() -> None:
    redaction = Redaction(f"sk-proj-{number:016x}" for number in range(MOST + 5))
    assert redaction.text(f"sk-proj-{4:016x} sk-proj-{5:016x}") == f"sk-proj-{4:016x} {REDACTED}"
