"""What people are told about a shell command before it runs, and what they may be offered to approve for good.

A command is taken apart only as far as that is certain. Whatever runs something that can't be read off the text
(substitutions, here-documents, functions, loops, a variable as the command, quotes that do not end) makes the whole of
it one command, whose name is its whole text: no rule for a program's name fits that.
"""

import re
from collections.abc import Iterator

import msgspec

from holdfast.events.request import PermissionAsk

MAX_READ_CHARACTERS = 5_000
"""A longer command is not taken apart: this happens while everything else waits."""

MAX_INTENTION_CHARACTERS = 500

MAX_LISTED = 50
"""Commands, paths and URLs that are listed; people read the command itself."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ_ONLY = _words(
    "basename cat cd cmp comm cut diff dirname du df echo egrep false fgrep grep head id ls md5sum nl pwd readlink "
    "realpath sha256sum sleep stat tac tail tr true uname wc which whoami"
)
"""Programs that change nothing, whatever their arguments are."""

RUNS_OTHERS = _words(
    ". awk bash builtin busybox command dash doas docker env eval exec find gawk ksh make nice node nohup npx "
    "osascript parallel perl php podman python python3 ruby screen script setsid sh source ssh strace su sudo time "
    "timeout tmux trap uv watch xargs zsh"
)
"""Programs whose arguments are programs: to approve the name would be to approve everything."""

WITH_SUBCOMMANDS = _words("apt brew cargo conda gh git go helm kubectl npm pip pip3 pnpm systemctl yarn")
"""Programs that are named together with what they are told to do: `git push`."""

_KEYWORDS = _words(
    "! [[ ]] { } case coproc declare do done elif else esac export fi for function if in let local readonly select set "
    "shopt then time typeset unset until while alias"
)
"""Words that make the text a program of its own, or change what the words after them mean."""

_SEPARATORS = frozenset({";", "&", "&&", "||", "|", "|&", "\n"})
_OPERATOR = re.compile(r"&>>|&>|&&|\|\||\|&|>>|>\||>&|<>|<&|[;&|<>\n]")
_WRITING = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"})
_NOT_FILES = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
_STUCK_TO_DASH = re.compile(r"[ \t]*(?:-[^\s;&|<>]|\\\n)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_SUBCOMMAND = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
_URL = re.compile(r"https?://[^\s'\"`<>|;&()\\]+")
_ROUGH_WORD = re.compile(r"[^\s;&|<>()'\"`]+")


class NotUnderstood(Exception):
    """The command does something that can't be read off its text."""


class Word(msgspec.Struct):
    text: str = ""
    quoted: bool = False
    expands: bool = False
    """A variable, a pattern or braces in it: the shell makes something else of it."""


class Command(msgspec.Struct, frozen=True):
    identifier: str
    read_only: bool


class Understanding(msgspec.Struct, frozen=True, kw_only=True):
    commands: tuple[Command, ...]
    paths: tuple[str, ...]
    writes_files: bool
    can_be_approved_for_session: bool
    understood: bool = True


def shell_ask(command: str, description: str) -> PermissionAsk:
    read = understand(command)
    details = {
        "intention": description.strip()[:MAX_INTENTION_CHARACTERS] or "Run a command",
        "fullCommandText": command,
        "commands": [{"identifier": found.identifier, "readOnly": found.read_only} for found in read.commands],
        "possiblePaths": list(read.paths),
        "possibleUrls": [{"url": url} for url in _first(_URL.findall(command[:MAX_READ_CHARACTERS]))],
        "hasWriteFileRedirection": read.writes_files,
        "canOfferSessionApproval": read.can_be_approved_for_session,
    }
    if not read.understood:
        details["warning"] = "Part of this command is only known when it runs. Read all of it."
    return PermissionAsk(kind="shell", subject=command, details=details)


def understand(command: str) -> Understanding:
    """Which programs a command starts, if that is certain."""
    try:
        if len(command) > MAX_READ_CHARACTERS:
            raise NotUnderstood
        return _taken_apart(list(_tokens(command)))
    except NotUnderstood:
        rough = (word for word in _ROUGH_WORD.findall(command[:MAX_READ_CHARACTERS]) if _is_path(word))
        return Understanding(
            commands=(Command(command, read_only=False),),
            paths=_first(rough),
            writes_files=">" in command,
            can_be_approved_for_session=False,
            understood=False,
        )


def _taken_apart(tokens: list[Word | str]) -> Understanding:
    parts: list[list[Word]] = [[]]
    paths: list[str] = []
    redirects = writes = False
    rest = iter(tokens)
    for token in rest:
        if isinstance(token, Word):
            parts[-1].append(token)
        elif token in _SEPARATORS:
            parts.append([])
        else:
            target = next(rest, None)
            if not isinstance(target, Word):
                raise NotUnderstood  # Also a here-document: one `<` behind another.
            redirects = True
            if not _is_descriptor(token, target):
                writes = writes or _writes(token, target)
                paths.append(target.text)
    found = [_command(words) for words in parts if words]
    if not found:
        raise NotUnderstood
    paths += (path for words in parts for word in words for path in _paths_in(word))
    assigns = any(_is_assignment(words[0]) for words in parts if words)
    harmless = not assigns and not writes
    return Understanding(
        commands=tuple(dict.fromkeys(Command(name, harmless and name in READ_ONLY) for name in found))[:MAX_LISTED],
        paths=_first(paths),
        writes_files=writes,
        can_be_approved_for_session=not assigns
        and not redirects
        and len(found) <= MAX_LISTED
        and not any(name.rsplit("/", 1)[-1] in RUNS_OTHERS for name in found),
    )


