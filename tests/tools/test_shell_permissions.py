"""The summary of a command for people. In doubt, it is not read-only and can't be approved for always."""

import time

import pytest
from copilot.generated.session_events import PermissionRequestShell
from hypothesis import given
from hypothesis import strategies as some

from holdfast.shell_grammar import OTHER_BUILTINS, RESERVED_WORDS
from holdfast.tools.shell_permissions import (
    RUNS_OTHERS,
    WITH_SUBCOMMANDS,
    can_be_widened,
    shell_ask,
    summarize,
)


def read(command: str, description: str = "") -> PermissionRequestShell:
    """As the real client reads it."""
    return PermissionRequestShell.from_dict(shell_ask(command, description).details)


def commands(command: str) -> dict[str, bool]:
    return {found.identifier: found.read_only for found in read(command).commands}


def test_a_request_has_all_that_the_client_expects() -> None:
    command = "git push origin main && curl 'https://example.org/x?a=1'"
    asked = shell_ask(command, "Publish it")
    assert (asked.kind, asked.subject, asked.inside) == ("shell", command, True)
    wire = PermissionRequestShell.from_dict(asked.details)
    assert wire.full_command_text == asked.subject
    assert wire.intention == "Publish it"
    assert [(found.identifier, found.read_only) for found in wire.commands] == [("git push", False), ("curl", False)]
    assert [found.url for found in wire.possible_urls] == ["https://example.org/x?a=1"]
    assert wire.possible_paths == []
    assert (wire.has_write_file_redirection, wire.can_offer_session_approval, wire.warning) == (False, True, None)
    assert read("true").intention == "Run a command"
    assert len(read("true", "x" * 10_000).intention) == 500


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("ls", {"ls": True}),
        ("ls -la docs | grep x", {"ls": True, "grep": True}),
        ("cd docs && ls; pwd\nwhoami", {"cd": True, "ls": True, "pwd": True, "whoami": True}),
        ("rm -rf docs || echo no", {"rm": False, "echo": True}),
        ("./ls x", {"./ls": False}),
        ("/bin/ls", {"/bin/ls": False}),
        ("'my program' --flag", {"my program": False}),
        ("git -C docs status", {"git": False}),
        ("git 'log'", {"git log": False}),
        ("npm test | tail -5", {"npm test": False, "tail": True}),
        ("npm test 2>&1 | tail -5", {"npm test": False, "tail": True}),
        ("echo 'a; rm -rf /' \"&& rm\" \\; rm", {"echo": True}),
        ("echo a#b HEAD~1 a=b", {"echo": True}),
        ("echo \\\n hi", {"echo": True}),
        ("echo 'costs 5$' '$(rm)' '`rm`'", {"echo": True}),
        ('echo "a\\$(b) \\`c\\`"', {"echo": True}),
        ("ls;ls;ls", {"ls": True}),
        ("make&&make test", {"make": False}),
        ("find . -name x", {"find": False}),
    ],
)
def test_the_programs_that_a_command_starts_are_named(command: str, found: dict[str, bool]) -> None:
    assert commands(command) == found
    assert read(command).warning is None


