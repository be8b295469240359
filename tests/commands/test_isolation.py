"""The seam to what confines commands: what is refused, before anything runs unconfined. Needs no sandbox."""

import os
import struct
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Runtime
from holdfast.app import isolation_of
from holdfast.cli.hints import Hints
from holdfast.commands import bubblewrap
from holdfast.commands.bubblewrap import Bubblewrap
from holdfast.commands.errors import IsolationUnavailable
from holdfast.commands.isolation import Unconfined
from holdfast.commands.system_calls import ALLOW, RETURN
from holdfast.config import Config, load
from tests.cli.processes import Place


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Stands where bubblewrap would, and makes no sandbox."""
    folder = tmp_path / "programs"
    folder.mkdir()
    return put(folder / "bwrap", "exit 0")


def put(path: Path, script: str, *, first_line: str = "#!/bin/sh") -> Path:
    path.write_text(f"{first_line}\n{script}\n")
    path.chmod(0o700)
    return path


def confining(program: Path, *hidden: Path, writable: tuple[Path, ...] = (), network: bool = True) -> Bubblewrap:
    return Bubblewrap(network=network, hidden=hidden, writable=writable, search_path=str(program.parent))


async def refusal(isolation: Bubblewrap) -> IsolationUnavailable:
    with pytest.raises(IsolationUnavailable) as refused:
        await isolation.check()
    return refused.value


def refusal_of(isolation: Bubblewrap, directory: Path | str) -> IsolationUnavailable:
    with pytest.raises(IsolationUnavailable) as refused:
        isolation.inside(str(directory))
    return refused.value


async def test_unconfined_commands_run_inside_of_nothing() -> None:
    isolation = Unconfined()
    await isolation.check()
    assert (isolation.name, isolation.inside("/anywhere")) == ("none", ())


# Whether there can be a sandbox


async def test_without_bubblewrap_the_refusal_says_how_to_install_it(tmp_path: Path) -> None:
    isolation = Bubblewrap(network=True, hidden=(), search_path=str(tmp_path))
    found = await refusal(isolation)
    assert found.code == "sandbox_missing"
    assert "Install the package `bubblewrap`, or leave out --sandbox" in found.message
    assert refusal_of(isolation, tmp_path).code == "sandbox_missing"


async def test_without_linux_the_sandbox_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    found = await refusal(Bubblewrap(network=True, hidden=(), search_path=str(tmp_path)))
    assert found.code == "sandbox_unsupported"
    assert "needs Linux" in found.message


async def test_without_namespaces_the_refusal_quotes_bubblewrap(program: Path) -> None:
    put(program, "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
    found = await refusal(confining(program))
    assert found.code == "sandbox_forbidden"
    assert "bwrap: setting up uid map: Permission denied" in found.message
    assert found.message.endswith("or leave out --sandbox (HOLDFAST_SANDBOX=none).")


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces"),
        ("kernel/something_else", "1", "container"),
    ],
)
async def test_the_advice_is_for_what_the_system_forbids(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, advice: str
) -> None:
    told = tmp_path / name
    told.parent.mkdir()
    told.write_text(f"{value}\n")
    monkeypatch.setattr(bubblewrap, "SYSCTLS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    put(program, "exit 1")
    found = await refusal(confining(program))
    assert advice in found.message
    assert "exit code 1" in found.message


async def test_a_program_that_can_not_be_run_is_no_sandbox(program: Path) -> None:
    put(program, "", first_line="\0\0\0\0")
    found = await refusal(confining(program))
    assert found.code == "sandbox_forbidden"
    assert "Exec format error" in found.message


async def test_a_program_that_never_ends_is_no_sandbox(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "CHECK_SECONDS", 0.05)
    put(program, "exec sleep 1000")
    found = await refusal(confining(program))
    assert found.code == "sandbox_forbidden"
    assert "did not end within" in found.message


@pytest.mark.parametrize(
    "script",
    [
        "kill -s SYS $$",
        "exit 159",
    ],
)
async def test_without_a_filter_of_system_calls_there_is_no_sandbox(program: Path, script: str) -> None:
    put(program, script)
    found = await refusal(confining(program))
    assert found.code == "sandbox_unsupported"
    assert "needs a kernel with CONFIG_SECCOMP_FILTER" in found.message


@pytest.mark.parametrize("filter", [b"", b"half", bytes(16)])
async def test_where_the_filter_can_not_be_installed_nothing_is_started(
    program: Path, monkeypatch: pytest.MonkeyPatch, filter: bytes
) -> None:
    monkeypatch.setattr(bubblewrap, "filter_program", lambda machine: filter)
    put(program, f"touch {program.parent}/started")
    found = await refusal(confining(program))
    assert found.code == "sandbox_unsupported"
    assert "(seccomp)" in found.message
    assert not (program.parent / "started").exists()


async def test_the_program_has_the_filter_when_it_starts(program: Path) -> None:
    put(program, f"grep -E '^(Seccomp|NoNewPrivs):' /proc/$$/status > {program.parent}/status")
    await confining(program).check()
    assert (program.parent / "status").read_text().split() == ["NoNewPrivs:", "1", "Seccomp:", "2"]


async def test_a_filter_that_does_not_hold_is_no_sandbox(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowing = struct.pack("<HBBI", RETURN, 0, 0, ALLOW)
    monkeypatch.setattr(bubblewrap, "filter_program", lambda machine: allowing)
    monkeypatch.setattr(bubblewrap, "TRIAL", bubblewrap.TRIAL.replace("/tmp", str(program.parent)))
    put(program, 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    found = await refusal(confining(program))
    assert found.code == "sandbox_unsupported"
    assert f"exit code {bubblewrap.UNFILTERED}" in found.message


async def test_a_machine_without_a_filter_has_no_sandbox(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "here", "6.18", "#1", "riscv64")))
    isolation = confining(program)
    for found in (await refusal(isolation), refusal_of(isolation, tmp_path)):
        assert found.code == "sandbox_unsupported"
        assert "(riscv64), only for x86_64 and aarch64" in found.message
    assert isolation.filter == b""


async def test_the_check_makes_the_sandbox_that_commands_will_have(program: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    put(program, f'for word; do echo "$word"; done > {program.parent}/words')
    isolation = confining(program, Path("/usr/lib"), network=False)
    await isolation.check()
    words = (program.parent / "words").read_text().splitlines()
    inside = isolation.inside(str(hidden))
    bound = ("--ro-bind-fd", "9", bubblewrap.CHECKED)
    assert [word for word in words[: words.index("--chdir")] if word not in bound] == [
        word for word in inside[1 : inside.index("--chdir")] if word not in ("--bind-fd", "9", str(hidden))
    ]
    assert "--unshare-net" in words


def test_the_program_is_the_one_that_was_found_first(program: Path, tmp_path: Path) -> None:
    """A command that may write to a folder on the PATH can't take its place."""
    early = tmp_path / "early"
    early.mkdir()
    isolation = Bubblewrap(network=True, hidden=(), search_path=f"{early}{os.pathsep}{program.parent}")
    put(early / "bwrap", "exec /bin/sh")
    assert isolation.inside(str(tmp_path))[0] == str(program)