def _command(words: list[Word]) -> str:
    """The name of the program that these words start, behind what they assign."""
    while words and _is_assignment(words[0]):
        if words[0].quoted or words[0].expands:
            raise NotUnderstood
        words = words[1:]
    if not words:
        raise NotUnderstood
    first = words[0]
    if first.expands or not first.text or "=" in first.text or first.text in _KEYWORDS:
        raise NotUnderstood
    second = words[1] if len(words) > 1 else Word()
    if first.text in WITH_SUBCOMMANDS and not second.expands and _SUBCOMMAND.fullmatch(second.text):
        return f"{first.text} {second.text}"
    return first.text


def _is_assignment(word: Word) -> bool:
    return _ASSIGNMENT.match(word.text) is not None


def _is_descriptor(operator: str, target: Word) -> bool:
    """`2>&1`: what was opened before, and no file."""
    return operator in (">&", "<&") and re.fullmatch(r"\d+|\d*-", target.text, re.ASCII) is not None


def _writes(operator: str, target: Word) -> bool:
    return operator in _WRITING and (target.expands or target.text not in _NOT_FILES)


# Words and operators


def _tokens(command: str) -> Iterator[Word | str]:
    """The words and operators of a command, in order."""
    word: Word | None = None
    at = 0
    while at < len(command):
        letter = command[at]
        if letter in " \t" or command.startswith("\\\n", at):
            at += 2 if letter == "\\" else 1
            if letter == "\\":
                continue  # A line that goes on; so does its word.
        elif letter == "#" and word is None:
            at = _end_of_line(command, at)
            continue
        elif operator := _OPERATOR.match(command, at):
            if word is not None and operator[0][0] in "<>" and word.text.isdecimal() and not word.quoted:
                word = None  # The number of what is redirected.
            at = operator.end()
            _check_operator(command, operator[0], at)
            if word is not None:
                yield word
            word = None
            yield operator[0]
            continue
        else:
            word = word or Word()
            at = _read_piece(command, at, word)
            continue
        if word is not None:
            yield word
            word = None
    if word is not None:
        yield word


def _end_of_line(command: str, at: int) -> int:
    end = command.find("\n", at)
    return len(command) if end < 0 else end


def _check_operator(command: str, operator: str, end: int) -> None:
    following = command[end : end + 1]
    if operator == ";" and following in (";", "&"):
        raise NotUnderstood  # A branch of a case.
    if operator[-1] in "<>" and following == "(":
        raise NotUnderstood  # A program in place of a file.
    if operator[-1] == "&" and operator[0] in "<>" and _STUCK_TO_DASH.match(command, end):
        raise NotUnderstood  # `>&-` ends at its dash, and what stands behind it is the next word.


def _read_piece(command: str, at: int, word: Word) -> int:
    """Add what stands at `at` to a word, and give back where it ends."""
    letter = command[at]
    if letter in "()`":
        raise NotUnderstood
    if letter == "'":
        return _read_single_quotes(command, at, word)
    if letter == '"':
        return _read_double_quotes(command, at, word)
    if letter == "$":
        return _read_dollar(command, at, word, in_quotes=False)
    if letter == "\\":
        if at + 1 == len(command):
            raise NotUnderstood
        word.text += command[at + 1]
        word.quoted = True
        return at + 2
    if letter in "*?[]{}":
        word.expands = True
    word.text += letter
    return at + 1


def _read_single_quotes(command: str, at: int, word: Word) -> int:
    end = command.find("'", at + 1)
    if end < 0:
        raise NotUnderstood
    word.text += command[at + 1 : end]
    word.quoted = True
    return end + 1


def _read_double_quotes(command: str, at: int, word: Word) -> int:
    word.quoted = True
    at += 1
    while at < len(command):
        letter = command[at]
        if letter == '"':
            return at + 1
        if letter == "`":
            break
        if letter == "$":
            at = _read_dollar(command, at, word, in_quotes=True)
        elif letter == "\\" and command[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n"):
            word.text += command[at + 1].strip("\n")
            at += 2
        else:
            word.text += letter
            at += 1
    raise NotUnderstood


def _read_dollar(command: str, at: int, word: Word, *, in_quotes: bool) -> int:
    """A plain variable is let pass, as long as it is not the command; everything longer is a language of its own."""
    following = command[at + 1 : at + 2]
    if following in ("(", "{", "[") or (following in ("'", '"') and not in_quotes):
        raise NotUnderstood
    if following and (following.isalnum() or following in "_?$@*#!-"):
        word.expands = True
    word.text += "$"
    return at + 1


# Paths


def _paths_in(word: Word) -> Iterator[str]:
    text = word.text.partition("=")[2] if word.text.startswith("-") else word.text
    if _is_path(text):
        yield text


def _is_path(text: str) -> bool:
    return "://" not in text and ("/" in text or text.startswith(("~", ".."))) and not text.startswith("-")


def _first(found: "Iterator[str] | list[str]") -> tuple[str, ...]:
    """Each once, in order, and not more than anybody reads."""
    return tuple(dict.fromkeys(found))[:MAX_LISTED]
