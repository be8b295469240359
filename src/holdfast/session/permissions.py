"""Judges a permission request by the rules that apply: allow, ask or deny.

By default, reading inside the working directory is allowed, writing and executing ask, and everything outside is
denied. A rule grants more: a kind (`read`, `write`, `shell`) or a tool's name, alone or with a pattern for its
subject in parentheses, such as `write(docs/*)` or `shell(git *)`; `*` grants everything.

A pattern for the shell covers programs with arguments and nothing else that a shell can do: it is matched with each
simple command of a command that can be taken apart with certainty. A rule without wildcards covers just its own text.

Clients choose rules, and judging blocks the event loop: rules are bounded when they are given, and patterns are matched
in a bounded number of steps, also those that were stored before. Rules without wildcards are looked up, which takes no
steps, and each call of a step of a turn has its share of the steps.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

_RULE = re.compile(r"(?P<name>\*|[A-Za-z_][\w.-]*)(?:\((?P<pattern>[^\ud800-\udfff]+)\))?")
"""A lone surrogate is half a character, which no database stores: a rule with one would come back as another rule."""

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
"""Steps in which the patterns of a session are read, and matched with the calls of one step of a turn, about 25 ms.
Half of them are for reading, the others for the calls, in equal shares. A pattern that could not be read grants
nothing, and a call that could not be matched within its share asks."""

READ_PER_STEP: Final = 10
"""Characters of a pattern for commands that are read in one step, before it is matched."""

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

    directory: str | None
    """It covers commands in this directory only; None: in any."""
    command: str
    """The pattern without its directory."""
    is_exact: bool
    """Whether the command has no wildcards: then the directory has some, and is compared as it is."""
    parts: list[str]
    """The command, cut at its operators: patterns and operators by turns."""


class Rules:
    """The rules of a session, read once, and the steps that are left for matching their patterns with `calls` calls."""

    def __init__(self, rules: Sequence[str], *, calls: int = 1, steps: int = MAX_MATCHING_STEPS) -> None:
        self._whole: set[str] = set()
        self._exact: dict[str, set[str]] = {}
        self._patterns: dict[str, dict[str, None]] = {}
        for rule in rules:
            parsed = _RULE.fullmatch(rule)
            if parsed is None:
                continue
            name, pattern = parsed["name"], parsed["pattern"]
            if pattern is None:
                self._whole.add(name)
            elif _is_exact(pattern):
                self._exact.setdefault(name, set()).add(pattern)
            else:
                self._patterns.setdefault(name, {})[pattern] = None
        self._calls = calls
        self._for_reading = steps // 2
        self._for_calls = steps - self._for_reading
        self._effort = Effort(0)
        self._read: dict[str, Pattern] = {}
        self._commands: dict[str, CommandPattern] = {}

    @contextmanager
    def share(self) -> Iterator[None]:
        """Lets one call use its share of the steps that are left. Later calls get those that it did not use."""
        share = self._for_calls // max(self._calls, 1)
        self._calls -= 1
        self._effort = Effort(share)
        try:
            yield
        finally:
            self._for_calls -= share - max(self._effort.left, 0)

    def grants_all(self, name: str) -> bool:
        """Whether a rule without a pattern has this name."""
        return name in self._whole

    def grants_text(self, name: str, text: str) -> bool:
        """Whether a rule with this name covers just this text, or every text. Takes no steps."""
        return EVERY_CALL in self._patterns.get(name, ()) or self.names_text(name, text)

    def names_text(self, name: str, text: str) -> bool:
        """Whether a rule with this name covers just this text. Takes no steps."""
        exact = self._exact.get(name)
        return exact is not None and _escaped(text) in exact

    def patterns(self, *names: str) -> Iterator[str]:
        """The patterns with wildcards of the rules with these names. Raises `EffortSpent` when the call has no steps
        left to look at one."""
        for name in names:
            for pattern in self._patterns.get(name, ()):
                self._effort.spend(1)
                yield pattern

    def matches(self, pattern: str, text: str) -> bool:
        """Raises `EffortSpent` when the call has no steps left."""
        read = self._read.get(pattern)
        if read is None:
            if not self._may_read(2 * sum(pattern.count(wildcard) for wildcard in "*?[-")):
                return False
            read = self._read[pattern] = Pattern(pattern)
        return read.matches(text, self._effort)

    def commands(self, *names: str) -> Iterator["CommandPattern"]:
        """The patterns of the rules with these names, for commands. Raises `EffortSpent` like `patterns`."""
        for pattern in self.patterns(*names):
            read = self._commands.get(pattern)
            if read is None:
                if not self._may_read(len(pattern) // READ_PER_STEP):
                    continue
                read = self._commands[pattern] = _command_pattern(pattern)
            yield read

    def _may_read(self, steps: int) -> bool:
        """Takes steps for reading a pattern, which all calls use, unless that many are not left."""
        if steps > self._for_reading:
            return False
        self._for_reading -= steps
        return True


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
    if needs_no_rule(ask, unattended=unattended, asks_always=asks_always):
        return "allow"
    rules = allow if isinstance(allow, Rules) else Rules(allow)
    if _is_granted(rules, ask, tool_name):
        return "allow"
    if asks_always and not unattended:
        return "ask"
    return "deny" if unattended or not ask.inside else "ask"


def needs_no_rule(ask: PermissionAsk, *, unattended: bool, asks_always: bool) -> bool:
    """Whether a call is allowed whatever the rules are."""
    return ask.kind == "read" and ask.inside and (unattended or not asks_always)


def command_in(subject: str) -> str:
    """The command of a shell request, without the directory that its subject may name."""
    placed = _IN_DIRECTORY.fullmatch(subject)
    return placed["command"] if placed else subject


def session_rule(ask: PermissionAsk, tool_name: str) -> str:
    """The rule that approving for the rest of the session grants."""
    if ask.kind == "custom-tool":
        return custom_tool_rule(tool_name)
    if ask.kind == "shell" or not ask.inside:
        return f"{ask.kind}({_escaped(ask.subject)})"
    return ask.kind


def custom_tool_rule(tool_name: str) -> str:
    """The rule for a custom tool. It does not cover a built-in tool of the same name, which asks by kind."""
    return f"custom-tool({_escaped(tool_name)})"


def _is_granted(rules: Rules, ask: PermissionAsk, tool_name: str) -> bool:
    names = _names(ask.kind, tool_name)
    if any(rules.grants_all(name) for name in names if name != ask.kind or ask.inside):
        return True
    texts = {name: tool_name if name == "custom-tool" else ask.subject for name in names}
    with rules.share():
        if any(rules.grants_text(name, text) for name, text in texts.items()):
            return True
        try:
            if ask.kind == "shell":
                return _grants_command(rules, ask, names)
            return any(rules.matches(pattern, text) for name, text in texts.items() for pattern in rules.patterns(name))
        except EffortSpent:
            return False


def _names(kind: str, tool_name: str) -> tuple[str, ...]:
    """The names under which a rule covers a request."""
    return ("*", kind) if tool_name in KINDS else ("*", kind, tool_name)


# Commands


def _grants_command(rules: Rules, ask: PermissionAsk, names: Sequence[str]) -> bool:
    """Whether patterns cover each simple command of the command. No pattern covers a redirection."""
    patterns = list(rules.commands(*names))
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
    single = [pattern.command for pattern in patterns if len(pattern.parts) == 1 and not pattern.is_exact]
    named = {pattern.command for pattern in patterns if pattern.is_exact}

    def is_covered(command: str) -> bool:
        if any(rules.matches(pattern, command) for pattern in single):
            return True
        # An exact rule for this text counts inside a chain only beside a pattern for the same command with arguments.
        is_named = _escaped(command) in named or any(_names_command(rules, name, command, directory) for name in names)
        return is_named and any(rules.matches(pattern, f"{command} ") for pattern in single)

    return all(is_covered(command.text) for command in script.commands) or any(
        _covers_chain(rules, pattern.parts, script) for pattern in patterns if not pattern.is_exact
    )


def _command_pattern(pattern: str) -> CommandPattern:
    placed = _IN_DIRECTORY.fullmatch(pattern)
    command = placed["command"] if placed else pattern
    return CommandPattern(
        directory=placed["directory"] if placed else None,
        command=command,
        is_exact=_is_exact(command),
        parts=_OPERATOR.split(command),
    )


def _names_command(rules: Rules, name: str, command: str, directory: str | None) -> bool:
    """Whether a rule without wildcards covers this command, in any directory or in this one."""
    if directory is not None and rules.names_text(name, f"{command} (in {directory}) "):
        return True
    # The words of a command may look like a directory.
    return not _IN_DIRECTORY.fullmatch(command) and rules.names_text(name, command)


def _covers_chain(rules: Rules, parts: list[str], script: ShellScript) -> bool:
    """Whether a pattern that itself joins commands, such as `make | tee *`, covers the whole chain."""
    if len(parts) == 1 or len(parts[1::2]) != len(script.operators):
        return False
    operators = tuple(";" if operator == "\n" else operator for operator in parts[1::2])
    return operators == script.operators and all(
        rules.matches(part, command.text) for command, part in zip(script.commands, parts[::2], strict=True)
    )


def _is_exact(pattern: str) -> bool:
    """Whether a pattern has no wildcards, and so matches one text only. It then is this text, as `_escaped` writes it.

    The escapes never overlap, so counting shows whether each special character is part of one. That is fast, whatever
    the pattern is: every rule of a session is looked at."""
    stars, marks, brackets = pattern.count("[*]"), pattern.count("[?]"), pattern.count("[[]")
    return (
        pattern.count("*") == stars
        and pattern.count("?") == marks
        and pattern.count("[") == stars + marks + 2 * brackets
    )


def _escaped(text: str) -> str:
    """The pattern that matches just this text."""
    return text.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")