@pytest.mark.parametrize(
    "command",
    [
        "echo $(rm -rf docs)",
        'echo "$(rm -rf docs)"',
        "echo `rm -rf docs`",
        'echo "`rm -rf docs`"',
        "$PROGRAM x",
        '"$PROGRAM" x',
        "${PROGRAM} x",
        "echo ${X:-$(rm)}",
        "echo $((1 + 1))",
        "echo $[1 + 1]",
        "echo $'a\\'; rm -rf docs'",
        'echo $"a"',
        "l* x",
        "{ls,rm}",
        "{ rm x; }",
        "(rm x)",
        "ls() { rm -rf docs; }; ls",
        "if true; then rm x; fi",
        "for x in a b; do rm $x; done",
        "while true; do ls; done",
        "! ls",
        "[[ -e x ]] && ls",
        "[ -e x ] && ls",
        "case x in x) rm;; esac",
        "case x in x) rm;& esac",
        "cat <<END\n$(rm x)\nEND",
        "cat <<< x",
        "diff <(ls a) <(ls b)",
        "tee >(rm x)",
        "echo 'not closed",
        'echo "not closed',
        "echo x \\",
        "A='$(x)' ls",
        '"A=b" ls',
        "X=1",
        "a[0]=1 ls",
        "alias ls=rm\nls",
        "export PATH=.; ls",
        "time ls",
        "sleep 1 & wait",
        "wait",
        "npm test |& tail -5",
        "echo a # rm -rf /\nls",
        "ec\\\nho hi",
        "echo $HOME",
        'echo "$HOME"',
        "echo *.txt",
        "echo {a,b}",
        "echo ~",
        "A=b ls",
        "echo ${x:=$'\\x60id\\x3ePWN\\x60'}${x@P}",
        "# nothing",
        ";",
        "> file",
        "ls >",
        "ls > ; rm",
        ">&-rm x",
        "ls <& -rm",
        "''",
        "x" * 20_000,
    ],
)
def test_an_uncertain_command_line_matches_no_rule_for_a_program(command: str) -> None:
    wire = read(command)
    assert [(found.identifier, found.read_only) for found in wire.commands] == [(command, False)]
    assert not wire.can_offer_session_approval
    assert wire.warning


@pytest.mark.parametrize(
    ("command", "writes"),
    [
        ("echo x > out.txt", True),
        ("echo x >> out.txt", True),
        ("echo x >| out.txt", True),
        ("echo x &> out.txt", True),
        ("echo x &>> out.txt", True),
        ("echo x >& out.txt", True),
        ("echo x 2>errors", True),
        ("echo x <> out.txt", True),
        ("echo x > $FILE", True),
        ("echo x > '/dev/null '", True),
        ("ls 2>/dev/null", False),
        ("ls > /dev/null 2>&1", False),
        ("ls 2>&1 1>&-", False),
        ("cat < in.txt", False),
        ("cat <&3", False),
        ("echo 'a > b'", False),
        ("echo a \\> b", False),
        ("echo $(x > y)", True),
    ],
)
def test_writing_into_a_file_is_noticed(command: str, writes: bool) -> None:
    wire = read(command)
    assert wire.has_write_file_redirection is writes
    if writes:
        assert not any(found.read_only for found in wire.commands)
    if ">" in command.replace("'a > b'", "").replace("\\>", "") or "<" in command:
        assert not wire.can_offer_session_approval


@pytest.mark.parametrize("name", sorted(RUNS_OTHERS))
def test_a_program_that_runs_others_is_never_approved_by_name(name: str) -> None:
    for command in (f"{name} rm -rf docs", f"ls; {name} x", f"/usr/bin/{name} x"):
        assert not read(command).can_offer_session_approval


def test_a_variable_that_is_set_for_a_command_makes_it_doubtful() -> None:
    for command in ("PATH=. ls", "LD_PRELOAD=./x.so A=1 ls", "PATH+=:. ls", "ls; PATH=. cat x"):
        wire = read(command)
        assert not any(found.read_only for found in wire.commands)
        assert not wire.can_offer_session_approval


def test_paths_that_it_may_touch_are_listed_once() -> None:
    command = "cp /etc/passwd ../x ./z docs/a docs/a word --file=/tmp/f -o/x https://a.b/c 2> errors/log"
    assert read(command).possible_paths == [
        "errors/log", "/etc/passwd", "../x", "./z", "docs/a", "/tmp/f",
    ]  # fmt: skip
    rough = "echo $(cat /etc/passwd | tee '../x') ~/y --file=/tmp/f"
    assert read(rough).possible_paths == ["/etc/passwd", "../x", "~/y", "/tmp/f"]


