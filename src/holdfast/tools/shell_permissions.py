"""Describes a shell command for the permission request, and decides whether it may be approved for the session.

A command that `shell_grammar` can parse is described by its programs. Any other is one command whose name is its whole
text, which no rule for a program's name matches.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.events.request import PermissionAsk
from holdfast.shell_grammar import (
    MAX_CHARACTERS,
    NotCertain,
    Redirection,
    ShellScript,
    SimpleCommand,
    parse,
)

MAX_INTENTION_CHARACTERS = 500

MAX_LISTED = 50
"""The number of commands, paths and URLs that are listed; people read the command itself."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ_ONLY = _words(
    "basename cat cd cmp comm cut diff dirname du df echo egrep false fgrep grep head id ls md5sum nl pwd readlink "
    "realpath sha256sum sleep stat tac tail tr true uname wc which whoami"
)
"""Programs that change nothing, whatever their arguments."""

RUNS_OTHERS = _words(
    # Shells, and languages that take a program as an argument; then those that run the rest of their arguments.
    "ash awk bash bun busybox csh dash dc deno elixir elvish erl fish gawk gdb ghc ghci gnuplot groovy guile irb "
    "java jrunscript jshell julia ksh lldb lua luajit m4 mawk mksh nawk node nodejs nu ocaml octave osascript "
    "perl php powershell pwsh pypy python r rc rscript ruby scala sh swift tclsh tcsh toybox ts-node tsx wish "
    "xonsh yash zsh "
    "capsh chpst chroot chrt cpulimit dbus-run-session direnv doas docker entr env expect fakeroot faketime find "
    "firejail flock hyperfine ionice ip linux ltrace make nice nohup npx nsenter numactl parallel perf pkexec "
    "podman prlimit proot rlwrap run-parts runcon runuser screen script setarch setpriv setsid sg ssh ssh-agent "
    "sshpass start-stop-daemon stdbuf strace su sudo systemd-run taskset time timeout tmux unbuffer unshare uv "
    "uvx valgrind watch xargs xterm xvfb-run"
)
"""Programs that run other programs given as arguments: approving the name would approve everything."""

PLAIN_PROGRAMS = READ_ONLY | _words(
    "b2sum base32 base64 basenc chgrp chmod chown cksum cp csplit date dd dir expand expr factor fmt fold groups gzip "
    "hexdump hostid join kill link ln logname mkdir mkfifo mktemp mv nproc numfmt od paste pathchk pr printenv ps rev "
    "rm rmdir seq sha1sum sha224sum sha384sum sha512sum shred shuf sum sync tee test touch truncate tsort tty type "
    "uniq unlink uptime users vdir who xxd yes"
)
"""Programs that run nothing else, whatever their arguments are. The list names programs that are known to be safe; no
list could name every program that takes another one in an argument (`choom -- sh`, `ld.so sh`, `tar --to-command`,
`curl --engine`)."""

WITH_SUBCOMMANDS = _words("apt brew cargo conda gh git go helm kubectl npm pip pnpm systemctl yarn")
"""Programs identified together with their subcommand: `git push`. Most of them take a program to run in an option of
any subcommand (`git -c`, `npm --script-shell`, `go build -toolexec`)."""

PLAIN_SUBCOMMANDS = frozenset(
    f"git {name}"
    for name in _words("add branch commit describe ls-files merge-base mv reset restore rev-parse rm status switch tag")
)
"""Subcommands that neither run what an argument says nor write it to a file, as `git push --receive-pack` and `git log
--output` do."""

_NOT_FILES = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
_SUBCOMMAND = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
_VERSION = re.compile(r"(?<=[a-z+])-?[0-9][0-9.]*$")
"""Matches a version: `python3.12` and `clang-15` become `python` and `clang`."""
_URL = re.compile(r"https?://[^\s'\"`<>|;&()\\]+")
_ROUGH_WORD = re.compile(r"[^\s;&|<>()'\"`]+")


