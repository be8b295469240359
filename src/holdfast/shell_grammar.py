"""Takes a shell command apart where its text alone says what bash makes of it; anything else is `NotCertain`. Pure.

Certain are simple commands of literal words (plain ASCII characters, single quotes, double quotes in which nothing is
expanded, backslash escapes) with plain redirections, joined by `&&`, `||`, `;`, `|` and line ends. Certain means that
bash starts exactly these programs with exactly these words, as far as the operators let it. So everything is refused
that the shell fills in (`$`, backquotes, `*`, `?`, `[`, braces, `~`), that is a language of its own (keywords,
assignments, brackets, here-documents, comments, `&`, `!`), that changes what later words mean (most builtins), and
every character that a shell, or a locale, may read differently. The list is of what is understood, not of what is
dangerous: a construct that nobody thought of is refused.
"""

import re
from typing import Final

import msgspec

MAX_CHARACTERS: Final = 5_000
"""A longer command is not taken apart: this happens while everything else waits."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RESERVED_WORDS: Final = _words(
    "! [[ ]] { } case coproc do done elif else esac fi for function if in select then time until while"
)

PLAIN_BUILTINS: Final = _words(": cd echo false kill pwd test true type")
"""Builtins whose words are data, apart from the options in `_EVALUATING_OPTIONS`."""

OTHER_BUILTINS: Final = _words(
    ". [ alias bg bind break builtin caller command compgen complete compopt continue declare dirs disown enable eval "
    "exec exit export fc fg getopts hash help history jobs let local logout mapfile popd printf pushd read readarray "
    "readonly return set shift shopt source suspend times trap typeset ulimit umask unalias unset wait"
)
"""Builtins that run their words, evaluate them (`printf -v 'a[$(id)]'` runs `id`), or change what later commands mean
(`printf %n PATH`)."""

_EVALUATING_OPTIONS: Final = {"test": ("-v", "-R")}
"""Options that take the name of a variable, in which bash evaluates a subscript."""

_PLAIN_CHARACTER: Final = r"(?:[A-Za-z0-9_./,:=@%+^-]|(?<=[A-Za-z0-9_^#~])[#~])"
"""`#` begins a comment and `~` a home directory only where a word begins, `~` also behind `:` and `=`."""

_ODD_CHARACTER: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_BLANKS: Final = re.compile(r"(?:[ \t]|(?<=[ \t])\\\n)+")
_BLANKS_AND_LINE_ENDS: Final = re.compile(r"(?:[ \t\n]|(?<=[ \t])\\\n)+")
_OPERATOR: Final = re.compile(r"&&|\|\||[;|\n]")
_DESCRIPTOR: Final = re.compile(r"[0-9]?([<>]&)([0-9]|-)(?![^ \t\n;|])")
_FILE: Final = re.compile(r"[0-9]?(>>|<|>)(?![<>&|(])")
_LONG_NUMBER: Final = re.compile(r"[0-9]{2,}[<>]")
_PLAIN: Final = re.compile(f"{_PLAIN_CHARACTER}+")
_SINGLE_QUOTED: Final = re.compile(r"'([^']*)'")
_DOUBLE_QUOTED: Final = re.compile(r'"((?:[^"\\$`!]|(?<![^\x00-\x7f])\\[^\n!])*)"')
"""Behind a character that is not ASCII, a backslash is a part of it in some encodings."""
_ESCAPED_IN_QUOTES: Final = re.compile(r'\\(["\\$`])')
_ESCAPED: Final = re.compile(r"\\([ -~])")


class NotCertain(Exception):
    """The text alone does not say for certain what bash makes of the command."""


class Redirection(msgspec.Struct, frozen=True):
    operator: str
    """`<`, `>` or `>>` for a file; `<&` or `>&` for what is open already."""
    target: str


class SimpleCommand(msgspec.Struct, frozen=True):
    """A program and its arguments, just as it is started with them."""

    words: tuple[str, ...]
    redirections: tuple[Redirection, ...] = ()

    @property
    def text(self) -> str:
        """The words in the one way to write them: a space between two, and single quotes where a word needs any."""
        return " ".join(map(_quoted, self.words))


class ShellScript(msgspec.Struct, frozen=True):
    """Simple commands, and the operators between them: `&&`, `||`, `|`, and `;`, which a line end is too."""

    commands: tuple[SimpleCommand, ...]
    operators: tuple[str, ...]


def parse(text: str) -> ShellScript:
    """Raises `NotCertain`."""
    if len(text) > MAX_CHARACTERS or _ODD_CHARACTER.search(text):
        raise NotCertain
    return _Parser(text).script()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def script(self) -> ShellScript:
        self._taken(_BLANKS_AND_LINE_ENDS)
        commands = [self._simple_command()]
        operators: list[str] = []
        while found := self._taken(_OPERATOR):
            operator = ";" if found[0] == "\n" else found[0]
            self._taken(_BLANKS_AND_LINE_ENDS)
            if operator == ";" and self._is_at_end():
                break
            operators.append(operator)
            commands.append(self._simple_command())
        if not self._is_at_end():
            raise NotCertain
        return ShellScript(tuple(commands), tuple(operators))

    def _simple_command(self) -> SimpleCommand:
        words: list[str] = []
        redirections: list[Redirection] = []
        while not self._is_at_end() and not _OPERATOR.match(self._text, self._at):
            if _LONG_NUMBER.match(self._text, self._at):
                raise NotCertain
            if found := self._taken(_DESCRIPTOR):
                redirections.append(Redirection(found[1], found[2]))
            elif found := self._taken(_FILE):
                self._taken(_BLANKS)
                redirections.append(Redirection(found[1], self._word()))
            else:
                words.append(self._word())
            self._taken(_BLANKS)
        _check_program(words)
        return SimpleCommand(tuple(words), tuple(redirections))

    def _word(self) -> str:
        if _DESCRIPTOR.match(self._text, self._at) or _FILE.match(self._text, self._at):
            raise NotCertain
        pieces: list[str] = []
        while (piece := self._piece()) is not None:
            pieces.append(piece)
        if not pieces:
            raise NotCertain
        return "".join(pieces)

    def _piece(self) -> str | None:
        if found := self._taken(_PLAIN):
            return found[0]
        if found := self._taken(_DOUBLE_QUOTED):
            return _ESCAPED_IN_QUOTES.sub(r"\1", found[1])
        found = self._taken(_SINGLE_QUOTED) or self._taken(_ESCAPED)
        return found[1] if found else None

    def _taken(self, expected: re.Pattern[str]) -> re.Match[str] | None:
        found = expected.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def _is_at_end(self) -> bool:
        return self._at == len(self._text)


def _check_program(words: list[str]) -> None:
    """The first word has to name a program, or a builtin that is as plain as one."""
    name = words[0] if words else ""
    # `%1` is a job; and a whole command that begins with a sign is an option of the shell that it is given to.
    if not name or "=" in name or name[0] in "%-+" or name in RESERVED_WORDS or name in OTHER_BUILTINS:
        raise NotCertain
    if any(word.startswith(_EVALUATING_OPTIONS.get(name, ())) for word in words[1:]):
        raise NotCertain


def _quoted(word: str) -> str:
    return word if _PLAIN.fullmatch(word) else "'" + word.replace("'", "'\\''") + "'"
