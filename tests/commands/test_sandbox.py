"""Commands in a real sandbox: what they can reach, and that they run, write and end as they do without one."""

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.app import Runtime
from holdfast.commands import bubblewrap
from holdfast.commands.command import CommandOutcome, KillReport, Limits
from holdfast.commands.commands import Commands
from holdfast.config import load
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from tests.commands.sandboxes import PYTHON, Sandbox, said
from tests.commands.world import (
    PATIENCE_SECONDS,
    everything,
    is_running,
    kill_supervisor,
    new_key,
    outcome,
    ran,
    started,
    told,
    until,
)

OURS = f"8{os.getpid()}"
"""How long our commands sleep begins with it, so that those of another run are not taken for them."""

USERS = Path("/etc/passwd").read_text()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Not in /tmp, of which every command has its own: there, everything would be hidden."""
    # A supervisor may still be about to end in it.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="holdfast-test-", ignore_cleanup_errors=True) as place:
        yield Path(place).resolve()


# What can be reached


async def test_nothing_can_be_written_but_where_the_command_works(commands: Commands, sandbox: Sandbox) -> None:
    outside = (Path("/"), Path("/etc"), Path("/usr"), Path("/var/tmp"), Path.home())
    name = f"holdfast-test-{OURS}"
    tries = "\n".join(f"touch '{place}/{name}' && echo wrote" for place in outside)
    told = await said(commands, sandbox, f"{tries}\necho made > here; cat here")
    assert told.splitlines()[-1] == "made"
    assert told.count("touch: cannot touch") == len(outside)
    assert told.count("Read-only file system") >= 4
    assert [place for place in outside if (place / name).exists()] == []
    assert (sandbox.work / "here").read_text() == "made\n"


async def test_the_directory_of_the_session_can_be_written_from_below(commands: Commands, sandbox: Sandbox) -> None:
    below = sandbox.work / "below"
    below.mkdir()
    command = "pwd; touch ../beside"
    assert await said(commands, sandbox, command, directory=below, root=sandbox.work) == f"{below}\n"
    assert (sandbox.work / "beside").exists()
    assert "Read-only file system" in await said(commands, sandbox, "touch ../again", directory=below)


async def test_the_rest_of_the_machine_can_be_read(commands: Commands, sandbox: Sandbox) -> None:
    assert await said(commands, sandbox, "cat /etc/passwd") == USERS
    assert await said(commands, sandbox, "pwd") == f"{sandbox.work}\n"


async def test_each_command_has_a_tmp_of_its_own(commands: Commands, sandbox: Sandbox) -> None:
    inside = await said(
        commands, sandbox, "echo mine > /tmp/mine; ls -A /tmp; cat $TMPDIR/mine", environment={"TMPDIR": "/x"}
    )
    assert inside == "mine\nmine\n"
    assert "mine" not in os.listdir("/tmp")
    assert await said(commands, sandbox, "cat /tmp/mine") == "cat: /tmp/mine: No such file or directory\n"


async def test_sockets_of_the_desktop_and_of_container_engines_are_not_there(
    commands: Commands, sandbox: Sandbox
) -> None:
    environment = {"XDG_RUNTIME_DIR": "/run/user/0"}
    command = 'ls -A /run | grep -v current-system; echo "[$XDG_RUNTIME_DIR]"'
    assert await said(commands, sandbox, command, network=False, environment=environment) == "[]\n"


async def test_other_processes_and_disks_are_not_there(commands: Commands, sandbox: Sandbox) -> None:
    told = await said(commands, sandbox, f"ls -d /proc/[0-9]* | wc -l; find /dev -type b; kill -0 {os.getpid()}")
    count, refused = told.splitlines()
    assert int(count) < 8
    assert "No such process" in refused


async def test_root_has_no_more_rights_inside_than_others(commands: Commands, sandbox: Sandbox) -> None:
    told = await said(
        commands,
        sandbox,
        "grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status; cd /proc/sys/vm; cat swappiness > swappiness",
    )
    assert told.splitlines()[:3] == ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"]
    assert "Read-only file system" in told or "Permission denied" in told


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


async def test_without_a_network_there_is_only_the_sandbox_itself_to_talk_to(
    commands: Commands, sandbox: Sandbox, listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    look = f"tail -n +3 /proc/net/dev | cut -d: -f1; exec 3<>/dev/tcp/127.0.0.1/{port} && echo through"
    alone = await said(commands, sandbox, look, network=False)
    assert alone.split()[0] == "lo"
    assert len(alone.splitlines()[0].split()) == 1
    assert "Connection refused" in alone
    assert "through" not in alone
    connected = await said(commands, sandbox, look, network=True)
    assert connected.splitlines()[-1] == "through"


async def test_names_are_resolved_although_the_system_keeps_the_way_to_do_so_in_run(
    commands: Commands, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/run is empty inside, and so is /tmp, which stands for it here."""
    with tempfile.NamedTemporaryFile(dir="/tmp") as resolver:
        resolver.write(b"nameserver 192.0.2.1\n")
        resolver.flush()
        link = sandbox.place / "resolv.conf"
        link.symlink_to(resolver.name)
        monkeypatch.setattr(bubblewrap, "RESOLVER", str(link))
        assert await said(commands, sandbox, f"cat '{link}'; touch '{link}'") == (
            f"nameserver 192.0.2.1\ntouch: cannot touch '{link}': Read-only file system\n"
        )
        assert "No such file" in await said(commands, sandbox, f"cat '{link}'", network=False)