class CommandSummary(msgspec.Struct, frozen=True):
    identifier: str
    read_only: bool


class ScriptSummary(msgspec.Struct, frozen=True, kw_only=True):
    commands: tuple[CommandSummary, ...]
    paths: tuple[str, ...]
    writes_files: bool
    can_be_approved_for_session: bool
    understood: bool = True


def shell_ask(command: str, description: str) -> PermissionAsk:
    summary = summarize(command)
    details = {
        "intention": description.strip()[:MAX_INTENTION_CHARACTERS] or "Run a command",
        "fullCommandText": command,
        "commands": [{"identifier": one.identifier, "readOnly": one.read_only} for one in summary.commands],
        "possiblePaths": list(summary.paths),
        "possibleUrls": [{"url": url} for url in _first(_URL.findall(command[:MAX_CHARACTERS]))],
        "hasWriteFileRedirection": summary.writes_files,
        "canOfferSessionApproval": summary.can_be_approved_for_session,
    }
    if not summary.understood:
        details["warning"] = "The text of this command does not show for certain what it starts. Read all of it."
    return PermissionAsk(kind="shell", subject=command, details=details)


def summarize(command: str) -> ScriptSummary:
    """Returns the programs that a command starts, if the text determines them."""
    try:
        return _described(parse(command))
    except NotCertain:
        rough = (path for word in _ROUGH_WORD.findall(command[:MAX_CHARACTERS]) for path in _paths_in(word))
        return ScriptSummary(
            commands=(CommandSummary(command, read_only=False),),
            paths=_first(rough),
            writes_files=">" in command,
            can_be_approved_for_session=False,
            understood=False,
        )


def can_be_widened(identifier: str) -> bool:
    """Whether approving a command may also grant the same program with other arguments. Never if an argument could be
    code, and never for an unknown program: its approval covers only the command that was shown."""
    return identifier in PLAIN_PROGRAMS or identifier in PLAIN_SUBCOMMANDS


def _names(program: str) -> set[str]:
    """Names that a program is known by, whatever its version and folder: `python` for `/usr/bin/python3.12`."""
    name = program.rsplit("/", 1)[-1].lower()
    return {name, _VERSION.sub("", name)}


def _described(script: ShellScript) -> ScriptSummary:
    identifiers = [_identifier(command) for command in script.commands]
    redirections = [redirection for command in script.commands for redirection in command.redirections]
    writes = any(map(_writes, redirections))
    paths = [redirection.target for redirection in redirections if not redirection.operator.endswith("&")]
    paths += (path for command in script.commands for word in command.words for path in _paths_in(word))
    return ScriptSummary(
        commands=tuple(dict.fromkeys(CommandSummary(name, not writes and name in READ_ONLY) for name in identifiers))[
            :MAX_LISTED
        ],
        paths=_first(paths),
        writes_files=writes,
        can_be_approved_for_session=not redirections
        and len(identifiers) <= MAX_LISTED
        and not any(_names(command.words[0]) & RUNS_OTHERS for command in script.commands),
    )


def _identifier(command: SimpleCommand) -> str:
    """Returns the program that a command starts, with its subcommand if the program has subcommands."""
    name, *arguments = command.words
    if arguments and _names(name) & WITH_SUBCOMMANDS and _SUBCOMMAND.fullmatch(arguments[0]):
        return f"{name} {arguments[0]}"
    return name


def _writes(redirection: Redirection) -> bool:
    return redirection.operator in (">", ">>") and redirection.target not in _NOT_FILES


# Paths


def _paths_in(word: str) -> Iterator[str]:
    text = word.partition("=")[2] if word.startswith("-") else word
    if _is_path(text):
        yield text


def _is_path(text: str) -> bool:
    return "://" not in text and ("/" in text or text.startswith(("~", ".."))) and not text.startswith("-")


def _first(found: Iterable[str]) -> tuple[str, ...]:
    """Returns the first entries, each once and in order, no more than people read."""
    return tuple(dict.fromkeys(found))[:MAX_LISTED]
