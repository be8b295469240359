"""The words of texts and queries: one rule for every store."""

import pytest

from holdfast.events.words import MAX_QUERY_WORDS, MAX_WORD_CHARACTERS, excerpt, query_words, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", set()),
        ("Hello, HELLO world!", {"hello", "world"}),
        ("snake_case and 42.5", {"snake", "case", "and", "42", "5"}),
        ("Crème brûlée", {"creme", "brulee"}),
        ("Straße ﬁn", {"strasse", "fin"}),
        ("東京都", {"東京", "京都", "都"}),
        ("x東京y", {"x", "東京", "京", "y"}),
        ("안녕 하세요", {"안녕", "하세요"}),
        ("हिन्दी", {"हिन्दी"}),
        ("🙂 \0 \ud800 ---", set()),
        ("y" * 100, {"y" * MAX_WORD_CHARACTERS}),
    ],
)
def test_words_are_letters_and_digits_of_any_script_without_case_and_accents(text: str, words: set[str]) -> None:
    assert words_of(text) == words


def test_a_text_has_the_same_words_whether_or_not_something_in_it_is_beyond_ascii() -> None:
    text = "The lamp_post, 42 steps: Don't!"
    assert words_of(text) == words_of(f"{text} …")


@pytest.mark.parametrize("text", ["The lamp", "Crème", "東京都", "東", "ภาษาไทย", "हिन्दी", "a1b2", "y" * 100])
def test_a_query_of_a_text_is_a_beginning_of_words_of_that_text(text: str) -> None:
    words = words_of(text)
    assert query_words(text)
    assert all(any(word.startswith(wanted) for word in words) for wanted in query_words(text))


def test_a_query_is_bounded() -> None:
    assert len(query_words(" ".join(f"w{number}" for number in range(10_000)))) == MAX_QUERY_WORDS
    assert query_words("x" * 1_000_000) == ["x" * MAX_WORD_CHARACTERS]
    assert query_words("one one ONE") == ["one"]


@pytest.mark.parametrize(
    ("text", "query", "shown"),
    [
        ("short and whole", "whole", "short and whole"),
        ("a " * 100 + "lamp" + " b" * 100, "lam", "… a a a a lamp b b b b b b …"),
        ("a " * 100 + "Lämp" + " b" * 100, "lamp", "… a a a a Lämp b b b b b b …"),
        ("one\n\n two", "two", "one two"),
        ("", "x", ""),
    ],
)
def test_an_excerpt_shows_the_first_word_that_was_looked_for(text: str, query: str, shown: str) -> None:
    assert excerpt(text, query_words(query), 24) == shown
