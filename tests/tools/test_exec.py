"""`exec`: a command is waited for as long as that was asked for, and never ended for it. Both outputs come back apart,
with the true exit code."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import event_loop
from holdfast.commands import commands
from holdfast.commands.command import CommandKey, Limits, Spec
from holdfast.commands.errors import CommandRefused, IsolationUnavailable, StartTooLate
from holdfast.commands.folder import CommandFolder
from holdfast.commands.processes import boot_seconds
from holdfast.events.request import PermissionAsk
from holdfast.events.tool import ToolCompleted
from holdfast.models.scripted import Reply, ScriptedModel
from holdfast.session.permissions import judge, session_rule
from holdfast.store.clock import SystemClock
from holdfast.store.tasks import TaskEnding
from holdfast.tools import shell
from holdfast.tools.errors import ToolFailure
from holdfast.tools.exec import Exec, exec_tool
from holdfast.turns import cancelled_tools
from tests.faults.world import bodies_of, call, comes_true, patience, runtime_on, scripted, told
from tests.tools.conftest import end_supervisor
from tests.tools.shells import SECRET, Session, decoded, file_says, sessions_in, task_in
from tests.tools.using import asked, context, is_alive

pytestmark = pytest.mark.anyio


def result(stdout: str = "", stderr: str = "", exit_code: int | None = 0) -> dict[str, Any]:
    return {"stdout": stdout, "stderr": stderr, "exit_code": exit_code}


async def whole_file(session: Session) -> bytes:
    """The content of the output file of a session's only command."""
    (row,) = await session.rows()
    return await asyncio.to_thread(Path(row.output_file).read_bytes)


# In the foreground


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("echo hello", result("hello\n")),
        ("printf hello", result("hello")),
        ("true", result()),
        ("echo out; echo err >&2; echo out again; exit 3", result("out\nout again\n", "err\n", 3)),
        ("kill -9 $$", result(exit_code=137)),
        ("kill $$", result(exit_code=143)),
        ("cat; echo nothing to read", result("nothing to read\n")),
        ("yes | head -1", result("y\n")),
        ("set -o pipefail; yes | head -1", result("y\n", exit_code=141)),
        ("yes | head -1 >/dev/null; exit 7", result(exit_code=7)),
        ("exec >&- 2>&-; exit 5", result(exit_code=5)),
        ("(echo deep)\necho 'é\n日'", result("deep\né\n日\n")),
        ("  echo spaces  ", result("spaces\n")),
        ("[[ abc == a* ]] && echo bash", result("bash\n")),
        ("printf '\\303\\251 \\377' | tee /dev/stderr", result("é \ufffd", "é \ufffd")),
        ("printf 'a\\0b\\033[31m'", result("a\0b\x1b[31m")),
    ],
)
async def test_both_outputs_come_back_apart_with_the_exit_code(
    session: Session, home: Path, command: str, told: dict[str, Any]
) -> None:
    assert await session.told(exec_tool, home, command=command) == told


async def test_a_command_that_fails_is_a_result_and_no_error(session: Session, home: Path) -> None:
    found = await session.outcome(exec_tool, home, command="exit 3")
    assert found.success
    assert found.ending is not None
    assert (found.ending.status, found.ending.exit_code, found.went_on) == ("failed", 3, "")
    (row,) = await session.rows()
    assert (row.foreground, row.status, row.exit_code) == (True, "failed", 3)


async def test_a_program_that_there_is_not_is_said_by_the_shell(session: Session, home: Path) -> None:
    told = await session.told(exec_tool, home, command="no-such-program-here")
    assert told["exit_code"] == 127
    assert "no-such-program-here: command not found" in told["stderr"]


async def test_the_file_has_every_byte_as_it_was_written(session: Session, home: Path) -> None:
    await session.outcome(exec_tool, home, command="printf '\\377\\0\\303'")
    assert await whole_file(session) == b"\xff\x00\xc3"


async def test_the_longest_command_fits(session: Session, home: Path) -> None:
    command = "printf '%s' '" + "\N{GRINNING FACE}" * 29_977 + "' | wc -c"
    assert len(command) == 30_000 - 1
    assert (await session.told(exec_tool, home, command=command))["stdout"].strip() == str(29_977 * 4)


async def test_processes_that_a_command_left_running_are_named_and_not_waited_for(session: Session, home: Path) -> None:
    told = await session.told(exec_tool, home, command="sleep 60 & echo $! > child; echo started")
    child = int((home / "child").read_text())
    try:
        assert (told["stdout"], told["exit_code"]) == ("started\n", 0)
        assert f"sleep (pid {child})" in told["note"]
        (row,) = await session.rows()
        assert f"kill_task ends it, with the task_id {row.task_id}." in told["note"]
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


async def test_a_command_inherits_nothing_that_is_open(session: Session, home: Path) -> None:
    inheritable = os.open(home / "a.txt", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    try:
        told = await session.told(exec_tool, home, command=f"cat <&{inheritable}")
    finally:
        os.close(inheritable)
    assert "Bad file descriptor" in told["stderr"]


def open_beside(database: str) -> int:
    """Descriptors of ours that are open, without those of the store, which come and go as they are needed."""
    places = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)]
    return len([place for place in places if database not in place and not place.endswith("/fd")])


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
async def test_nothing_of_ours_stays_open(session: Session, home: Path) -> None:
    await session.outcome(exec_tool, home, command="true")
    before = open_beside("tasks.db")
    for command in ("true", "exit 1", "kill -9 $$", "echo $RANDOM; yes | head -100"):
        await session.outcome(exec_tool, home, command=command)
    await session.outcome(exec_tool, home, command="true", work_dir="gone")
    await comes_true(lambda: open_beside("tasks.db") == before)