# What is hidden


async def test_the_database_and_the_commands_are_not_there(commands: Commands, sandbox: Sandbox, root: Path) -> None:
    sandbox.log.write_text("the latest")
    assert await said(commands, sandbox, f"ls -A '{sandbox.data}' '{root}' | grep -v :") == "\n"
    for hidden in (sandbox.database, sandbox.log, root / "socket", root / "supervisor.lock"):
        assert hidden.exists()
        told = await said(commands, sandbox, f"cat '{hidden}'")
        assert told == f"cat: {hidden}: No such file or directory\n"
    told = await said(commands, sandbox, f"echo forged > '{sandbox.database}'; echo $?")
    assert "Read-only file system" in told
    assert sandbox.database.read_text() == "all sessions"


async def test_files_added_to_a_hidden_folder_later_stay_hidden(commands: Commands, sandbox: Sandbox) -> None:
    key = new_key()
    look = f"echo up; until [ -e go ]; do sleep 0.01; done; ls -A '{sandbox.data}'; echo looked"
    await started(commands, key, sandbox.spec(look))
    await told(commands, key, b"up")
    sandbox.database.unlink()
    sandbox.database.write_text("another")
    sandbox.log.write_text("the latest")
    (sandbox.work / "go").touch()
    await outcome(commands, key)
    assert await everything(commands, key) == b"up\nlooked\n"


async def test_a_command_can_work_inside_a_hidden_folder(commands: Commands, sandbox: Sandbox) -> None:
    here = sandbox.data / "projects" / "one"
    here.mkdir(parents=True)
    told = await said(commands, sandbox, f"echo made > here; cat here; find '{sandbox.data}' -type f", directory=here)
    assert told == f"made\n{here}/here\n"
    assert (here / "here").exists()


async def test_a_command_can_work_in_the_parent_of_a_hidden_folder(commands: Commands, sandbox: Sandbox) -> None:
    look = f"echo made > here; cat here; ls -A '{sandbox.data}'; ls -A"
    told = await said(commands, sandbox, look, directory=sandbox.place)
    assert told == "made\ncommands\ndata\nhere\nwork\n"


async def test_hidden_and_writable_folders_may_lie_in_each_other_to_any_depth(
    commands: Commands, sandbox: Sandbox
) -> None:
    inner = sandbox.data / "open" / "a" / "closed"
    here = inner / "b" / "work"
    here.mkdir(parents=True)
    (inner / "secret").touch()
    (sandbox.data / "open" / "seen").touch()
    told = await said(
        commands,
        sandbox,
        f"touch made; find '{sandbox.place}' -type f | sort; touch ../../../other",
        directory=here,
        hidden=(inner,),
        writable=(sandbox.place, sandbox.data / "open"),
    )
    assert told == f"{here}/made\n{sandbox.data}/open/seen\n"
    assert (sandbox.data / "open" / "a" / "other").exists()


