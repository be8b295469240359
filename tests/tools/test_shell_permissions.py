"""What people are told about a command. When in doubt, nothing is read-only and nothing can be approved for good."""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from copilot.generated.session_events import PermissionRequestShell
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from holdfast.tools.shell_permissions import RUNS_OTHERS, shell_ask, understand


def read(command: str, description: str = "") -> PermissionRequestShell:
    """As the real client reads it."""
    return PermissionRequestShell.from_dict(shell_ask(command, description).details)


def commands(command: str) -> dict[str, bool]:
    return {found.identifier: found.read_only for found in read(command).commands}


def test_a_request_has_all_that_the_client_expects() -> None:
    asked = shell_ask("git push origin main && curl https://example.org/x?a=1", "Publish it")
    assert (asked.kind, asked.subject, asked.inside) == (
        "shell",
        "git push origin main && curl https://example.org/x?a=1",
        True,
    )
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
        ("sleep 1 & wait", {"sleep": True, "wait": False}),
        ("./ls x", {"./ls": False}),
        ("/bin/ls", {"/bin/ls": False}),
        ("'my program' --flag", {"my program": False}),
        ("git -C docs status", {"git": False}),
        ("git 'log'", {"git log": False}),
        ("npm test |& tail -5", {"npm test": False, "tail": True}),
        ("echo 'a; rm -rf /' \"&& rm\" \\; rm", {"echo": True}),
        ("echo a#b # rm -rf /\nls", {"echo": True, "ls": True}),
        ("ec\\\nho hi", {"echo": True}),
        ("echo $HOME *.txt {a,b} ~ a=b", {"echo": True}),
        ("echo \"$HOME costs 5$\" '$(rm)' '`rm`'", {"echo": True}),
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
def test_what_is_not_certain_is_one_command_that_no_rule_for_a_program_fits(command: str) -> None:
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
    command = "cp /etc/passwd ../x ~/y ./z docs/a docs/a word --file=/tmp/f -o/x https://a.b/c 2> errors/log"
    assert read(command).possible_paths == [
        "errors/log", "/etc/passwd", "../x", "~/y", "./z", "docs/a", "/tmp/f",
    ]  # fmt: skip
    assert read("echo $(cat /etc/passwd | tee '../x')").possible_paths == ["/etc/passwd", "../x"]


def test_lists_are_short_however_long_the_command_is() -> None:
    wire = read("; ".join(f"p{number} /x/{number} http://h/{number}" for number in range(120)))
    assert (len(wire.commands), len(wire.possible_paths), len(wire.possible_urls)) == (50, 50, 50)
    assert not wire.can_offer_session_approval, "what is not listed would be approved unseen"


@given(command=some.text(alphabet="ab $(){}'\"`\\;&|<>\n#=*!1/-~", max_size=40))
def test_whatever_is_asked_there_is_something_to_show(command: str) -> None:
    found = understand(command)
    assert found.commands
    if not found.understood:
        assert not found.can_be_approved_for_session
    if any(letter in command for letter in "`(") and not any(letter in command for letter in "'\"\\#"):
        assert not found.understood


PIECES = [
    "a",
    "b",
    "a1",
    "$",
    "'",
    '"',
    "\\",
    ";",
    "&",
    "&&",
    "|",
    "||",
    ">",
    "<",
    "2>",
    ">&",
    "#",
    "=",
    "*",
    "!",
    "\n",
    "\t",
]
PIECES += [" ", "{a,b}", "$a", "-"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=some.lists(some.sampled_from(PIECES), max_size=12))
def test_bash_starts_nothing_that_was_not_named(tmp_path: Path, command: list[str]) -> None:
    text = " ".join(command) if len(command) % 2 else "".join(command)
    found = understand(text)
    if not found.understood:
        return
    (tmp_path / "start").write_text('command_not_found_handle() { printf "%s\\0" "$1" >> "$LOG"; }')
    log = tmp_path / "log"
    log.write_text("")
    with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
        environment = {"PATH": "/nowhere", "BASH_ENV": str(tmp_path / "start"), "LOG": str(log)}
        bash = str(shutil.which("bash"))
        subprocess.run([bash, "-c", f"{text}\nwait"], cwd=directory, env=environment, input=b"", capture_output=True)
    assert set(log.read_text().split("\0")[:-1]) <= {found.identifier for found in found.commands}


def test_reading_a_command_takes_no_time() -> None:
    started = time.process_time()
    for command in ("a;" * 2500, "'" * 4999, '"$a' * 1666, "\\\n" * 2500, "&" * 5000, "x " * 2500):
        understand(command)
    assert time.process_time() - started < 2
