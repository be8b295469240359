"""Judges a permission request by the rules that apply: allow, ask or deny.

By default, reading inside the working directory is allowed, writing and executing ask, and everything outside is
denied. A rule grants more: a kind (`read`, `write`, `shell`) or a tool's name, alone or with a pattern for its
subject in parentheses, such as `write(docs/*)` or `shell(git *)`; `*` grants everything.

A pattern for the shell covers programs with arguments and nothing else that a shell can do: it is matched with each
simple command of a command that can be taken apart with certainty. A rule without wildcards covers just its own text.

Clients choose rules, and judging blocks the event loop: rules are bounded when they are given, and patterns are matched
in a bounded number of steps, also those that were stored before.
"""

import re
from collections.abc import Iterator, Sequence
from glob import escape
from typing import Final, Literal, NamedTuple, get_args

from holdfast.events.request import PermissionAsk, PermissionKind
from holdfast.session.wildcard import Effort, EffortSpent, Pattern
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

MAX_RULE_CHARACTERS: Final = 1_000
"""The longest rule that a client may give, or grant beyond one session. The rule that a request itself names may be
longer, and then holds for its session only."""

MAX_RULE_WILDCARDS: Final = 32
"""The most stars, question marks and sets in one rule; each is a step of its own."""

MAX_RULES_GIVEN: Final = 100
"""The most rules in one request of a client."""

MAX_SESSION_RULES: Final = 500
"""The most rules that are granted in one session. All are in its state, and are read for each step that asks."""

MAX_MATCHING_STEPS: Final = 25_000
"""Steps in which the patterns of a session are matched with the calls of one step of a turn, about 25 ms. A call that
could not be matched within them asks."""

READ_PER_STEP: Final = 10
"""Characters of a pattern for commands that are read in one step, before it is matched."""

_EXACT = re.compile(r"(?:[^*?\[]|\[[*?\[]\])+", re.DOTALL)

_IN_DIRECTORY = re.compile(r"(?P<command>.*) \(in (?P<directory>[^()\s]+)\) ", re.DOTALL)
"""A command, or a pattern for one, in a directory below the working directory."""

_OPERATOR = re.compile(r"(?:(?<!\s)\s+)?(&&|\|\||[;|\n])\s*")
"""An operator with the space around it. Space is looked at from its beginning only: otherwise a long one takes time in
proportion to its square."""