async def test_a_hidden_folder_can_be_neither_uncovered_nor_replaced(commands: Commands, sandbox: Sandbox) -> None:
    hidden = sandbox.work / "share" / "holdfast"
    hidden.mkdir(parents=True)
    (hidden / "holdfast.db").write_text("all sessions")
    tries = f"""
        umount '{hidden}'; mount -o remount,rw '{hidden}'
        unshare --user --map-root-user --mount sh -c "umount '{hidden}'; umount -l '{hidden}'; ls -A '{hidden}'"
        unshare --user --map-root-user --mount sh -c "mount -o remount,rw /; touch /usr/forged"
        rm -rf share; mv share away; rmdir share share/holdfast; ln '{hidden}/holdfast.db' mine
        mkdir -p share/holdfast; echo forged > share/holdfast/holdfast.db
        ls -A
        find . -name holdfast.db
    """
    told = await said(commands, sandbox, tries, hidden=(hidden,))
    assert told.splitlines()[-1] == "share"
    assert "Device or resource busy" in told
    assert (hidden / "holdfast.db").read_text() == "all sessions"
    assert os.listdir(sandbox.work) == ["share"]
    assert "forged" not in os.listdir("/usr")


async def test_a_link_does_not_lead_around_what_is_hidden(commands: Commands, sandbox: Sandbox) -> None:
    (sandbox.work / "link").symlink_to(sandbox.data)
    alias = sandbox.place / "alias"
    alias.symlink_to(sandbox.data)
    seen = await said(commands, sandbox, "ls -A link/", hidden=(alias,))
    assert seen == ""
    elsewhere = sandbox.place / "elsewhere"
    elsewhere.symlink_to(sandbox.work)
    assert "Can't bind mount" in await said(commands, sandbox, "pwd; touch made", directory=elsewhere)
    assert not (sandbox.work / "made").exists()


async def test_a_directory_that_became_a_link_is_not_opened(commands: Commands, sandbox: Sandbox) -> None:
    """Another command of the session may have made it one after somebody looked."""
    outside = sandbox.place / "outside"
    outside.mkdir()
    link = sandbox.work / "below"
    link.symlink_to(outside)
    told = await said(commands, sandbox, "pwd; touch made", directory=link, root=sandbox.work)
    assert told == f"{link}\ntouch: cannot touch 'made': Read-only file system\n"
    assert os.listdir(outside) == []


# What a model meets


def telling(sandbox: Sandbox, command: str) -> tuple[Runtime, str]:
    """A runtime that confines commands, and a model that runs this one and repeats what it is told."""
    script = Script(
        (Rule((Reply(tool_calls=(ScriptedCall("exec", {"command": command}),)), Reply(text="{last_tool_result}"))),)
    )
    config = load(
        {"data_dir": sandbox.data, "database": f"sqlite:///{sandbox.data}/real.db", "sandbox": "bubblewrap"}, {}
    )
    return Runtime(config=config, model=ScriptedModel(script)), command


async def test_the_tools_of_a_runtime_run_in_its_sandbox(sandbox: Sandbox) -> None:
    runtime, command = telling(sandbox, f"ls -A '{sandbox.data}' && pwd && touch made && touch '{sandbox.place}/not'")
    async with runtime:
        session = await runtime.session(working_directory=str(sandbox.work), allow=("shell",))
        turn = await session.run(command)
    assert "Read-only file system" in turn.text
    assert "real.db" not in turn.text
    assert (sandbox.work / "made").exists()


async def test_a_model_learns_why_it_can_not_work_in_a_directory(sandbox: Sandbox) -> None:
    runtime, command = telling(sandbox, "touch made")
    async with runtime:
        session = await runtime.session(working_directory=str(sandbox.data), allow=("shell",))
        turn = await session.run(command)
    assert "Keep it in a folder of its own (--data-dir)" in turn.text
    assert not (sandbox.data / "made").exists()


