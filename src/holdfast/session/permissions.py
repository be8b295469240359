"""Judges a permission request by the rules that apply: allow, ask or deny.

By default, reading inside the working directory is allowed, writing and executing ask, and everything outside is
denied. A rule grants more: a kind (`read`, `write`, `shell`) or a tool's name, alone or with a pattern for its
subject in parentheses, such as `write(docs/*)` or `shell(git *)`; `*` grants everything.

A pattern for the shell covers programs with arguments and nothing else that a shell can do: it is matched with each
simple command of a command that can be taken apart with certainty. A rule without wildcards covers just its own text.
"""

import re
from fnmatch import fnmatchcase
from glob import escape
from typing import Final, Literal, get_args

from holdfast.events.request import PermissionAsk, PermissionKind
from holdfast.shell_grammar import NotCertain, ShellScript, parse

Verdict = Literal["allow", "ask", "deny"]

ANSWERS_PERMISSIONS: Final = "permission"
"""The capability of a client that can decide permissions."""

NOBODY_COULD: Final = "denied-no-approval-rule-and-could-not-request-from-user"
"""The decision on a permission that no client could decide."""

EVERY_CALL: Final = "*"
"""The rule that allows every request."""

_RULE = re.compile(r"(?P<name>\*|[A-Za-z_][\w.-]*)(?:\((?P<pattern>.+)\))?", re.DOTALL)

KINDS: Final[frozenset[str]] = frozenset(get_args(PermissionKind))
"""Names that always mean a kind in a rule, even if a tool has the same name: approving writes does not approve a tool
called `write`."""

MAX_CHAINED: Final = 50
"""The most simple commands in one chain that are matched with patterns; a longer chain asks. Matching blocks the event
loop."""

_EXACT = re.compile(r"(?:[^*?\[]|\[[*?\[]\])+", re.DOTALL)
_ESCAPED_WILDCARD = re.compile(r"\[([*?\[])\]")

_IN_DIRECTORY = re.compile(r"(?P<command>.*) \(in (?P<directory>[^()\s]+)\) ", re.DOTALL)
"""A command, or a pattern for one, in a directory below the working directory."""

_OPERATOR = re.compile(r"\s*(&&|\|\||[;|\n])\s*")


class BadRule(ValueError):
    """A permission rule that can't be read."""

    code = "rule_invalid"

    def __init__(self, rule: str) -> None:
        super().__init__(
            f"{rule!r} is not a permission rule. Write a kind (read, write, shell) or a tool's name, alone or with a "
            "pattern: write(docs/*), shell(git *). A single * allows everything."
        )


def check_rule(rule: str) -> str:
    """The rule itself; raises `BadRule` if it is malformed."""
    if not _RULE.fullmatch(rule):
        raise BadRule(rule)
    return rule


def judge(
    ask: PermissionAsk, *, tool_name: str, allow: list[str], unattended: bool, asks_always: bool = False
) -> Verdict:
    """The verdict on a call. In an unattended turn a call that would ask is denied. With `asks_always` every call asks
    that no rule allows, including reads and paths outside the working directory."""
    if any(_grants(rule, ask, tool_name) for rule in allow) or _patterns_grant(allow, ask, tool_name):
        return "allow"
    if asks_always and not unattended:
        return "ask"
    if not ask.inside:
        return "deny"
    if ask.kind == "read":
        return "allow"
    return "deny" if unattended else "ask"


def command_in(subject: str) -> str:
    """The command of a shell request, without the directory that its subject may name."""
    placed = _IN_DIRECTORY.fullmatch(subject)
    return placed["command"] if placed else subject


def session_rule(ask: PermissionAsk, tool_name: str) -> str:
    """The rule that approving for the rest of the session grants."""
    if ask.kind == "custom-tool":
        return custom_tool_rule(tool_name)
    if ask.kind == "shell" or not ask.inside:
        return f"{ask.kind}({escape(ask.subject)})"
    return ask.kind


def custom_tool_rule(tool_name: str) -> str:
    """The rule for a custom tool. It does not cover a built-in tool of the same name, which asks by kind."""
    return f"custom-tool({escape(tool_name)})"


def _grants(rule: str, ask: PermissionAsk, tool_name: str) -> bool:
    """Whether one rule covers the whole request."""
    parsed = _RULE.fullmatch(rule)
    if parsed is None:
        return False
    name, pattern = parsed["name"], parsed["pattern"]
    if name not in _names(ask.kind, tool_name):
        return False
    if name == ask.kind and pattern is None and not ask.inside:
        return False
    if pattern is None:
        return True
    if ask.kind == "shell":
        return pattern == EVERY_CALL or _exact(pattern) == ask.subject
    return fnmatchcase(tool_name if name == "custom-tool" else ask.subject, pattern)


def _names(kind: str, tool_name: str) -> tuple[str, ...]:
    """The names under which a rule covers a request."""
    return ("*", kind) if tool_name in KINDS else ("*", kind, tool_name)


# Commands


def _patterns_grant(allow: list[str], ask: PermissionAsk, tool_name: str) -> bool:
    """Whether patterns cover every simple command of the request. No pattern covers a redirection."""
    patterns = _shell_patterns(allow, _names(ask.kind, tool_name)) if ask.kind == "shell" else []
    if not patterns:
        return False
    placed = _IN_DIRECTORY.fullmatch(ask.subject)
    try:
        script = parse(placed["command"] if placed else ask.subject)
    except NotCertain:
        return False
    if len(script.commands) > MAX_CHAINED or any(command.redirections for command in script.commands):
        return False
    directory = placed and placed["directory"]
    patterns = [applicable for pattern in patterns if (applicable := _within(pattern, directory))]
    exact = {text for pattern in patterns if (text := _exact(pattern)) is not None}
    wild = [pattern for pattern in patterns if _exact(pattern) is None]
    single = [pattern for pattern in wild if not _OPERATOR.search(pattern)]
    return all(_is_covered(command.text, single, exact) for command in script.commands) or any(
        _covers_chain(pattern, script) for pattern in wild
    )


def _shell_patterns(allow: list[str], names: tuple[str, ...]) -> list[str]:
    rules = (parsed for rule in allow if (parsed := _RULE.fullmatch(rule)))
    return [rule["pattern"] for rule in rules if rule["pattern"] and rule["name"] in names]


def _within(pattern: str, directory: str | None) -> str | None:
    """The part of a pattern that applies to commands in a directory; None if the pattern names another directory."""
    placed = _IN_DIRECTORY.fullmatch(pattern)
    if placed is None:
        return pattern
    return placed["command"] if placed["directory"] == directory else None


def _is_covered(command: str, patterns: list[str], exact: set[str]) -> bool:
    if any(fnmatchcase(command, pattern) for pattern in patterns):
        return True
    # An exact rule for this text counts inside a chain only beside a pattern for the same command with arguments.
    return command in exact and any(fnmatchcase(f"{command} ", pattern) for pattern in patterns)


def _covers_chain(pattern: str, script: ShellScript) -> bool:
    """Whether a pattern that itself joins commands, such as `make | tee *`, covers the whole chain."""
    parts = _OPERATOR.split(pattern)
    operators = tuple(";" if operator == "\n" else operator for operator in parts[1::2])
    return (
        len(parts) > 1
        and operators == script.operators
        and all(fnmatchcase(command.text, part) for command, part in zip(script.commands, parts[::2], strict=True))
    )


def _exact(pattern: str) -> str | None:
    """The one text that a pattern without wildcards matches."""
    return _ESCAPED_WILDCARD.sub(r"\1", pattern) if _EXACT.fullmatch(pattern) else None
