"""Long outputs keep their beginning and their end, whole characters and whole counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast.tools.truncation import STREAM, Room, cut, cut_end, cut_start, lines_in

SMALL = Room(whole_bytes=40, whole_lines=6, head_bytes=16, head_lines=3, tail_bytes=8, tail_lines=2)


@pytest.mark.parametrize(
    ("text", "lines"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n\n", 2), ("a\r\nb\u2028c\x0b", 2)]
)
def test_only_a_line_feed_ends_a_line(text: str, lines: int) -> None:
    assert lines_in(text) == lines


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("x" * 65_536, True),
        ("x" * 65_537, False),
        ("é" * 32_768, True),
        ("é" * 32_769, False),
        ("\n" * 2_000, True),
        ("\n" * 2_000 + "x", False),
    ],
)
def test_up_to_64_kib_and_2000_lines_an_output_is_whole(text: str, fits: bool) -> None:
    assert STREAM.holds(text) is fits


def test_of_too_many_lines_the_first_and_the_last_are_kept() -> None:
    text = "".join(f"{number}\n" for number in range(1, 3_001))
    lines = cut(text, text, len(text), STREAM, "/the/file").splitlines()
    assert lines[:500] == [str(number) for number in range(1, 501)]
    assert lines[501:] == [str(number) for number in range(2_901, 3_001)]
    assert "/the/file" in lines[500]


def test_of_too_many_bytes_the_first_and_the_last_are_kept() -> None:
    text = "a" * 50_000 + "b" * 50_000
    head, _, rest = cut(text, text, len(text), STREAM, "/the/file").partition("\n[…")
    tail = rest.partition("…]\n")[2]
    assert (head, tail) == ("a" * 32_768, "b" * 8_192)


def test_the_line_between_says_how_much_is_gone_and_where_all_of_it_is() -> None:
    said = cut("a" * 100, "b" * 100, 1_000_000, SMALL, "/the/file")
    between = "[… about 999,976 bytes are left out here; all that the command wrote is in /the/file …]"
    assert said == f"{'a' * 16}\n{between}\n{'b' * 8}"


@given(text=some.text(alphabet="a\né漢𝄞", min_size=41, max_size=200))
def test_a_cut_text_is_its_beginning_and_its_end_and_keeps_to_its_room(text: str) -> None:
    said = cut(text, text, len(text.encode()), SMALL, "F")
    head, _, rest = said.partition("\n[… about ")
    tail = rest.partition("in F …]\n")[2]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert (len(head.encode()) <= 16, lines_in(head) <= 3) == (True, True)
    assert (len(tail.encode()) <= 8, lines_in(tail) <= 2) == (True, True)


@given(text=some.text(max_size=40), at=some.integers(0, 100))
def test_a_cut_never_makes_half_a_character(text: str, at: int) -> None:
    data = text.encode()
    head, tail = data[:at], data[at:]
    assert text.startswith(cut_end(head).decode())
    assert text.endswith(cut_start(tail).decode())
    assert len(cut_end(head)) > len(head) - 4
    assert len(cut_start(tail)) > len(tail) - 4


@given(data=some.binary(max_size=30))
def test_bytes_that_are_no_text_are_cut_too(data: bytes) -> None:
    assert len(cut_end(data)) > len(data) - 4
    assert len(cut_start(data)) > len(data) - 4