# Whether a directory can be worked in


def test_the_folder_of_the_database_can_not_be_worked_in(program: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    isolation = confining(program, tmp_path / "data")
    for directory in (tmp_path / "data", tmp_path / "link", tmp_path / "data" / ".." / "data"):
        found = refusal_of(isolation, directory)
        assert found.code == "sandbox_directory"
        assert "Keep it in a folder of its own (--data-dir)" in found.message


def test_a_file_can_not_be_hidden_where_commands_write(program: Path) -> None:
    """Another could be put in its place, or beside it: a journal, say, that the database would take for its own."""
    here = Path(__file__).parent
    found = refusal_of(confining(program, Path(__file__)), here)
    assert found.code == "sandbox_directory"
    assert str(here) in found.message
    assert confining(program, Path(__file__)).inside("/var/tmp")


@pytest.mark.parametrize("directory", ["/", "/tmp", "/dev", "/proc", "/sys"])
def test_system_folders_are_refused_as_working_directories(program: Path, directory: str) -> None:
    found = refusal_of(confining(program), directory)
    assert found.code == "sandbox_directory"
    assert "Work in a folder below it" in found.message


async def test_the_root_can_not_be_hidden(program: Path) -> None:
    found = await refusal(confining(program, Path("/")))
    assert found.code == "sandbox_directory"


def test_a_missing_folder_is_not_hidden(program: Path) -> None:
    assert "/nowhere/at/all" not in confining(program, Path("/nowhere/at/all")).inside("/var/tmp")


# What the settings come to


def configured(tmp_path: Path, **options: object) -> Config:
    return load({"data_dir": tmp_path / "data", **options}, {})


def test_nothing_is_confined_unless_that_was_asked_for(tmp_path: Path) -> None:
    assert isinstance(isolation_of(configured(tmp_path), {}), Unconfined)


def test_the_folders_of_the_database_are_hidden_wherever_they_are(program: Path, tmp_path: Path) -> None:
    there = Path("/usr/lib")
    config = configured(tmp_path, sandbox="bubblewrap", database=f"sqlite:///{there}/nested/../x.db")
    inside = isolation_of(config, {"PATH": str(program.parent)}).inside("/var/tmp")
    assert ("--tmpfs", str(there)) in pairwise(inside)
    assert "--unshare-net" not in inside
    config = msgspec.structs.replace(config, sandbox_network="off")
    assert "--unshare-net" in isolation_of(config, {"PATH": str(program.parent)}).inside("/var/tmp")


async def test_a_runtime_that_can_not_confine_commands_does_not_start(tmp_path: Path) -> None:
    config = configured(tmp_path, sandbox="bubblewrap")
    with pytest.raises(IsolationUnavailable, match="not installed"):
        await Runtime(config=config, environ={"PATH": str(tmp_path)}).__aenter__()
    assert not config.data_dir.exists()


async def test_a_runtime_that_runs_nothing_needs_no_sandbox(tmp_path: Path) -> None:
    config = configured(tmp_path, sandbox="bubblewrap")
    async with Runtime(config=config, environ={"PATH": str(tmp_path)}, work=False) as runtime:
        assert [found async for found in runtime.sessions()] == []


# At the command line


async def test_a_command_that_can_not_confine_says_what_to_do(tmp_path: Path) -> None:
    place = Place(tmp_path)
    asked: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
        (("run", "hello", "--sandbox"), {}),
        (("run", "hello"), {"HOLDFAST_SANDBOX": "bubblewrap"}),
        (("chat", "--sandbox", "--sandbox-network", "off"), {}),
    )
    for words, environ in asked:
        done = await place.run(*words, PATH=str(tmp_path), **environ)
        assert (done.code, done.out) == (2, "")
        assert "Install the package `bubblewrap`" in done.err
        assert "[sandbox_missing]" in done.err
    assert (
        await place.run("run", "hello", "--no-sandbox", HOLDFAST_SANDBOX="bubblewrap", PATH=str(tmp_path))
    ).code == 0


