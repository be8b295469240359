"""Finds a `sleep` in a command that the shell would wait for. Pure.

A command that `shell_grammar` parses is read from that parse. For any other, a lenient reader follows as much of the
text as it can; what it can't follow counts as no sleep, and the command simply takes its time.
"""

import re
from typing import Final

import msgspec

from holdfast.shell_grammar import NotCertain, parse

BLOCKED_SECONDS: Final = 2.0
"""A sleep of this length or longer is refused; a shorter one is a pause."""

_MAX_DEPTH: Final = 50
"""The depth of nested brackets; real commands nest less."""

_MAX_NESTING: Final = 3
"""The nesting of commands inside words of commands: each is read again, which blocks the event loop."""

_CLOSERS: Final = {
    "{": "}",
    "if": "fi",
    "while": "done",
    "until": "done",
    "for": "done",
    "select": "done",
    "case": "esac",
}
_HAS_NAME: Final = frozenset({"for", "select", "case"})
"""Keywords followed by a name or a value instead of a command."""

_LEADING: Final = frozenset({"!", "do", "elif", "else", "then", "time"})
"""Keywords followed by a command."""

_ENDS_LIST: Final = frozenset({";", "\n", ";;", ";&", ";;&"})
_JOINS: Final = frozenset({"&&", "||", "|", "|&"})
_OPERATOR: Final = re.compile(
    r"<<<|<<-|<<|<>|<&|>&|>>|>\||&>>|&>|&&|\|\||\|&|;;&|;;|;&|[;&|<>()\n]",
)
_BLANKS: Final = re.compile(r"(?:[ \t\r]|\\\n)+")
_ENDS_WORD: Final = frozenset(" \t\r\n;&|<>()")

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=", re.ASCII)
_NUMBER: Final = r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_DURATION: Final = re.compile(rf"\+?({_NUMBER}|inf(?:inity)?)([smhd]?)", re.ASCII | re.IGNORECASE)
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

_RUNNERS: Final[dict[str, frozenset[str]]] = {
    "builtin": frozenset(),
    "busybox": frozenset(),
    "command": frozenset(),
    "doas": frozenset({"-u"}),
    "env": frozenset({"-u", "-C"}),
    "exec": frozenset({"-a"}),
    "nice": frozenset({"-n"}),
    "nohup": frozenset(),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "sudo": frozenset({"-u", "-g", "-h", "-p"}),
    "time": frozenset({"-f", "-o"}),
    "timeout": frozenset({"-k", "-s"}),
}
"""Programs that run the rest of their words, and those of their options that take a value."""

_SHELLS: Final = frozenset({"bash", "dash", "ksh", "sh", "zsh"})
_TAKES_COMMAND: Final = re.compile(r"-[a-z]*c")


class _TooDeep(Exception):
    pass


class _Word(msgspec.Struct):
    text: str = ""
    plain: bool = True
    """No part was quoted, so it may be a keyword."""
    known: bool = True
    """The shell expands no part of it."""
    waits: list[str] = []
    """Sleeps in the commands that it is expanded from."""


def long_sleep(command: str) -> str | None:
    """Returns the arguments of the first `sleep` that the command would wait for two seconds or longer; None if there
    is none."""
    try:
        waits = _waits_in(command, 0)
    except _TooDeep:
        return None
    return waits[0] if waits else None


def _waits_in(text: str, nesting: int) -> list[str]:
    """Returns the sleeps that a command would wait for, in order."""
    try:
        if "\\" in text:
            # The reader drops every backslash in double quotes, where bash keeps most: it finds more sleeps.
            raise NotCertain
        script = parse(text)
    except NotCertain:
        # The shared grammar refuses keywords, brackets, expansions, assignments and `&`, which all may surround a
        # sleep. The lenient reader still finds it there.
        return _Reader(text, nesting).commands("")
    words = ([_Word(word) for word in command.words] for command in script.commands)
    return [wait for each in words for wait in _slept(each, nesting)]