class BadRule(ValueError):
    """A permission rule that can't be accepted."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_rule(rule: str) -> str:
    """The rule itself; raises `BadRule` if it is malformed."""
    if not _RULE.fullmatch(rule):
        raise BadRule(
            "rule_invalid",
            f"{rule!r} is not a permission rule. Write a kind (read, write, shell) or a tool's name, alone or with a "
            "pattern: write(docs/*), shell(git *). A single * allows everything.",
        )
    return rule


def check_given_rules(rules: Sequence[str]) -> None:
    """Raises `BadRule` if a client may not give these rules: one is malformed or beyond a bound, or they are too
    many."""
    if len(rules) > MAX_RULES_GIVEN:
        raise BadRule(
            "too_many_rules", f"At most {MAX_RULES_GIVEN} rules can be given at once; these are {len(rules)}."
        )
    for rule in rules:
        if len(rule) > MAX_RULE_CHARACTERS:
            raise BadRule(
                "rule_too_long", f"A rule has at most {MAX_RULE_CHARACTERS:,} characters; one has {len(rule):,}."
            )
        parsed = _RULE.fullmatch(check_rule(rule))
        wildcards = Pattern(parsed["pattern"] or "").wildcards if parsed else 0
        if wildcards > MAX_RULE_WILDCARDS:
            raise BadRule(
                "rule_too_complex",
                f"A rule has at most {MAX_RULE_WILDCARDS} wildcards; one has {wildcards}. Write several rules instead.",
            )


class CommandPattern(NamedTuple):
    """A pattern for commands, taken apart."""

    whole: str
    exact_whole: str | None
    """The one text that it matches, if it has no wildcards."""
    directory: str | None
    """It covers commands in this directory only; None: in any."""
    command: str
    """The pattern without its directory."""
    exact: str | None
    """The one command that it matches, if it has no wildcards."""
    parts: list[str]
    """The command, cut at its operators: patterns and operators by turns."""


class Rules:
    """The rules of a session, read once, and the steps that are left for matching their patterns."""

    def __init__(self, rules: Sequence[str], *, steps: int = MAX_MATCHING_STEPS) -> None:
        self._whole: set[str] = set()
        self._patterns: dict[str, list[str]] = {}
        for rule in rules:
            parsed = _RULE.fullmatch(rule)
            if parsed is None:
                continue
            if parsed["pattern"] is None:
                self._whole.add(parsed["name"])
            else:
                self._patterns.setdefault(parsed["name"], []).append(parsed["pattern"])
        self._effort = Effort(steps)
        self._read: dict[str, Pattern] = {}
        self._commands: dict[str, CommandPattern] = {}

    def grants_all(self, name: str) -> bool:
        """Whether a rule without a pattern has this name."""
        return name in self._whole

    def patterns(self, *names: str) -> Iterator[str]:
        """The patterns of the rules with these names. Raises `EffortSpent` when no steps are left to look at one."""
        for name in names:
            for pattern in self._patterns.get(name, ()):
                self._effort.spend(1)
                yield pattern

    def matches(self, pattern: str, text: str) -> bool:
        """Raises `EffortSpent` when no steps are left."""
        read = self._read.get(pattern)
        if read is None:
            self._effort.spend(2 * sum(pattern.count(wildcard) for wildcard in "*?[-"))
            read = self._read[pattern] = Pattern(pattern)
        return read.matches(text, self._effort)

    def commands(self, *names: str) -> Iterator["CommandPattern"]:
        """The patterns of the rules with these names, for commands. Raises `EffortSpent` like `patterns`."""
        for pattern in self.patterns(*names):
            read = self._commands.get(pattern)
            if read is None:
                self._effort.spend(len(pattern) // READ_PER_STEP)
                read = self._commands[pattern] = _command_pattern(pattern)
            yield read


def judge(
    ask: PermissionAsk,
    *,
    tool_name: str,
    allow: Rules | Sequence[str],
    unattended: bool,
    asks_always: bool = False,
) -> Verdict:
    """The verdict on a call. In an unattended turn a call that would ask is denied. With `asks_always` every call asks
    that no rule allows, including reads and paths outside the working directory. Calls that are judged with the same
    `Rules` share their steps."""
    if ask.kind == "read" and ask.inside and (unattended or not asks_always):
        return "allow"
    rules = allow if isinstance(allow, Rules) else Rules(allow)
    if _is_granted(rules, ask, tool_name):
        return "allow"
    if asks_always and not unattended:
        return "ask"
    return "deny" if unattended or not ask.inside else "ask"


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


def _is_granted(rules: Rules, ask: PermissionAsk, tool_name: str) -> bool:
    names = _names(ask.kind, tool_name)
    if any(rules.grants_all(name) for name in names if name != ask.kind or ask.inside):
        return True
    try:
        if ask.kind == "shell":
            return _grants_command(rules, ask, names)
        return any(
            rules.matches(pattern, tool_name if name == "custom-tool" else ask.subject)
            for name in names
            for pattern in rules.patterns(name)
        )
    except EffortSpent:
        return False


def _names(kind: str, tool_name: str) -> tuple[str, ...]:
    """The names under which a rule covers a request."""
    return ("*", kind) if tool_name in KINDS else ("*", kind, tool_name)


# Commands


def _grants_command(rules: Rules, ask: PermissionAsk, names: Sequence[str]) -> bool:
    """Whether one rule covers the whole text of the command, or patterns cover each simple command of it. No pattern
    covers a redirection."""
    patterns = list(rules.commands(*names))
    if any(pattern.whole == EVERY_CALL or pattern.exact_whole == ask.subject for pattern in patterns):
        return True
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
    patterns = [pattern for pattern in patterns if pattern.directory in (None, directory)]
    exact = {pattern.exact for pattern in patterns if pattern.exact is not None}
    wild = [pattern for pattern in patterns if pattern.exact is None]
    single = [pattern.command for pattern in wild if len(pattern.parts) == 1]
    return all(_is_covered(rules, command.text, single, exact) for command in script.commands) or any(
        _covers_chain(rules, pattern.parts, script) for pattern in wild
    )


def _command_pattern(pattern: str) -> CommandPattern:
    placed = _IN_DIRECTORY.fullmatch(pattern)
    command = placed["command"] if placed else pattern
    return CommandPattern(
        whole=pattern,
        exact_whole=_exact(pattern),
        directory=placed["directory"] if placed else None,
        command=command,
        exact=_exact(command),
        parts=_OPERATOR.split(command),
    )


def _is_covered(rules: Rules, command: str, patterns: list[str], exact: set[str]) -> bool:
    if any(rules.matches(pattern, command) for pattern in patterns):
        return True
    # An exact rule for this text counts inside a chain only beside a pattern for the same command with arguments.
    return command in exact and any(rules.matches(pattern, f"{command} ") for pattern in patterns)


def _covers_chain(rules: Rules, parts: list[str], script: ShellScript) -> bool:
    """Whether a pattern that itself joins commands, such as `make | tee *`, covers the whole chain."""
    if len(parts) == 1 or len(parts[1::2]) != len(script.operators):
        return False
    operators = tuple(";" if operator == "\n" else operator for operator in parts[1::2])
    return operators == script.operators and all(
        rules.matches(part, command.text) for command, part in zip(script.commands, parts[::2], strict=True)
    )


def _exact(pattern: str) -> str | None:
    """The one text that a pattern without wildcards matches."""
    if not any(wildcard in pattern for wildcard in "*?["):
        return pattern
    if not _EXACT.fullmatch(pattern):
        return None
    return pattern.replace("[*]", "*").replace("[?]", "?").replace("[[]", "[")
