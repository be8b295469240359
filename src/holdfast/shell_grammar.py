"""Parses a shell command where its text alone determines what bash does; anything else raises `NotCertain`. Pure.

The grammar accepts simple commands of literal words (plain ASCII characters, single quotes, double quotes without
expansions, backslash escapes) with plain redirections, joined by `&&`, `||`, `;`, `|` and line ends. A parse is
certain: bash starts exactly these programs with exactly these words, as far as the operators let it. The grammar
refuses everything that the shell expands (`$`, backquotes, `*`, `?`, `[`, braces, `~`), that is a language of its own
(keywords, assignments, brackets, here-documents, comments, `&`, `!`), that changes the meaning of later words (most
builtins), and every character that shells or locales may read differently. It lists the constructs that are understood,
not those that are dangerous: an unforeseen construct is refused.
"""

import re
from typing import Final

import msgspec

MAX_CHARACTERS: Final = 5_000
"""A longer command is not parsed: parsing blocks the event loop."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RESERVED_WORDS: Final = _words(
    "! [[ ]] { } case coproc do done elif else esac fi for function if in select then time until while"
)

PLAIN_BUILTINS: Final = _words(": cd echo false kill pwd test true type")
"""Builtins that treat their words as data, apart from the options in `_EVALUATING_OPTIONS`."""

OTHER_BUILTINS: Final = _words(
    ". [ alias bg bind break builtin caller command compgen complete compopt continue declare dirs disown enable eval "
    "exec exit export fc fg getopts hash help history jobs let local logout mapfile popd printf pushd read readarray "
    "readonly return set shift shopt source suspend times trap typeset ulimit umask unalias unset wait"
)
"""Builtins that run their words, evaluate them (`printf -v 'a[$(id)]'` runs `id`), or change what later commands mean
(`printf %n PATH`)."""

_EVALUATING_OPTIONS: Final = {"test": ("-v", "-R")}
"""Options that take a variable's name, in which bash evaluates a subscript."""

_PLAIN_CHARACTER: Final = r"(?:[A-Za-z0-9_./,:=@%+^-]|(?<=[A-Za-z0-9_^#~])[#~])"
"""`#` starts a comment and `~` a home directory only at the start of a word, `~` also after `:` and `=`."""

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
"""After a non-ASCII character, a backslash is a part of that character in some encodings."""
_ESCAPED_IN_QUOTES: Final = re.compile(r'\\(["\\$`])')
_ESCAPED: Final = re.compile(r"\\([ -~])")


class NotCertain(Exception):
    """The text alone does not determine what bash does with the command."""


class Redirection(msgspec.Struct, frozen=True):
    operator: str
    """`<`, `>` or `>>` for a file; `<&` or `>&` for an open descriptor."""
    target: str


class SimpleCommand(msgspec.Struct, frozen=True):
    """A program and its arguments, exactly as bash starts it."""

    words: tuple[str, ...]
    redirections: tuple[Redirection, ...] = ()

    @property
    def text(self) -> str:
        """The words in canonical form: separated by one space, single-quoted where a word needs quotes."""
        return " ".join(map(_quoted, self.words))


class ShellScript(msgspec.Struct, frozen=True):
    """Simple commands and the operators between them: `&&`, `||`, `|`, and `;`, which also stands for a line end."""

    commands: tuple[SimpleCommand, ...]
    operators: tuple[str, ...]


def parse(text: str) -> ShellScript:
    """Parses a command. Raises `NotCertain`."""
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
    """Checks that the first word names a program, or a builtin that treats its words as data."""
    name = words[0] if words else ""
    # `%1` is a job; and a command line that begins with a sign is an option of the shell that gets it.
    if not name or "=" in name or name[0] in "%-+" or name in RESERVED_WORDS or name in OTHER_BUILTINS:
        raise NotCertain
    if any(word.startswith(_EVALUATING_OPTIONS.get(name, ())) for word in words[1:]):
        raise NotCertain


def _quoted(word: str) -> str:
    return word if _PLAIN.fullmatch(word) else "'" + word.replace("'", "'\\''") + "'"