class _Reader:
    """Reads as much of the shell's language as it takes to find sleeps in commands that the grammar refuses."""

    def __init__(self, text: str, nesting: int = 0) -> None:
        self._text = text
        self._at = 0
        self._nesting = nesting
        self._depth = 0
        self._documents: list[tuple[str, bool]] = []
        """Here-documents that start on the next line: the word that ends each, and whether tabs may precede it."""

    def commands(self, closer: str, opener: str = "") -> list[str]:
        """Returns the sleeps from here to the closing word, or to the end."""
        waits: list[str] = []
        current: list[str] = []
        """The sleeps since the last semicolon: an ampersand after them moves all of them to the background."""
        words = [_Word(opener)] if opener in _HAS_NAME else []
        redirection = ""
        while (token := self._token()) is not None:
            if isinstance(token, _Word):
                current += token.waits
                if redirection:
                    self._redirected(redirection, token)
                    redirection = ""
                elif words or not token.plain:
                    words.append(token)
                elif token.text == closer:
                    break
                elif token.text in _CLOSERS:
                    current += self._nested(_CLOSERS[token.text], token.text)
                elif token.text not in _LEADING:
                    words.append(token)
            elif token == "(":
                found = self._nested(")")
                is_list_of_values = bool(words) and words[-1].text.endswith("=")
                current += [] if is_list_of_values else found
                redirection = ""
            elif token == ")":
                if closer == ")":
                    break
                words = []  # The words before it are a pattern of a `case`.
            elif token == "&" or token in _ENDS_LIST or token in _JOINS:
                current += _slept(words, self._nesting)
                words = []
                if token in _ENDS_LIST:
                    waits += current
                if token not in _JOINS:
                    current = []
            else:
                redirection = token
        return waits + current + _slept(words, self._nesting)

    def _nested(self, closer: str, opener: str = "") -> list[str]:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _TooDeep
        found = self.commands(closer, opener)
        self._depth -= 1
        return found

    def _redirected(self, operator: str, target: _Word) -> None:
        if operator in ("<<", "<<-"):
            self._documents.append((target.text, operator == "<<-"))

    # Words and operators

    def _token(self) -> _Word | str | None:
        while self._at < len(self._text):
            if blanks := _BLANKS.match(self._text, self._at):
                self._at = blanks.end()
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif operator := _OPERATOR.match(self._text, self._at):
                self._at = operator.end()
                if operator[0] == "\n":
                    self._skip_documents()
                return operator[0]
            else:
                word = self._word()
                if not (word.plain and word.text.isdecimal() and self._next() in ("<", ">")):
                    return word  # Otherwise it is the number of a redirected descriptor.
        return None

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_documents(self) -> None:
        for ending, tabs in self._documents:
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                line = self._text[self._at : len(self._text) if end < 0 else end]
                self._at += len(line) + 1
                if (line.lstrip("\t") if tabs else line) == ending:
                    break
        self._documents = []

    def _word(self) -> _Word:
        word = _Word()
        while self._at < len(self._text) and (letter := self._text[self._at]) not in _ENDS_WORD:
            self._at += 1
            match letter:
                case "\\":
                    word.text += "" if self._next() == "\n" else self._next()
                    word.plain = False
                    self._at += 1
                case "'":
                    self._single_quotes(word)
                case '"':
                    self._double_quotes(word)
                case "$" | "`":
                    self._expanded(letter, word)
                case _:
                    word.text += letter
        return word

    def _single_quotes(self, word: _Word) -> None:
        end = self._text.find("'", self._at)
        end = len(self._text) if end < 0 else end
        word.text += self._text[self._at : end]
        word.plain = False
        self._at = end + 1

    def _double_quotes(self, word: _Word) -> None:
        word.plain = False
        while self._at < len(self._text) and (letter := self._text[self._at]) != '"':
            self._at += 1
            if letter == "\\":
                word.text += self._next()
                self._at += 1
            elif letter in "$`":
                self._expanded(letter, word)
            else:
                word.text += letter
        self._at += 1

    def _expanded(self, letter: str, word: _Word) -> None:
        word.plain = word.known = False
        if letter == "`":
            end = re.compile(r"(?:[^`\\]|\\.)*", re.DOTALL).match(self._text, self._at)
            assert end is not None
            word.waits += _within(end[0].replace("\\`", "`"), self._nesting)
            self._at = end.end() + 1
        elif self._next() == "(":
            self._at += 1
            word.waits += self._nested(")")
        elif self._next() == "{":
            end_of_name = self._text.find("}", self._at)
            self._at = len(self._text) if end_of_name < 0 else end_of_name + 1
        else:
            word.text += letter


# Meaning of words


def _slept(words: list[_Word], nesting: int) -> list[str]:
    """Returns the arguments of a long `sleep` that these words are, or those in the command that they run."""
    limit = float("inf")
    at = 0  # An index, because copies of the rest would take quadratic time: `nice nice nice …`.
    while (at := _after_assignments(words, at)) < len(words):
        name = words[at].text.rsplit("/", 1)[-1]
        at += 1
        if name == "sleep":
            seconds = min(limit, sum(_seconds(word) for word in words[at:]))
            return [" ".join(word.text for word in words[at:])] if seconds >= BLOCKED_SECONDS else []
        if name == "eval":
            return _within(" ".join(word.text for word in words[at:]), nesting)
        if name in _SHELLS:
            return _within(_command_argument(words[at:]), nesting)
        if name not in _RUNNERS:
            return []
        at = _after_options(words, at, _RUNNERS[name])
        if name == "timeout" and at < len(words):
            limit = min(limit, _seconds(words[at]) or limit)
            at += 1
    return []


def _within(text: str, nesting: int) -> list[str]:
    """Returns the sleeps in a text that is a command of its own."""
    return _waits_in(text, nesting + 1) if text and nesting < _MAX_NESTING else []


def _after_assignments(words: list[_Word], at: int) -> int:
    """Skips assignments, and options before the command, such as those of `time`."""
    while at < len(words) and (_ASSIGNMENT.match(words[at].text) or words[at].text.startswith("-")):
        at += 1
    return at


def _after_options(words: list[_Word], at: int, with_value: frozenset[str]) -> int:
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if words[at].text in with_value else 1
    return at


def _command_argument(words: list[_Word]) -> str:
    for at, word in enumerate(words):
        if not word.text.startswith("-"):
            break
        if _TAKES_COMMAND.fullmatch(word.text):
            return words[at + 1].text if at + 1 < len(words) else ""
    return ""


def _seconds(word: _Word) -> float:
    found = _DURATION.fullmatch(word.text) if word.known else None
    return float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