# Commands run as they do without it


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
        ("trap '' TERM; kill 0; exit 5", 5),
        ("no-such-program", 127),
    ],
)
async def test_the_exit_code_is_the_true_one(commands: Commands, sandbox: Sandbox, command: str, code: int) -> None:
    _, end = await ran(commands, sandbox.spec(command))
    assert (end.reason, end.exit_code, end.left_behind) == ("exited", code, ())


async def test_every_byte_of_both_outputs_arrives(commands: Commands, sandbox: Sandbox) -> None:
    script = sandbox.work / "write.py"
    script.write_text(
        "import os\n"
        "for number in range(40):\n"
        "    os.write(1, bytes(range(256)) * 64)\n"
        "    os.write(2, bytes([number]) * 999)\n"
    )
    key, end = await ran(commands, sandbox.spec(f"exec '{PYTHON}' write.py"))
    assert end.exit_code == 0
    assert (await commands.read(key, 0, 1 << 30, "stdout")).data == bytes(range(256)) * 64 * 40
    assert (await commands.read(key, 0, 1 << 30, "stderr")).data == b"".join(bytes([n]) * 999 for n in range(40))


async def test_processes_that_the_shell_does_not_wait_for_finish_their_output(
    commands: Commands, sandbox: Sandbox
) -> None:
    """Many at once: whoever ended all processes of a sandbox with its shell would cut some of them."""
    ends = [ran(commands, sandbox.spec("seq 1 2000 > >(sort -n | cat)")) for _ in range(8)]
    whole = b"".join(b"%d\n" % number for number in range(1, 2001))
    async with asyncio.timeout(PATIENCE_SECONDS):
        for key, end in await asyncio.gather(*ends):
            assert end.exit_code == 0
            while (await everything(commands, key)) != whole:  # noqa: ASYNC110 - the supervisor is another process
                await asyncio.sleep(0.01)


async def test_leftovers_of_a_sandboxed_command_are_named_and_can_be_killed(
    commands: Commands, sandbox: Sandbox
) -> None:
    both = f"setsid sleep {OURS}1 > /dev/null 2>&1 & sleep {OURS}1 > /dev/null 2>&1 &"
    are_up = "while [ $(grep -l '^sleep$' /proc/[0-9]*/comm 2> /dev/null | wc -l) -lt 2 ]; do :; done"
    key, end = await ran(commands, sandbox.spec(f"{both} {are_up}; exit 4"))
    assert (end.exit_code, [one.name for one in end.left_behind]) == (4, ["sleep", "sleep"])
    report = await commands.kill(key, 10)
    assert all_dead(report)
    assert _sleeps(f"{OURS}1") == []


async def test_the_ceilings_hold(commands: Commands, sandbox: Sandbox) -> None:
    _, end = await ran(commands, sandbox.spec(f"sleep {OURS}2", limits=Limits(seconds=0.5)))
    assert (end.reason, end.escaped) == ("time", ())
    assert _sleeps(f"{OURS}2") == []
    _, end = await ran(commands, sandbox.spec("head -c 9000 /dev/zero > big", limits=Limits(file_bytes=8192)))
    assert (end.exit_code, (sandbox.work / "big").stat().st_size) == (153, 8192)
    key, end = await ran(commands, sandbox.spec("ulimit -v", limits=Limits(memory_bytes=1 << 30)))
    assert await everything(commands, key) == b"%d\n" % (1 << 20)
    key, end = await ran(commands, sandbox.spec("seq 1 100000", limits=Limits(output_bytes=65536)))
    assert (end.exit_code, end.output_bytes) == (0, 588895)


# Kill


def all_dead(report: KillReport) -> bool:
    return report.escaped == () and not any(is_running(one.pid) for one in report.killed)


def ended(report: KillReport) -> CommandOutcome:
    assert report.status.outcome is not None
    return report.status.outcome


