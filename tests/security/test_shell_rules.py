"""Commands that shell rules with patterns allow, compared with the behaviour of real bash.

`hostile_commands.jsonl` has commands that try to do more than run an allowed program, each with what bash makes of it;
`plain_commands.jsonl` has commands that rules are there for. What is let through is run in a box, and has to start just
the programs that were taken apart, with just these words, and leave no file behind.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from holdfast.events.request import PermissionAsk
from holdfast.session.permissions import judge
from holdfast.shell_grammar import NotCertain, ShellScript, parse
from tests.security.bash_box import Ran, box, has_bash

HERE: Final = Path(__file__).parent

pytestmark = pytest.mark.skipif(not has_bash(), reason="NOT TESTED: shell rules against bash, which is not installed")


class Hostile(msgspec.Struct, frozen=True):
    command: str
    does: str
    """In bash, if it were run."""


HOSTILE: Final = [
    msgspec.json.decode(line, type=Hostile)
    for line in (HERE / "hostile_commands.jsonl").read_text(encoding="utf-8").splitlines()
]
PLAIN: Final = [
    msgspec.json.decode(line, type=str)
    for line in (HERE / "plain_commands.jsonl").read_text(encoding="utf-8").splitlines()
]

ALLOWED: Final = (
    *("cat", "cd", "cp", "echo", "false", "git", "grep", "head", "ls", "make", "mkdir", "mv", "npm", "printf", "pwd"),
    *(
        "read",
        "sort",
        "tail",
        "test",
        "touch-nothing",
        "true",
        "type",
        "unset",
        "wc",
        "wait",
        "[",
        "export",
        ":",
        "kill",
    ),
)
"""Programs and builtins that a trusting person allowed, with whatever arguments."""

RULES: Final = [rule for name in ALLOWED for rule in (f"shell({name})", f"shell({name} *)")]
OPEN_RULES: Final = ["shell(* *)", "shell(*o*)", "shell(?*)", "*(e*)", "bash(*)x", "bash(l*)", "shell([a-z]*)"]
"""Patterns as wide as can be; only `shell` and `shell(*)` say that everything is meant."""


ENOUGH: Final = 200
"""Hostile commands that start or write something else in bash: the corpus is no straw man."""


def is_allowed(command: str, rules: list[str]) -> bool:
    ask = PermissionAsk(kind="shell", subject=command)
    return judge(ask, tool_name="bash", allow=rules, unattended=False) == "allow"


# What the operators let bash start


def started(script: ShellScript, status: int) -> Iterator[int]:
    """The places of the commands that are started if each of them ends with this status."""
    last, runs = 0, True
    for place in range(len(script.commands)):
        operator = script.operators[place - 1] if place else ";"
        if operator != "|":
            runs = operator == ";" or (operator == "&&") == (last == 0)
        if runs:
            yield place
            last = status


def check_against_bash(command: str, *, locale: str = "C.UTF-8") -> None:
    """Bash starts just the programs that the parser found, with just these words, and makes just the files named."""
    script = parse(command)
    for status in (0, 1) if {"&&", "||"} & set(script.operators) else (0,):
        expected = [script.commands[place] for place in started(script, status)]
        ran = box().run(command, status=status, records_builtins=True, locale=locale)
        assert ran.ended
        assert Counter(ran.started) == Counter(found.words for found in expected)
        made = {file.target for found in expected for file in found.redirections if file.operator in (">", ">>")}
        assert set(ran.files) == made


def does_more(ran: Ran) -> bool:
    """Something that no rule names was started, or written."""
    return bool(ran.files) or any(words[0] not in ALLOWED for words in ran.started)


# Hostile commands


def test_the_corpora_are_large_and_have_no_duplicates() -> None:
    assert len(HOSTILE) >= 300
    assert len({found.command for found in HOSTILE}) == len(HOSTILE)
    assert all(len(found.does) > 10 for found in HOSTILE)
    assert len(set(PLAIN)) == len(PLAIN) >= 50


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda found: json.dumps(found.command)[1:61])
def test_a_hostile_command_is_asked_about_or_does_nothing_but_what_was_allowed(hostile: Hostile) -> None:
    if is_allowed(hostile.command, RULES):
        check_against_bash(hostile.command)
        assert not does_more(box().run(hostile.command)), "with the builtins of bash as they are"
    elif is_allowed(hostile.command, OPEN_RULES) and can_be_compared(parse(hostile.command)):
        check_against_bash(hostile.command)


def test_nearly_all_of_them_are_asked_about() -> None:
    """The rest is data for an allowed program, however it looks."""
    refused = [found for found in HOSTILE if not is_allowed(found.command, RULES)]
    assert len(refused) >= 700
    assert len(HOSTILE) - len(refused) < 65


@pytest.mark.slow
def test_most_of_those_asked_about_would_really_do_more() -> None:
    refused = (found for found in HOSTILE if not is_allowed(found.command, RULES))
    harmful = (found for found in refused if does_more(box().run(found.command)))
    assert len(list(islice(harmful, ENOUGH))) == ENOUGH


# Commands that rules are there for


@pytest.mark.parametrize("command", PLAIN, ids=lambda command: json.dumps(command)[1:61])
def test_a_plain_command_is_let_through_and_runs_as_it_was_taken_apart(command: str) -> None:
    assert is_allowed(command, RULES)
    check_against_bash(command)
    assert not does_more(box().run(command))


# Whatever a model may write

NAMES: Final = ["a", "b", "ls", "git", "echo", "cd", "true", "test", "eval", "if", "x=1", "time", "printf", "."]
PIECES: Final = [
    *NAMES,
    *(" ", " ", " ", "\t", "\n", "\\\n", " \\\n", "\r", "\0", "\x01", "\x7f", "\x0b", "\u00a0", "\u2003", "é", "日"),
    *("'", '"', "\\", "''", '""', "' '", '" "', "'a b'", '"c d"', "\\ ", "\\'", '\\"', "\\\\", "\\$", "\\`", "\\n"),
    *("$", "$x", "${x}", "$(a)", "$((1))", "$[1]", "$'a'", '$"a"', "$@", "$$", "$?", "`a`", "`", "${x:=`a`}", "${x@P}"),
    *(";", "&", "&&", "|", "||", "|&", ";;", ";&", "(", ")", "{", "}", "{ ", "; }", "{a,b}", "{1..3}", "!", "!!", "!a"),
    *(
        ">",
        ">>",
        "<",
        "<<",
        "<<<",
        "<>",
        ">|",
        ">&",
        "<&",
        "&>",
        "2>",
        "1>&2",
        "2>&1",
        ">&-",
        "<(a)",
        ">(a)",
        "> x",
        ">y",
    ),
    *(
        "*",
        "?",
        "[a]",
        "]",
        "[",
        "~",
        "~root",
        "a~",
        ":~",
        "=~",
        "#",
        "# ",
        "a#",
        "^",
        "%",
        "%1",
        "@",
        "+",
        ",",
        ":",
        "=",
    ),
    *("-", "--", "-c", "-v", "-e", "1", "2", "10", "a=b", "a+=b", "a[0]=b", "then", "do", "done", "fi", "esac", "in"),
]
SAFE_PIECES: Final = [
    "a",
    "b",
    " ",
    " ",
    "'x y'",
    '"x"',
    "\\ ",
    "-1",
    ";",
    "&&",
    "||",
    "|",
    "\n",
    "ls",
    "'\n'",
    '"\\"',
    "=",
    "~",
]


IN_QUOTES: Final = [
    "a",
    " ",
    "\\n",
    "\\\\",
    '\\"',
    "\\'",
    "'",
    "\\$",
    "\\`",
    "\\\n",
    "\n",
    "\\!",
    "!",
    "`a`",
    "$x",
    "é",
    "*",
    ";",
    "#",
]
QUOTED: Final = some.lists(some.sampled_from(IN_QUOTES), max_size=4).map("".join)


@some.composite
def written_by_rule(draw: some.DrawFn) -> str:
    """A command as people write them, with something else put into it somewhere, perhaps."""
    simple = some.lists(
        some.sampled_from(["a", "b", "ls", "-l", "'x y'", '"x y"', "x\\ y", "HEAD~1", "''", "2>&1", ">x"]),
        min_size=1,
        max_size=4,
    )
    put_in = some.sampled_from(PIECES) | QUOTED.map('"{}"'.format) | QUOTED.map(" '{}'".format)
    joined = draw(some.lists(simple, min_size=1, max_size=4))
    text = "ls " + " ".join(joined[0])
    for more in joined[1:]:
        text += (
            draw(some.sampled_from([" && ", " || ", "; ", " | ", "\n", ";", "|", "&&", " |\n", ";\n"]))
            + "git "
            + " ".join(more)
        )
    for _ in range(draw(some.integers(0, 2))):
        at = draw(some.integers(0, len(text)))
        text = text[:at] + draw(put_in) + text[at:]
    return text


COMMANDS: Final = some.one_of(
    written_by_rule(),
    some.lists(some.sampled_from(PIECES), max_size=10).map("".join),
    some.lists(some.sampled_from(PIECES), max_size=8).map(" ".join),
    some.lists(some.sampled_from(SAFE_PIECES), max_size=14).map("".join),
    QUOTED.map('echo a"{}"'.format),
    some.text(alphabet="ab \t\n'\"\\;&|<>~#=*!12-:é$`(){}[]^%", max_size=24),
    some.text(max_size=24),
)


def can_be_compared(script: ShellScript) -> bool:
    """The stubs record every name without a slash; a redirection has to be one that works."""
    redirections = [redirection for found in script.commands for redirection in found.redirections]
    return (
        all(redirection.target in ("x", "y", "1", "2") for redirection in redirections)
        and all(redirection.operator != "<" for redirection in redirections)
        and not any("/" in found.words[0] or re.fullmatch(r"\.+", found.words[0]) for found in script.commands)
    )


def test_the_records_of_a_pipeline_do_not_mix() -> None:
    """Bash writes words with line breaks in pieces."""
    words = "a\n" * 8_000
    command = " | ".join([f"a '{words}'"] * 6)
    assert box().run(command).started == [("a", words)] * 6


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(command=COMMANDS, locale=some.sampled_from(["C.UTF-8", "C"]))
def test_bash_starts_just_what_was_taken_apart(command: str, locale: str) -> None:
    try:
        script = parse(command)
    except NotCertain:
        return
    if can_be_compared(script):
        check_against_bash(command, locale=locale)
