"""Wildcard patterns: the meaning of fnmatchcase, in a bounded number of steps."""

import warnings
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.session.wildcard import Effort, EffortSpent, Pattern

PLENTY = 1_000_000

SIMPLE = st.text("ab*?", max_size=12)
SETS = st.text("ab!-]^[*?\\&~|", max_size=12)
JOINED = st.lists(
    st.sampled_from(
        ["*", "?", "[a-b]", "[!a]", "[b-a!a]", "[b-a]", "[!b-a]", "[]-a]", "[!]]", "[*]", "[[]", "a", "b\n"]
    ),
    max_size=8,
).map("".join)
TEXTS = st.text("ab!-]^[*?\\\n&", max_size=8) | st.text("ab", max_size=12)


def does_match(text: str, pattern: str) -> bool:
    return Pattern(pattern).matches(text, Effort(PLENTY))


@settings(max_examples=2_000, deadline=None)
@given(pattern=SIMPLE | SETS | JOINED, text=TEXTS)
@example(pattern="[b-a!-z]", text="-")
@example(pattern="[b-a!-z]", text="y")
@example(pattern="[!", text="[!")
@example(pattern="a*a", text="a")
def test_patterns_mean_the_same_as_in_fnmatch(pattern: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The regular expression of an odd set may warn.
        expected = fnmatchcase(text, pattern)
    assert does_match(text, pattern) == expected


@settings(max_examples=500, deadline=None)
@given(content=st.text("abz!-^[\\", min_size=1, max_size=8), text=st.sampled_from("abcz!-^[\\"))
def test_sets_mean_the_same_as_in_fnmatch(content: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = fnmatchcase(text, f"[{content}]")
    assert does_match(text, f"[{content}]") == expected


@pytest.mark.parametrize(("pattern", "wildcards"), [("a*b?[c]", 3), ("[*][?][[]", 0), ("[", 0), ("**", 2)])
def test_wildcards_are_counted_without_escaped_ones(pattern: str, wildcards: int) -> None:
    assert Pattern(pattern).wildcards == wildcards


@pytest.mark.parametrize("pattern", ["*" + "a" * 400 + "[b]", "*?b" * 300, "*" + "a" * 200 + "?b*", "*[a-b][a-b]c*"])
def test_steps_grow_no_faster_than_the_pattern_times_the_text(pattern: str) -> None:
    effort = Effort(PLENTY)
    Pattern(pattern).matches("a" * 3_000, effort)
    assert PLENTY - effort.left <= 3_000 * (len(pattern) + 1)


def test_matching_stops_when_its_steps_are_spent() -> None:
    with pytest.raises(EffortSpent):
        Pattern("*[a]b*").matches("a" * 3_000, Effort(1_000))