async def test_fault_42_kill_reaches_everything_in_the_sandbox(commands: Commands, sandbox: Sandbox) -> None:
    key = new_key()
    escapes = (
        "sleep N3 & setsid sleep N3 & (setsid sleep N3 &); (setsid env -i sleep N3 &); setsid -w env -i sleep N3 &"
    )
    await started(commands, key, sandbox.spec(f"{escapes} wait".replace("N", OURS)))
    await until(lambda: len(_sleeps(f"{OURS}3")) == 5)
    report = await commands.kill(key)
    assert all_dead(report)
    assert _sleeps(f"{OURS}3") == []
    assert [one.name for one in report.killed].count("sleep") == 5
    assert (ended(report).reason, ended(report).exit_code) == ("killed", 143)


async def test_a_command_may_use_its_grace(commands: Commands, sandbox: Sandbox) -> None:
    key = new_key()
    waits = "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done"
    await started(commands, key, sandbox.spec(waits))
    await told(commands, key, b"up")
    report = await commands.kill(key, 20)
    assert all_dead(report)
    assert (ended(report).reason, ended(report).exit_code) == ("killed", 5)
    assert (await commands.read(key, 0, 99, "stdout")).data == b"up\nbye\n"


async def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(commands: Commands, sandbox: Sandbox) -> None:
    key = new_key()
    ignores = f"trap '' TERM INT HUP; (setsid sleep {OURS}4 &); echo up; while :; do sleep 0.01; done"
    await started(commands, key, sandbox.spec(ignores))
    await told(commands, key, b"up")
    report = await commands.kill(key, 0.2)
    assert all_dead(report)
    assert ended(report).exit_code == 137
    assert _sleeps(f"{OURS}4") == []


async def test_a_stopped_command_is_killed(commands: Commands, sandbox: Sandbox) -> None:
    key = new_key()
    await started(commands, key, sandbox.spec(f"echo up; kill -STOP $$; sleep {OURS}5"))
    await told(commands, key, b"up")
    assert all_dead(await commands.kill(key, 20))


async def test_a_command_killed_at_its_start_leaves_nothing(commands: Commands, sandbox: Sandbox) -> None:
    """And nobody waits for the grace of what has not begun."""
    for _ in range(10):
        key = new_key()
        await started(commands, key, sandbox.spec(f"sleep {OURS}6"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            report = await commands.kill(key, 60)
        assert all_dead(report)
        assert ended(report).reason == "killed"
    assert _sleeps(f"{OURS}6") == []


async def test_a_kill_that_comes_before_the_shell_has_become_the_sandbox_ends_what_is_started_in_it(
    commands: Commands, sandbox: Sandbox
) -> None:
    """A copy of the supervisor becomes bubblewrap. Here a shell does, and survives the signal, as that copy does if it
    becomes bubblewrap between the census and the signal."""
    key = new_key()
    spec = sandbox.spec(f"sleep {OURS}8")
    late = 'trap signalled=yes TERM; echo up; until [ $signalled ]; do :; done; exec "$0" "$@"'
    await started(commands, key, msgspec.structs.replace(spec, inside=("/bin/sh", "-c", late, *spec.inside)))
    await told(commands, key, b"up")
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert all_dead(await commands.kill(key, 60))
    assert _sleeps(f"{OURS}8") == []


async def test_a_command_whose_supervisor_died_runs_on_and_can_be_killed(
    commands: Commands, sandbox: Sandbox, root: Path
) -> None:
    key = new_key()
    await started(commands, key, sandbox.spec(f"(setsid sleep {OURS}7 &); echo up; sleep {OURS}7"))
    await told(commands, key, b"up")
    await until(lambda: len(_sleeps(f"{OURS}7")) == 2)
    await kill_supervisor(root)
    status = await commands.status(key)
    assert status is not None
    assert status.state == "unwatched"
    assert len(_sleeps(f"{OURS}7")) == 2
    assert all_dead(await commands.kill(key, 20))
    assert _sleeps(f"{OURS}7") == []


def _sleeps(seconds: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if line == f"sleep\0{seconds}\0".encode() and is_running(int(process.name)):
            found.append(int(process.name))
    return found