async def test_a_wrong_choice_is_refused_before_anything_starts(tmp_path: Path) -> None:
    place = Place(tmp_path)
    wrong = await place.run("run", "hello", "--sandbox-network", "perhaps")
    assert (wrong.code, "Allowed: on or off" in wrong.err) == (2, True)
    wrong = await place.run("run", "hello", HOLDFAST_SANDBOX="docker")
    assert (wrong.code, "Allowed: none or bubblewrap" in wrong.err) == (2, True)
    assert not place.data.exists()


async def test_the_doctor_says_whether_there_can_be_a_sandbox(tmp_path: Path, program: Path) -> None:
    place = Place(tmp_path)
    assert "✓ Sandbox: off, so that commands can reach the database. bubblewrap works" in await line(
        place, program.parent
    )
    assert "✓ Sandbox: bubblewrap works here (network on)" in await line(place, program.parent, "--sandbox")
    assert "✗ Sandbox: bubblewrap is not installed" in await line(place, tmp_path, "--sandbox")
    assert "✓ Sandbox: off, so that commands" in await line(place, tmp_path)


async def line(place: Place, programs: Path, *words: str) -> str:
    done = await place.run("doctor", *words, PATH=str(programs))
    return next(line for line in done.out.splitlines() if "Sandbox" in line)


async def test_the_copilot_runtime_takes_it_from_the_environment(tmp_path: Path) -> None:
    place = Place(tmp_path)
    environ: dict[str, Any] = {
        "PATH": str(tmp_path),
        "COPILOT_HOME": str(tmp_path / "home"),
        "HOLDFAST_SANDBOX": "bubblewrap",
    }
    place.command = lambda *words: [sys.executable, "-m", "holdfast.cli.copilot", *words]  # type: ignore[method-assign]
    done = await place.run("--stdio", **environ)
    assert done.code == 2
    assert "[sandbox_missing]" in done.err


async def test_a_suggested_command_keeps_the_sandbox_options() -> None:
    hints = Hints({"sandbox": "bubblewrap", "sandbox_network": "off"})
    assert hints.command("approve", "abc") == "holdfast approve abc --sandbox --sandbox-network off"
    assert hints.command("requests") == "holdfast requests"
    assert Hints({"sandbox": "none"}).command("chat") == "holdfast chat"