def test_lists_are_short_however_long_the_command_is() -> None:
    wire = read("; ".join(f"p{number} /x/{number} http://h/{number}" for number in range(120)))
    assert (len(wire.commands), len(wire.possible_paths), len(wire.possible_urls)) == (50, 50, 50)
    assert not wire.can_offer_session_approval, "what is not listed would be approved unseen"


@given(command=some.text(alphabet="ab $(){}'\"`\\;&|<>\n#=*!1/-~", max_size=40))
def test_every_command_line_has_a_summary_to_show(command: str) -> None:
    found = summarize(command)
    assert found.commands
    if not found.understood:
        assert not found.can_be_approved_for_session
    if any(letter in command for letter in "`(") and not any(letter in command for letter in "'\"\\#"):
        assert not found.understood


NAMES = """
ag ansible ansible-playbook ant apt-get aptitude at batch bazel bsdtar bundle bunx c++ cabal cc clang clang++ cmake
composer cpio crontab ctest dart dotnet dpkg ed emacs ex fd fdfind flatpak flutter fzf g++ gcc gem gpg gradle gradlew
install just ld ldd lein less lftp logrotate machinectl man mariadb meson mix more mosh msbuild mvn mysql nano nc ncat
nerdctl netcat ninja nix nix-build nix-shell nmap nvim openssl pico pipx pnpx poetry psql pytest rake rg rpm rpmbuild
rsync run-mailcap rustc sbt scons scp sed sftp socat sort split sqlite stack tar tcpdump terraform tox vagrant vi view
vigr vim vimdiff vipw visudo wget wsl xdg-open zig zip bashbug bwrap c99 choom cpan cpp cscope curl debconf editor
fakeroot-sysv gdbtui git-shell gmake i386 jdb ld.so logsave memusage msgexec newgrp pager patch pdb3
perl5.36-x86_64-linux-gnu perldoc pgbench prove rbash red rvim sensible-editor service slogin sotruss switch_root
systemd-inhibit uclampset valgrind.bin vim.basic x86_64 x86_64-linux-gnu-gcc-12
"""
CAN_RUN_OTHERS = frozenset(NAMES.split())
"""Programs with a way to run what an option, a named file or the other side says (`tar --to-command`, `sed e`), and
those that run the rest of their arguments under names that no list had."""


@pytest.mark.parametrize(
    "identifier",
    [
        *sorted(RUNS_OTHERS | CAN_RUN_OTHERS | WITH_SUBCOMMANDS | OTHER_BUILTINS | RESERVED_WORDS),
        *("python3", "python3.12", "clang-15", "g++-12", "Bash", "PYTHON", "m4", "pip3", "pip3 install"),
        *("git push", "git log", "git config", "git -c", "git status -s", "npm test", "cargo build", "ls -la", "git "),
        *(
            "",
            " ",
            "*",
            "l*",
            "l?",
            "[l]s",
            "ls)",
            "./ls",
            "/bin/ls",
            "a b",
            "ls;id",
            "ls|sh",
            "é",
            "ls\n",
            "-x",
            "A=b",
        ),
    ],
)
def test_a_program_whose_argument_could_be_code_is_approved_with_no_others(identifier: str) -> None:
    assert not can_be_widened(identifier)


@pytest.mark.parametrize("identifier", ["ls", "cat", "grep", "wc", "cd", "echo", "mkdir", "base64", "git add"])
def test_a_plain_program_is_approved_with_other_arguments(identifier: str) -> None:
    assert can_be_widened(identifier)


def test_an_unknown_program_is_approved_as_the_exact_command() -> None:
    assert not can_be_widened("my-tool")


def test_reading_a_command_takes_no_time() -> None:
    started = time.process_time()
    for command in ("a;" * 2500, "'" * 4999, '"$a' * 1666, "\\\n" * 2500, "&" * 5000, "x " * 2500):
        summarize(command)
    assert time.process_time() - started < 2
