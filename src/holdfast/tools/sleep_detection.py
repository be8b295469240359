"""Finds the waits in a command: a `sleep` that the shell would stand still for. Pure, and no more of a parser than that
needs. Where the text can't be followed nothing is found, and the command simply takes its time.
"""

import re
from typing import Final

import msgspec

BLOCKED_SECONDS: Final = 2.0
"""From here on a sleep is a wait; below it is a pause."""

_MAX_DEPTH: Final = 50
"""Of brackets in brackets. Nobody who means to be understood nests deeper."""

_MAX_TEXTS: Final = 3
"""Of commands in the words of commands: each is read once more, while everything else waits."""

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
"""Behind these no command begins, but a name or a value."""

_LEADING: Final = frozenset({"!", "do", "elif", "else", "then", "time"})
"""Words behind which a command begins."""

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
    """Nothing of it was quoted: it may be a keyword."""
    known: bool = True
    """Nothing of it is filled in by the shell."""
    waits: list[str] = []
    """In the commands that it is filled in from."""


def long_sleep(command: str) -> str | None:
    """What the first `sleep` is told that the command would wait two seconds or longer for; None: it has none."""
    try:
        waits = _Reader(command).commands("")
    except _TooDeep:
        return None
    return waits[0] if waits else None


class _Reader:
    def __init__(self, text: str, texts: int = 0) -> None:
        self._text = text
        self._at = 0
        self._texts = texts
        self._depth = 0
        self._documents: list[tuple[str, bool]] = []
        """Here-documents whose text begins on the next line: the word that ends each, and whether tabs precede it."""

    def commands(self, closer: str, opener: str = "") -> list[str]:
        """The waits in what stands from here to the closing word, or to the end."""
        waits: list[str] = []
        current: list[str] = []
        """Those between two semicolons: with an ampersand behind all of it, nobody waits."""
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
                words = []  # What stood before it is a branch of a case.
            elif token == "&" or token in _ENDS_LIST or token in _JOINS:
                current += self._slept(words)
                words = []
                if token in _ENDS_LIST:
                    waits += current
                if token not in _JOINS:
                    current = []
            else:
                redirection = token
        return waits + current + self._slept(words)

    def _nested(self, closer: str, opener: str = "") -> list[str]:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _TooDeep
        found = self.commands(closer, opener)
        self._depth -= 1
        return found

    def _within(self, text: str) -> list[str]:
        """The waits in a text that is a command of its own."""
        return _Reader(text, self._texts + 1).commands("") if text and self._texts < _MAX_TEXTS else []

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
                    return word  # Else it is the number of what is redirected.
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
                    self._filled_in(letter, word)
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
                self._filled_in(letter, word)
            else:
                word.text += letter
        self._at += 1

    def _filled_in(self, letter: str, word: _Word) -> None:
        word.plain = word.known = False
        if letter == "`":
            end = re.compile(r"(?:[^`\\]|\\.)*", re.DOTALL).match(self._text, self._at)
            assert end is not None
            word.waits += self._within(end[0].replace("\\`", "`"))
            self._at = end.end() + 1
        elif self._next() == "(":
            self._at += 1
            word.waits += self._nested(")")
        elif self._next() == "{":
            end_of_name = self._text.find("}", self._at)
            self._at = len(self._text) if end_of_name < 0 else end_of_name + 1
        else:
            word.text += letter

    # What words mean

    def _slept(self, words: list[_Word]) -> list[str]:
        """What a `sleep` is told, if these words are one and it is long; or those in the text that they are."""
        limit = float("inf")
        while words := _without_assignments(words):
            name = words[0].text.rsplit("/", 1)[-1]
            if name == "sleep":
                seconds = min(limit, sum(_seconds(word) for word in words[1:]))
                return [" ".join(word.text for word in words[1:])] if seconds >= BLOCKED_SECONDS else []
            if name == "eval":
                return self._within(" ".join(word.text for word in words[1:]))
            if name in _SHELLS:
                return self._within(_given_command(words[1:]))
            if name not in _RUNNERS:
                return []
            words = _without_options(words[1:], _RUNNERS[name])
            if name == "timeout" and words:
                limit = min(limit, _seconds(words[0]) or limit)
                words = words[1:]
        return []


def _without_assignments(words: list[_Word]) -> list[_Word]:
    """Also without options that stand before the command, which those of `time` do."""
    at = 0
    while at < len(words) and (_ASSIGNMENT.match(words[at].text) or words[at].text.startswith("-")):
        at += 1
    return words[at:]


def _without_options(words: list[_Word], with_value: frozenset[str]) -> list[_Word]:
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if words[at].text in with_value else 1
    return words[at:]


def _given_command(words: list[_Word]) -> str:
    for at, word in enumerate(words):
        if not word.text.startswith("-"):
            break
        if _TAKES_COMMAND.fullmatch(word.text):
            return words[at + 1].text if at + 1 < len(words) else ""
    return ""


def _seconds(word: _Word) -> float:
    found = _DURATION.fullmatch(word.text) if word.known else None
    return float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
