"""Text that PostgreSQL can't hold is escaped and restored, and no other text is mistaken for an escape."""

import pytest

from holdfast.store.postgres.text import escaped, from_column, to_parameter, unescaped

ODD = ["", "plain", "\0", "a\0b", "\x1a", "\x1a0", "\x1a1", "\x1a\0\x1a1", "\0\x1a10", "é𝄞\u2028"]


@pytest.mark.parametrize("text", ODD)
def test_any_text_is_restored_unchanged(text: str) -> None:
    assert "\0" not in escaped(text)
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize("more", [[], [None], ["plain"]])
def test_any_column_of_texts_is_restored_unchanged(more: list[str | None]) -> None:
    column = [*more, *ODD]
    assert all("\0" not in (text or "") for text in to_parameter(column))
    assert from_column(to_parameter(column)) == column


def test_no_two_texts_have_the_same_escaped_form() -> None:
    assert len(set(map(escaped, ODD))) == len(ODD)


@pytest.mark.parametrize("column", [[], [None, None], [1, 2], [b"\0"], [True, False], ["a", "b"]])
def test_column_without_special_characters_is_not_copied(column: list[object]) -> None:
    assert to_parameter(column) is column