# What is asked before


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"command": " \n"}, "^command is required$"),
        ({"command": "echo a\0b"}, "NUL"),
        ({"command": "x" * 30_001}, "at most 30,000 characters"),
        ({"command": "true", "timeout": "soon"}, "timeout"),
        ({"command": "true", "work_dir": "a\0b"}, "NUL"),
        ({"command": "true", "mode": "sync"}, "mode"),
        ({}, "command"),
    ],
)
def test_an_invalid_command_is_refused_before_permission_is_requested(
    home: Path, arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(ToolFailure, match=why):
        asked(exec_tool, home, **arguments)


def test_without_a_working_directory_there_are_no_commands() -> None:
    with pytest.raises(ToolFailure, match="no working directory"):
        asked(exec_tool, None, command="true")


async def test_a_tool_without_commands_says_that_they_can_not_be_run(home: Path) -> None:
    with pytest.raises(ToolFailure, match=r"^commands can't be run here$"):
        await exec_tool.run(Exec(command="true"), context(home))


@pytest.mark.parametrize("command", ["sleep 5", "sleep 5m && echo done", "cd docs && sleep 9", "(sleep 2)"])
def test_a_sleep_in_the_foreground_is_refused_with_advice(home: Path, command: str) -> None:
    told = r"^blocked: sleep \w+ is not allowed in foreground execution\b.*run_in_background.*less than 2 seconds"
    with pytest.raises(ToolFailure, match=told):
        asked(exec_tool, home, command=command)


def test_a_short_sleep_and_one_in_the_background_are_allowed(home: Path) -> None:
    assert asked(exec_tool, home, command="sleep 1").kind == "shell"
    assert asked(exec_tool, home, command="sleep 500", run_in_background=True).kind == "shell"


@pytest.mark.parametrize(
    ("asked_for", "seconds"), [(None, 30), (-3, 1), (0, 1), (0.5, 1), (7.5, 7.5), (300, 300), (9999, 300)]
)
def test_the_wait_is_kept_within_reason(asked_for: float | None, seconds: float) -> None:
    assert Exec(command="true", timeout=asked_for).seconds() == seconds


def test_the_description_says_that_the_time_limits_the_wait_and_names_no_maximum() -> None:
    told = exec_tool.parameters["properties"]["timeout"]
    assert "limits the wait and not the process" in told["description"]
    assert "max" not in str(told).lower()


def test_people_see_where_it_would_run(home: Path) -> None:
    here = asked(exec_tool, home, command="ls", description="List")
    there = asked(exec_tool, home, command="ls", description="List", work_dir="docs")
    assert (here.details["intention"], here.details["possiblePaths"]) == ("List", [])
    assert (there.details["intention"], there.details["possiblePaths"]) == ("List (in docs)", [str(home / "docs")])


# Where it runs


@pytest.mark.parametrize("work_dir", ["docs", "./docs/", "docs/../docs", "to_docs", "to_parent/work/docs"])
async def test_a_command_runs_in_a_directory_inside_the_working_directory(
    session: Session, home: Path, work_dir: str
) -> None:
    assert (await session.told(exec_tool, home, command="pwd", work_dir=work_dir))["stdout"] == f"{home}/docs\n"
    (row,) = await session.rows()
    assert row.directory == f"{home}/docs"


async def test_a_command_without_a_directory_runs_in_the_working_directory(session: Session, home: Path) -> None:
    for work_dir in (None, "", ".", str(home)):
        assert (await session.told(exec_tool, home, command="pwd", work_dir=work_dir))["stdout"] == f"{home}\n"


@pytest.mark.parametrize("work_dir", ["..", "/", "/tmp", "docs/../..", "to_parent", "to_parent/../", "~"])
async def test_fault_58_a_directory_outside_is_refused_also_through_a_link(
    session: Session, home: Path, work_dir: str
) -> None:
    with pytest.raises(ToolFailure, match="work_dir must be inside the working directory"):
        asked(exec_tool, home, command="touch ran", work_dir=work_dir)
    assert await session.rows() == ()


async def test_fault_58_a_link_that_leads_outside_only_when_it_runs_is_refused_then(
    session: Session, home: Path, tmp_path: Path
) -> None:
    arguments = Exec(command="touch ran", work_dir="to_docs")
    permitted = session.context(exec_tool, home, arguments, session.new_call())
    (home / "to_docs").unlink()
    (home / "to_docs").symlink_to(tmp_path)
    with pytest.raises(ToolFailure, match="work_dir must be inside the working directory"):
        await exec_tool.run(arguments, permitted)
    assert exec_tool.shell_arguments is not None
    assert exec_tool.shell_arguments(arguments, home).directory == str(home), "and its row can be written all the same"
    assert not (tmp_path / "ran").exists()


async def test_a_link_that_leads_elsewhere_inside_by_the_time_it_runs_is_not_followed(
    session: Session, home: Path
) -> None:
    (home / "other").mkdir()
    arguments = Exec(command="touch ran", work_dir="to_docs")
    permitted = session.context(exec_tool, home, arguments, session.new_call())
    (home / "to_docs").unlink()
    for leads_to in ("other", "."):
        (home / "to_docs").symlink_to(leads_to)
        with pytest.raises(ToolFailure, match="leads elsewhere than it did when this was permitted; nothing was done"):
            await exec_tool.run(arguments, permitted)
        (home / "to_docs").unlink()
    assert not [place for place in (".", "docs", "other") if (home / place / "ran").exists()]


def allows(rule: str, ask: PermissionAsk) -> bool:
    return judge(ask, tool_name="exec", allow=[rule], unattended=False) == "allow"


def test_an_approval_in_one_directory_covers_no_other(home: Path) -> None:
    (home / "my docs) (in x").mkdir()
    places = [None, "docs", "my docs) (in x"]
    asks = [asked(exec_tool, home, command="rm -rf *", work_dir=place) for place in places]
    forged = [asked(exec_tool, home, command=f"rm -rf * (in {place}) ") for place in places]
    for number, ask in enumerate(asks):
        rule = session_rule(ask, "exec")
        assert [allows(rule, other) for other in asks] == [number == other for other in range(len(asks))]
        assert not any(allows(rule, other) for other in forged)
        assert not allows("shell(rm *)", ask), "which files that would be is not in its text"
    plain = [asked(exec_tool, home, command="rm -rf x", work_dir=place) for place in places]
    assert [allows("shell(rm *)", ask) for ask in plain] == [True, True, True], "a pattern is for all of them"
    assert [allows("shell(rm * (in docs) )", ask) for ask in plain] == [False, True, False]


@pytest.mark.parametrize(("work_dir", "why"), [("gone", "No such file"), ("a.txt", "Not a directory")])
async def test_a_directory_that_is_none_is_said_and_nothing_runs(
    session: Session, home: Path, work_dir: str, why: str
) -> None:
    for in_background in (False, True):
        found = await session.outcome(
            exec_tool, home, command="touch ran", work_dir=work_dir, run_in_background=in_background
        )
        assert not found.success
        assert found.content.startswith("The command can't be started: ")
        assert why in found.content
        assert (found.went_on, found.ending and found.ending.status) == ("", "failed")
    assert {row.status for row in await session.rows()} == {"failed"}


# What it finds there


async def test_fault_61_a_command_finds_nothing_but_harmless_variables_and_those_named_for_it(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOLDFAST_SECRET_KEY", "COPILOT_SDK_AUTH_TOKEN", "OPENAI_API_KEY", "GH_TOKEN", "ANYTHING_ELSE"):
        monkeypatch.setenv(name, "not-for-commands")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    folder = tmp_path / "commands"
    async with sessions_in(folder, tmp_path / "tasks.db", environment={"NAMED": "for it"}) as make:
        session = await make()
        told = await session.told(exec_tool, home, command="env -0; tr '\\0' '\\n' < /proc/$PPID/environ")
        variables = dict(line.split("=", 1) for line in told["stdout"].split("\0") if "=" in line)
    end_supervisor(folder)
    assert "not-for-commands" not in str(told)
    of_bash = {"PWD", "SHLVL", "_", "OLDPWD"}
    allowed = {"PATH", "HOME", "LANG", "LANGUAGE", "TERM", "TMPDIR", "USER", "LOGNAME", "SHELL", "TZ"}
    assert set(variables) - of_bash <= allowed | {"XDG_RUNTIME_DIR", "LC_ALL", "NAMED", "HOLDFAST_COMMAND", "LC_CTYPE"}
    assert (variables["LC_ALL"], variables["NAMED"]) == ("C.UTF-8", "for it")


class Within:
    """Runs commands inside another program, or refuses to."""

    name = "within"
    program = "env"
    filter = b""
    binds_directory = False

    def __init__(self, program: tuple[str, ...]) -> None:
        self._program = program

    async def check(self) -> None:
        return None

    def inside(self, directory: str, *, root: str = "", hidden: Iterable[Path] = ()) -> tuple[str, ...]:
        if not self._program:
            raise IsolationUnavailable("sandbox_directory", f"{directory} can't be confined")
        return (*self._program, f"WITHIN={directory} of {root}")


async def test_a_command_runs_inside_what_confines_it_and_not_without(
    commands_folder: Path, tmp_path: Path, home: Path
) -> None:
    async with sessions_in(commands_folder, tmp_path / "one.db", isolation=Within(("/usr/bin/env",))) as make:
        told = await (await make()).told(exec_tool, home, command="echo $WITHIN", work_dir="docs")
        assert told["stdout"] == f"{home}/docs of {home}\n"
    async with sessions_in(commands_folder, tmp_path / "two.db", isolation=Within(())) as make:
        found = await (await make()).outcome(exec_tool, home, command="touch ran")
        assert (found.success, found.content) == (
            False,
            f"The command can't be started: {home} can't be confined",
        )
        assert found.ending is not None
        assert not (home / "ran").exists()


async def test_known_secrets_are_not_shown_however_they_are_written(session: Session, home: Path) -> None:
    (home / "leak").write_text(f"before {SECRET} after\n")
    found = await session.outcome(exec_tool, home, command="cat leak; cat leak >&2")
    assert decoded(found.content) == result("before [redacted] after\n", "before [redacted] after\n")
    (home / "long").write_text("x" * (32 * 1024 - 9) + SECRET + "y" * 50_000 + SECRET + "z" * (8 * 1024 - 5))
    told = await session.told(exec_tool, home, command="cat long")
    assert not [part for part in ("secr", "value") if part in told["stdout"]]


# Long outputs


async def test_a_long_output_is_cut_in_each_stream_and_whole_in_its_file(session: Session, home: Path) -> None:
    told = await session.told(exec_tool, home, command="seq 100000; seq 3 >&2")
    (row,) = await session.rows()
    head, _, rest = told["stdout"].partition("\n[… about ")
    assert len(head) == 32 * 1024 or len(head.splitlines()) == 500
    assert rest.splitlines()[0].endswith(f"all that the command wrote is in {row.output_file} …]")
    assert rest.splitlines()[1:] == [str(number) for number in range(99_901, 100_001)]
    assert told["stderr"] == "1\n2\n3\n"
    written = await whole_file(session)
    assert [line for line in written.decode().splitlines() if line not in ("1", "2", "3")] == [
        str(number) for number in range(4, 100_001)
    ]


async def test_an_output_that_just_fits_is_whole(session: Session, home: Path) -> None:
    told = await session.told(exec_tool, home, command="seq 2000; head -c 65536 /dev/zero | tr '\\0' x >&2")
    assert told["stdout"].splitlines() == [str(number) for number in range(1, 2_001)]
    assert told["stderr"] == "x" * 65_536


# While it runs


async def test_people_see_what_it_writes_while_it_runs(session: Session, home: Path) -> None:
    command = (
        "echo first é; printf '\\303'; while [ ! -e go-on ]; do sleep 0.01; done; printf '\\251'; cat go; echo last"
    )
    os.mkfifo(home / "go")
    running = asyncio.create_task(session.told(exec_tool, home, command=command))
    await comes_true(lambda: bool(session.shown))
    assert session.shown == ["first é\n"]
    (home / "go-on").touch()
    await comes_true(lambda: len(session.shown) == 2)
    assert session.shown[1] == "é"
    await asyncio.to_thread((home / "go").write_text, "told\n")
    assert (await running)["stdout"] == "first é\nétold\nlast\n"


async def test_a_secret_that_comes_in_two_pieces_is_not_shown_while_it_runs(session: Session, home: Path) -> None:
    for name in ("go", "end"):
        os.mkfifo(home / name)
    (home / "one").write_text(f"begun {SECRET[:9]}")
    (home / "two").write_text(f"{SECRET[9:]} there\n")
    running = asyncio.create_task(session.told(exec_tool, home, command="cat one; cat go two; cat end"))
    await comes_true(lambda: bool(session.shown))
    assert session.shown == ["begun "]
    await asyncio.to_thread((home / "go").write_text, "")
    await comes_true(lambda: "there" in "".join(session.shown))
    assert session.shown == ["begun ", "[redacted] there\n"]
    await asyncio.to_thread((home / "end").write_text, "")
    assert (await running)["stdout"] == "begun [redacted] there\n"


async def test_of_a_flood_no_end_of_a_secret_is_shown(session: Session, home: Path) -> None:
    """It mostly comes in one piece, of which the beginning is left out. The rest begins within a secret."""
    (home / "much").write_text(SECRET * 700 + "yyyyy")
    os.mkfifo(home / "end")
    running = asyncio.create_task(session.told(exec_tool, home, command="cat much; cat end"))
    await comes_true(lambda: "".join(session.shown).endswith("yyyyy"))
    shown = "".join(session.shown).replace("[redacted]", "").removesuffix("yyyyy")
    assert "[redacted]".endswith(shown), "what is left is a part of that, where it was cut"
    await asyncio.to_thread((home / "end").write_text, "")
    await running


async def test_a_flood_is_shown_in_part_and_does_not_hold_up_the_loop(session: Session, home: Path) -> None:
    running = asyncio.create_task(session.outcome(exec_tool, home, command="yes é", timeout=1))
    turns = 0
    while not running.done():
        await asyncio.sleep(0.005)
        turns += 1
    found = await running
    assert turns > 20
    assert found.went_on == "flipped"
    assert len(decoded(found.content)["output_tail"].encode()) <= 4096
    assert session.shown
    assert all(0 < len(text.encode()) <= shell.REPORT_BYTES and "\ufffd" not in text for text in session.shown)


# In the background


async def test_a_command_in_the_background_is_not_waited_for(session: Session, home: Path) -> None:
    os.mkfifo(home / "go")
    found = await session.outcome(
        exec_tool, home, command="cat go; exit 4", description="  Wait\n for  it ", run_in_background=True
    )
    told = decoded(found.content)
    row = await session.row(told["task_id"])
    assert set(told) == {"status", "task_id", "output_file", "message"}
    assert (told["status"], told["output_file"]) == ("background_started", row.output_file)
    assert all(word in told["message"] for word in ("notification", "polling", "sleeping", "not needed"))
    assert (found.success, found.went_on, found.ending) == (True, "started", None)
    assert (row.foreground, row.status, row.description) == (False, "running", "Wait for it")
    await asyncio.to_thread((home / "go").write_text, "went on\n")
    ended = await session.settled(row.task_id)
    assert (ended.status, ended.exit_code, await session.output(row.task_id)) == ("failed", 4, b"went on\n")
    assert [item.notice.kind for item in await session.news() if hasattr(item, "notice")] == ["failed"]


async def test_a_command_that_takes_too_long_goes_on_as_it_was(session: Session, home: Path) -> None:
    """It writes for three seconds, of which one is waited for."""
    command = "echo $$ > pid; for i in {1..30}; do echo line $i; sleep 0.1; done; echo $$ >> pid; exit 5"
    found = await session.outcome(exec_tool, home, command=command, timeout=1)
    told = decoded(found.content)
    row = await session.row(told["task_id"])
    assert set(told) == {"status", "task_id", "output_file", "output_tail", "message"}
    assert (told["status"], told["output_file"]) == ("auto_backgrounded", row.output_file)
    assert told["output_tail"].startswith("line 1\nline 2\n")
    required = ("no work was lost", "1 seconds", "still running", "notification", "run_in_background")
    assert [word for word in required if word not in told["message"]] == []
    assert (found.success, found.went_on, found.ending) == (True, "flipped", None)
    assert (row.foreground, row.status) == (False, "running")
    runner = (await session.status(row.task_id)).runner
    ended = await session.settled(row.task_id)
    assert (ended.status, ended.exit_code) == ("failed", 5)
    assert (await session.output(row.task_id)).decode().splitlines() == [f"line {number}" for number in range(1, 31)]
    assert runner is not None
    assert (home / "pid").read_text() == f"{runner.pid}\n{runner.pid}\n"


async def test_a_command_can_be_moved_to_the_background_before_its_timeout(session: Session, home: Path) -> None:
    os.mkfifo(home / "go")
    running = asyncio.create_task(
        session.outcome(exec_tool, home, command="echo here; touch began; cat go", timeout=300)
    )
    await comes_true((home / "began").exists)
    session.to_background.set()
    found = await running
    told = decoded(found.content)
    assert (found.went_on, told["status"]) == ("flipped", "auto_backgrounded")
    assert all(word in told["message"] for word in ("A person moved", "no work was lost", "still running"))
    assert (await session.row(told["task_id"])).status == "running"


async def test_a_command_whose_supervisor_is_slow_to_answer_goes_on(
    own_session: Session, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(home / "go")
    command = "echo begun; cat go; exit 5"
    running = asyncio.create_task(own_session.outcome(exec_tool, home, command=command, timeout=300))
    await comes_true(lambda: bool(own_session.shown))  # So it was heard that it runs.
    monkeypatch.setattr(commands, "ANSWER_SECONDS", 0.2)
    supervisor = int((tmp_path / "commands" / "supervisor.lock").read_text())
    os.kill(supervisor, signal.SIGSTOP)
    own_session.to_background.set()
    try:
        found = await running
    finally:
        os.kill(supervisor, signal.SIGCONT)
    monkeypatch.undo()
    told = decoded(found.content)
    assert (found.success, found.went_on, told["status"]) == (True, "flipped", "auto_backgrounded")
    assert told["output_tail"] == "begun\n"
    row = await own_session.row(told["task_id"])
    assert (row.status, row.foreground, row.kill_asked) == ("running", False, None)
    await asyncio.to_thread((home / "go").write_text, "went on\n")
    ended = await own_session.settled(row.task_id)
    assert (ended.status, ended.exit_code, await own_session.output(row.task_id)) == ("failed", 5, b"begun\nwent on\n")


async def test_a_command_that_ended_before_its_move_to_the_background_has_a_plain_result(
    session: Session, home: Path
) -> None:
    session.to_background.set()
    for _ in range(3):
        found = await session.outcome(exec_tool, home, command="exit 3")
        if found.went_on:  # The command lost the race, so that it does go on.
            assert (await session.settled(task_in(found))).exit_code == 3
        else:
            assert decoded(found.content) == result(exit_code=3)


# Too many


async def test_more_commands_than_may_run_at_once_are_refused(session: Session, home: Path) -> None:
    session.max_running_tasks = 2
    tasks = [
        task_in(await session.outcome(exec_tool, home, command="sleep 60", run_in_background=True)) for _ in range(2)
    ]
    refused = [
        await session.outcome(exec_tool, home, command="touch ran", run_in_background=in_background)
        for in_background in (True, False)
    ]
    for found in refused:
        assert (found.success, found.went_on) == (False, "")
        assert isinstance(found.ending, TaskEnding)
        assert found.ending.status == "failed"
        assert all(word in found.content for word in ("2 commands", "Wait", "kill"))
    assert not (home / "ran").exists()
    await session.shell.desk.kill(session.key, tasks[0], "person", grace_seconds=0)
    assert (await session.told(exec_tool, home, command="echo room"))["stdout"] == "room\n"


async def test_running_tasks_count_after_the_clock_was_set_back(session: Session, home: Path) -> None:
    session.max_running_tasks = 2
    for _ in range(2):
        row = session.context(exec_tool, home, Exec(command="true"), session.new_call()).command
        assert row is not None
        an_hour_ahead = row.started_at + 3_600_000
        key = f"earlier:{row.tool_call_id}"
        await session._commit(opens_tasks=(replace(row, started_at=an_hour_ahead, call_key=key),))
    found = await session.outcome(exec_tool, home, command="touch ran")
    assert (found.success, "2 commands of this session are running" in found.content) == (False, True)
    assert not (home / "ran").exists()


async def test_of_the_calls_of_one_step_as_many_are_let_through_as_may_run(session: Session, home: Path) -> None:
    session.max_running_tasks = 2
    arguments = Exec(command="tail -f /dev/null", run_in_background=True)
    contexts = [session.context(exec_tool, home, arguments, session.new_call()) for _ in range(4)]
    for given in contexts:
        await session._commit(opens_tasks=(given.command,))
    found = await asyncio.gather(*(exec_tool.run(arguments, given) for given in contexts))
    assert sorted(one.went_on for one in found) == ["", "", "started", "started"]


# Its end


FAMILY = """
echo $$ > shell
bash -c 'trap "" TERM; echo $$ > stubborn; for n in {1..600}; do sleep 0.1; done' &
bash -c 'echo $$ > child; sleep 60 & echo $! > grandchild; echo > all-here; wait' | cat
"""
"""A shell, children of which one refuses to end when it is asked, and a grandchild."""


async def all_here(home: Path) -> list[int]:
    await file_says(home / "all-here")
    return [int(await file_says(home / name)) for name in ("shell", "stubborn", "child", "grandchild")]


async def all_gone(family: list[int]) -> None:
    await comes_true(lambda: not any(is_alive(pid) for pid in family))


async def test_a_stop_ends_all_that_it_started(session: Session, home: Path) -> None:
    running = asyncio.create_task(session.outcome(exec_tool, home, command=FAMILY))
    family = await all_here(home)
    assert [pid for pid in family if not is_alive(pid)] == []
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [pid for pid in family if is_alive(pid)] == []


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21])
async def test_a_stop_finds_a_command_that_is_only_just_starting(session: Session, home: Path, turns: int) -> None:
    running = asyncio.create_task(session.outcome(exec_tool, home, command="tail -f /dev/null & tail -f /dev/null"))
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    listed = await session.shell.commands.listed()
    assert [status for status in listed if status.key.session == session.key.session] == []


async def test_a_second_stop_does_not_save_what_the_first_is_ending(session: Session, home: Path) -> None:
    running = asyncio.create_task(session.outcome(exec_tool, home, command=FAMILY))
    family = await all_here(home)
    running.cancel()
    await comes_true(lambda: not is_alive(family[0]))
    running.cancel()  # The one that refuses is still there, if this came in time.
    with pytest.raises(asyncio.CancelledError):
        await running
    await all_gone(family)


async def test_a_command_that_is_asked_to_end_may_tidy_up(
    session: Session, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "GRACE_SECONDS", 20)
    command = "trap ': > tidied; exit' TERM; touch all-here; while :; do sleep 0.01; done"
    running = asyncio.create_task(session.outcome(exec_tool, home, command=command))
    await comes_true((home / "all-here").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (home / "tidied").exists()


def test_a_command_runs_and_is_stopped_under_uvloop_too(commands_folder: Path, tmp_path: Path, home: Path) -> None:
    async def both() -> dict[str, Any]:
        async with sessions_in(commands_folder, tmp_path / "tasks.db") as make:
            session: Session = await make()
            told = await session.told(exec_tool, home, command="echo hi; echo err >&2; exit 3")
            running = asyncio.create_task(session.outcome(exec_tool, home, command=FAMILY))
            family = await all_here(home)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await all_gone(family)
            return told

    assert event_loop.run(both()) == result("hi\n", "err\n", 3)


async def test_a_command_killed_from_elsewhere_says_so(session: Session, home: Path) -> None:
    running = asyncio.create_task(
        session.outcome(exec_tool, home, command="echo begun; touch here; exec tail -f /dev/null")
    )
    await comes_true((home / "here").exists)
    (row,) = await session.rows()
    await session.shell.desk.kill(session.key, row.task_id, "person", grace_seconds=20)
    found = await running
    told = decoded(found.content)
    assert (found.success, told["stdout"], told["exit_code"]) == (False, "begun\n", 143)
    assert "killed" in told["error"]
    assert found.ending is not None
    assert found.ending.status == "killed"


async def test_a_command_at_its_time_limit_has_failed_and_says_why(
    commands_folder: Path, tmp_path: Path, home: Path
) -> None:
    async with sessions_in(commands_folder, tmp_path / "tasks.db", limits=Limits(seconds=1)) as make:
        found = await (await make()).outcome(exec_tool, home, command="echo begun; exec tail -f /dev/null")
    told = decoded(found.content)
    assert (found.success, told["stdout"]) == (False, "begun\n")
    assert "longer than its limit of 1 seconds" in told["error"]
    assert found.ending is not None
    assert found.ending.status == "failed"


@pytest.fixture
async def own_session(tmp_path: Path) -> AsyncIterator[Session]:
    """A session whose supervisor may be killed."""
    folder = tmp_path / "commands"
    async with sessions_in(folder, tmp_path / "tasks.db") as make:
        yield await make()
    end_supervisor(folder)


async def test_when_its_supervisor_dies_the_outcome_is_unknown(
    own_session: Session, home: Path, tmp_path: Path
) -> None:
    command = "echo begun; echo $$ > pid; exec tail -f /dev/null"
    running = asyncio.create_task(own_session.outcome(exec_tool, home, command=command))
    pid = int(await file_says(home / "pid"))
    (row,) = await own_session.rows()
    await file_says(Path(row.output_file))
    os.kill(int((tmp_path / "commands" / "supervisor.lock").read_text()), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    found = await running
    told = decoded(found.content)
    assert (found.success, told["stdout"], told["exit_code"]) == (False, "begun\n", None)
    assert "unknown: check before doing it again" in told["error"]
    assert found.ending is not None
    assert found.ending.status == "lost"


# After a crash


WATCHED = "echo $$ >> ran; echo begun; cat go; exit 7"


async def let_go(session: Session, home: Path, command: str = WATCHED, **arguments: Any) -> Any:
    """A first attempt whose process lets go of the session while its command runs."""
    os.mkfifo(home / "go")
    session.is_interrupted = False
    name = session.new_call()
    running = asyncio.create_task(session.outcome(exec_tool, home, name, command=command, **arguments))
    await file_says(home / "ran")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    session.is_interrupted = True
    return name


async def test_the_next_attempt_goes_on_with_the_same_command(session: Session, home: Path) -> None:
    name = await let_go(session, home)
    pid = int(await file_says(home / "ran"))
    assert is_alive(pid), "a process that only lets go ends nothing"
    again = asyncio.create_task(session.outcome(exec_tool, home, name, 2, command=WATCHED))
    await asyncio.to_thread((home / "go").write_text, "went on\n")
    assert decoded((await again).content) == result("begun\nwent on\n", exit_code=7)
    assert (home / "ran").read_text() == f"{pid}\n"


async def test_the_next_attempt_learns_of_an_unseen_end(session: Session, home: Path) -> None:
    name = await let_go(session, home)
    await asyncio.to_thread((home / "go").write_text, "went on\n")
    (row,) = await session.rows()
    await session.ended(row.task_id)
    found = await session.outcome(exec_tool, home, name, 2, command=WATCHED)
    assert decoded(found.content) == result("begun\nwent on\n", exit_code=7)
    assert len((home / "ran").read_text().splitlines()) == 1


async def test_the_next_attempt_says_that_what_it_wrote_is_not_kept_any_more(session: Session, home: Path) -> None:
    name = await let_go(session, home)
    await asyncio.to_thread((home / "go").write_text, "went on\n")
    (row,) = await session.rows()
    await session.ended(row.task_id)
    CommandFolder(Path(row.output_file).parent).remove_output()
    found = await session.outcome(exec_tool, home, name, 2, command=WATCHED)
    assert decoded(found.content) == result(exit_code=7) | {"note": "What it wrote is not kept any more."}


async def test_the_next_attempt_waits_only_for_what_is_left(
    session: Session, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await let_go(session, home, timeout=300)
    (row,) = await session.rows()
    assert await file_says(Path(row.output_file)) == "begun", "its supervisor writes it down when it gets to it"
    later = SimpleNamespace(time=lambda: time.time() + 301)
    monkeypatch.setattr(shell, "time", later)
    found = await session.outcome(exec_tool, home, name, 2, command=WATCHED, timeout=300)
    assert (found.went_on, decoded(found.content)["output_tail"]) == ("flipped", "begun\n")


async def test_the_next_attempt_starts_what_the_first_did_not(session: Session, home: Path) -> None:
    """It is one command still, also where there is room for one only."""
    session.max_running_tasks = 1
    name = session.new_call()
    await session.attempted(exec_tool, home, name, command="echo begun")
    (first,) = await session.rows()
    await comes_true(lambda: SystemClock().now_ms() > first.started_at)
    found = await session.outcome(exec_tool, home, name, 2, command="echo begun")
    assert decoded(found.content) == result("begun\n")


async def test_the_next_attempt_is_not_refused_because_the_first_one_runs(session: Session, home: Path) -> None:
    name = await let_go(session, home, run_in_background=False)
    session.max_running_tasks = 0
    found = await session.outcome(exec_tool, home, name, 2, command=WATCHED, run_in_background=True)
    assert found.went_on == "started"


async def test_the_next_attempt_on_another_machine_starts_nothing(session: Session, home: Path) -> None:
    name = await let_go(session, home)
    session.shell.desk.host = "another"
    with pytest.raises(ToolFailure, match=r"on another machine.*unknown: check before doing it again"):
        await session.outcome(exec_tool, home, name, 2, command=WATCHED)
    assert len((home / "ran").read_text().splitlines()) == 1


async def test_an_attempt_starts_nothing_once_its_lease_may_be_over(
    session: Session, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was frozen; another one may have taken over, and may have started the same command."""
    session.lease_seconds_left, session.is_interrupted = 0.0, False
    late = asyncio.create_task(session.outcome(exec_tool, home, command="touch late"))
    tries = await refusals(monkeypatch, 3)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    assert tries == [StartTooLate] * 3
    assert "late" not in os.listdir(home)


async def test_an_attempt_that_came_too_late_is_repeated_once_its_lease_is_renewed(
    session: Session, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor was slow: no other process has the session."""
    session.lease_seconds_left = 0.0
    slow = asyncio.create_task(session.told(exec_tool, home, command="echo x >> ran; echo done"))
    await refusals(monkeypatch, 2)
    session.lease_seconds_left = 20.0
    assert await slow == result("done\n")
    assert (home / "ran").read_text() == "x\n"


async def refusals(monkeypatch: pytest.MonkeyPatch, count: int) -> list[type[CommandRefused]]:
    """Waits until that many requests to start a command were refused."""
    seen: list[type[CommandRefused]] = []
    start = commands.Commands.start

    async def watched(
        self: commands.Commands, key: CommandKey, spec: Spec, *, start_before: float
    ) -> commands.Started | commands.AlreadyThere:
        try:
            return await start(self, key, spec, start_before=start_before)
        except CommandRefused as refused:
            seen.append(type(refused))
            raise

    with monkeypatch.context() as patched:
        patched.setattr(commands.Commands, "start", watched)
        await comes_true(lambda: len(seen) >= count)
    return seen


# In a session


async def test_a_command_is_started_only_while_the_lease_of_its_turn_lasts(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease as it is when the request is sent, which its renewals extend."""
    start = commands.Commands.start
    spans: list[tuple[float, float]] = []

    async def watched(
        self: commands.Commands, key: CommandKey, spec: Spec, *, start_before: float
    ) -> commands.Started | commands.AlreadyThere:
        spans.append((start_before, boot_seconds()))
        return await start(self, key, spec, start_before=start_before)

    monkeypatch.setattr(commands.Commands, "start", watched)
    model = scripted(call("exec", command="true"), Reply(text="Done."))
    async with runtime_on(tmp_path / "holdfast.db", model, lease_ttl_seconds=30.0) as runtime, patience():
        session = await runtime.session(working_directory=str(home), allow=("shell",))
        runtime.worker.keeper._trusted_until -= 20.0  # As if it had not been able to renew for so long.
        left = runtime.worker.keeper.seconds_left()
        await session.run("Go")
    ((start_before, sent),) = spans
    assert sent < start_before < sent + left


async def test_a_stop_of_the_turn_ends_the_command_and_is_its_result(tmp_path: Path, home: Path) -> None:
    model = scripted(call("exec", command=FAMILY), Reply(text="Never said."))
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime, patience():
        session = await runtime.session(working_directory=str(home), allow=("shell",))
        sent = await session.send("Go")
        family = await all_here(home)
        await session.stop()
        assert (await session.result_of(sent.message_id)).reason == "stopped"
        await all_gone(family)
        (found,) = await bodies_of(session, ToolCompleted)
        assert (found.success, found.error) == (False, "interrupted")


async def test_a_stop_of_the_turn_says_that_the_user_stopped_the_command_and_what_it_had_written(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelled_tools, "GIVE_UP_SECONDS", 20)
    command = "echo step 1 of 3; echo careful >&2; touch begun; exec tail -f /dev/null"
    model = ScriptedModel(told(go=(call("exec", command=command),), became=(Reply(text="{last_tool_result}"),)))
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime, patience():
        session = await runtime.session(working_directory=str(home), allow=("shell",))
        sent = await session.send("Go")
        await comes_true((home / "begun").exists)
        await session.stop()
        assert (await session.result_of(sent.message_id)).reason == "stopped"
        (found,) = await bodies_of(session, ToolCompleted)
        assert (found.success, found.error) == (False, "interrupted")
        said, known, *written = found.content.splitlines()
        assert said == "The user stopped the turn while this tool ran, which was ended. What is known of it:"
        assert known == "The command was killed. It had written:"
        assert sorted(written) == ["careful", "step 1 of 3"]
        assert (await session.run("What became of it?")).text == found.content, "the model reads the same"


async def test_a_blocked_sleep_is_an_error_without_a_request(tmp_path: Path, home: Path) -> None:
    model = scripted(call("exec", command="sleep 10"), Reply(text="{last_tool_result}"))
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime, patience():
        session = await runtime.session(working_directory=str(home))
        assert (await session.run("Go")).text.startswith("blocked: sleep 10 is not allowed in foreground execution")
        (found,) = await bodies_of(session, ToolCompleted)
        assert not found.success


async def test_a_command_asks_and_is_denied_when_unattended(tmp_path: Path, home: Path) -> None:
    model = scripted(call("exec", command="touch ran"), Reply(text="I see."))
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime, patience():
        attended, alone = [await runtime.session(working_directory=str(home)) for _ in range(2)]
        waiting = await attended.run("Go")
        assert [(request.kind, request.title) for request in waiting.requests] == [("permission", "shell touch ran")]
        assert (await alone.run("Go", unattended=True)).text == "I see."
        assert not (home / "ran").exists()


async def test_a_dry_run_runs_no_command(tmp_path: Path, home: Path) -> None:
    model = scripted(call("exec", command="touch ran"), Reply(text="{last_tool_result}"))
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime, patience():
        session = await runtime.session(working_directory=str(home), dry_run=True)
        assert (await session.run("Go")).text == "(dry run: exec was not run; suppose that it succeeded)"
        assert not (home / "ran").exists()
