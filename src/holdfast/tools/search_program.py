"""The program that runs `grep` and `glob`: it searches below an open directory and prints the results.

A regular expression can run for ever, and in Python only the end of the process can stop it. So the search is a process
of its own, which uses only the standard library and is killed when it takes too long. It opens nothing through a link,
so that a search never leaves the permitted directory.
"""

import heapq
import json
import os
import re
import resource
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules"})
"""Directories left out of a search, unless the pattern names one."""

MAX_DEPTH = 100
MAX_LINE_BYTES = 1_000_000
"""A longer line is searched in pieces of this size."""

MAX_SHOWN_CHARACTERS = 1_000
"""The part of a line that is shown; longer lines are mostly generated files."""

MAX_MEMORY_BYTES = 2_000_000_000

NOTHING_FOUND = "No matches found."
NO_FILES = "No files matched the pattern."


class BadPattern(Exception):
    """The pattern is invalid. The message is for the model."""


class File(NamedTuple):
    """A file: its open directory, its name there, and its path from the start of the search."""

    directory: int
    name: str
    path: str


class Search:
    """One search and its deadline."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.root: int = asked["root"]
        self.base: str = asked["base"]
        self.pattern: str = asked["pattern"]
        self.limit: int = asked["limit"]
        self.asked = asked
        names = self.pattern if asked["do"] == "glob" else asked["glob"]
        self.skipped = SKIPPED - set(names.split("/"))
        self.ends_at = time.monotonic() + asked["seconds"]
        self.cut_short = False

    def out_of_time(self) -> bool:
        self.cut_short = self.cut_short or time.monotonic() > self.ends_at
        return self.cut_short

    def shown(self, path: str) -> str:
        return printable(f"{self.base.rstrip('/') or '/'}/{path}".replace("//", "/") if path else self.base)


def printable(name: str) -> str:
    """Returns a file name on one line. Characters that would break the line, or are not text, are escaped."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in name)


def say(line: str) -> None:
    sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")


# Directory walk


def files_below(search: Search) -> Iterator[File]:
    """Yields every file in the order of names. Links are neither followed nor yielded; pipes and devices are left
    out."""
    yield from _walk(search, search.root, "", 0)


def _walk(search: Search, directory: int, path: str, depth: int) -> Iterator[File]:
    try:
        with os.scandir(directory) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False), _is_file(entry)) for entry in entries)
    except OSError:
        return  # Unreadable, or removed meanwhile.
    for name, is_directory, is_file in found:
        if search.out_of_time():
            return
        if is_file:
            yield File(directory, name, path + name)
        elif is_directory and name not in search.skipped and depth < MAX_DEPTH:
            with _directory(name, directory) as below:
                if below is not None:
                    yield from _walk(search, below, f"{path}{name}/", depth + 1)


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


@contextmanager
def _directory(name: str, parent: int) -> Iterator[int | None]:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# Name patterns


def glob_regex(pattern: str) -> re.Pattern[str]:
    """Compiles a glob pattern: `*` and `?` stay within a name, `**` is any number of directories, `{a,b}` is one or the
    other."""
    translated = ""
    at = open_braces = 0
    while at < len(pattern):
        piece = re.compile(r"\*\*/|\*+|\[!?\]?[^]]*\]|\\.|.", re.DOTALL).match(pattern, at)
        assert piece is not None, "the last alternative is any character"
        text, at = piece[0], piece.end()
        if text == "{":
            open_braces += 1
            translated += "(?:"
        elif text == "}" and open_braces:
            open_braces -= 1
            translated += ")"
        elif text == "," and open_braces:
            translated += "|"
        else:
            translated += _translated(text)
    if open_braces:
        raise BadPattern(f"The pattern {printable(pattern)} has a {{ without its }}")
    return _compiled(translated, 0)


def _translated(text: str) -> str:
    if text == "**/":
        return "(?:[^/]+/)*"
    if text.startswith("**"):
        return ".*"
    if text == "*":
        return "[^/]*"
    if text == "?":
        return "[^/]"
    if text.startswith("[") and len(text) > 1:
        inner = text[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    return re.escape(text[1:] if text.startswith("\\") and len(text) > 1 else text)


def _compiled(pattern: str, flags: int) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        raise BadPattern(f"The pattern is not a regular expression: {str(error) or type(error).__name__}") from error


# glob


def glob(search: Search) -> None:
    """Prints matching files, the newest first."""
    wanted = glob_regex(search.pattern.removeprefix("./"))
    newest: list[tuple[int, str]] = []
    count = 0
    for file in files_below(search):
        if wanted.fullmatch(file.path):
            count += 1
            found = (_changed_at(file), file.path)
            if len(newest) < search.limit:
                heapq.heappush(newest, found)
            else:
                heapq.heappushpop(newest, found)
    for _, path in sorted(newest, key=lambda found: (-found[0], found[1])):
        say(search.shown(path))
    if not newest:
        say(NO_FILES)
    if count > len(newest):
        say(f"({count - len(newest):,} older files are left out)")


def _changed_at(file: File) -> int:
    try:
        return os.stat(file.name, dir_fd=file.directory, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


# grep


class LimitReached(Exception):
    """The limit of lines has been printed."""


class SearchOutput:
    """Prints the lines of grep, up to a limit."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.printed = 0

    def add(self, line: str) -> None:
        if not self.left:
            raise LimitReached
        self.left -= 1
        self.printed += 1
        say(line)


def grep(search: Search) -> None:
    asked = search.asked
    wanted = _compiled(search.pattern, re.IGNORECASE if asked["ignore_case"] else 0)
    output = SearchOutput(search.limit)
    try:
        for path, file in _opened_files(search):
            with file:
                _grep_file(search, path, file, wanted, output)
            sys.stdout.flush()
            if search.out_of_time():
                break
    except LimitReached:
        say(f"(the first {output.printed:,} lines; there is more: search in a smaller place, or raise head_limit)")
    if not output.printed:
        say(NOTHING_FOUND)


def _opened_files(search: Search) -> Iterator[tuple[str, BinaryIO]]:
    if stat.S_ISREG(os.fstat(search.root).st_mode):
        yield "", os.fdopen(search.root, "rb", closefd=False)
        return
    chosen = _name_filter(search.asked["glob"])
    for file in files_below(search):
        if chosen(file.path) and (opened := _open(file)) is not None:
            yield file.path, opened


def _name_filter(pattern: str) -> Any:
    """Returns a filter for paths. A pattern without a directory matches names in any directory."""
    if not pattern:
        return lambda path: True
    wanted = glob_regex(pattern.removeprefix("./"))
    if "/" in pattern:
        return wanted.fullmatch
    return lambda path: wanted.fullmatch(path.rsplit("/", 1)[-1])


def _open(file: File) -> BinaryIO | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(file.name, flags, dir_fd=file.directory)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")


def _grep_file(search: Search, path: str, file: BinaryIO, wanted: re.Pattern[str], output: SearchOutput) -> None:
    shown = search.shown(path)
    mode = search.asked["output_mode"]
    try:
        if b"\0" in file.read(8192):
            return  # Not text.
        file.seek(0)
        if mode == "content":
            _print_lines(search, shown, file, wanted, output)
            return
        count = 0
        for _, text in _lines(search, file):
            if wanted.search(text):
                count += 1
                if mode == "files_with_matches":
                    break
    except OSError:
        return
    if count:
        output.add(shown if mode == "files_with_matches" else f"{shown}:{count}")


def _print_lines(search: Search, shown: str, file: BinaryIO, wanted: re.Pattern[str], output: SearchOutput) -> None:
    before: deque[tuple[int, str]] = deque(maxlen=search.asked["before"])
    after = last = 0
    for number, text in _lines(search, file):
        if match := wanted.search(text):
            if last and (before[0][0] if before else number) > last + 1 and search.asked["with_context"]:
                output.add("--")
            for earlier, line in before:
                output.add(_line(search, shown, earlier, line, "-"))
            before.clear()
            output.add(_line(search, shown, number, text, ":", match.start()))
            after, last = search.asked["after"], number
        elif after:
            output.add(_line(search, shown, number, text, "-"))
            after, last = after - 1, number
        else:
            before.append((number, text))


def _line(search: Search, shown: str, number: int, text: str, mark: str, around: int = 0) -> str:
    """Formats a line; of a long one, the part around the match."""
    if len(text) > MAX_SHOWN_CHARACTERS:
        start = max(0, around - MAX_SHOWN_CHARACTERS // 4)
        part = text[start : start + MAX_SHOWN_CHARACTERS]
        text = f"{'[…] ' if start else ''}{part}{' […]' if start + len(part) < len(text) else ''}"
    return f"{shown}{mark}{number}{mark}{text}" if search.asked["numbers"] else f"{shown}{mark}{text}"


def _lines(search: Search, file: BinaryIO) -> Iterator[tuple[int, str]]:
    number, is_new_line = 0, True
    while piece := file.readline(MAX_LINE_BYTES):
        number += is_new_line
        is_new_line = piece.endswith(b"\n")
        yield number, piece.rstrip(b"\n").removesuffix(b"\r").decode("utf-8", "replace")
        if number % 1000 == 0 and search.out_of_time():
            return


# The process


def _bound(seconds: float) -> None:
    """Limits CPU time and memory of this process, so that it ends even if its parent does not end it."""
    for what, most in ((resource.RLIMIT_CPU, int(seconds) + 5), (resource.RLIMIT_AS, MAX_MEMORY_BYTES)):
        try:
            resource.setrlimit(what, (most, most))
        except (OSError, ValueError):
            pass  # Not every system has every limit.


def main() -> None:
    search = Search(json.loads(sys.argv[1]))
    _bound(search.asked["seconds"])
    try:
        (glob if search.asked["do"] == "glob" else grep)(search)
        if search.cut_short:
            say(f"(not all of it was searched: {search.asked['seconds']:g} seconds had passed)")
        sys.stdout.flush()
    except BadPattern as error:
        sys.exit(str(error))
    except MemoryError:
        sys.exit("The search needs too much memory")


if __name__ == "__main__":
    main()
