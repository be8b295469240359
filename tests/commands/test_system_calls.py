"""The filter of system calls: its program, run here by hand, and the commands that the kernel runs it for."""

import asyncio
import os
import re
import shutil
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.commands.commands import Commands
from holdfast.commands.system_calls import (
    ALLOW,
    KILL_PROCESS,
    LAST_CALL,
    MACHINES,
    REFUSE,
    RULES,
    filter_program,
)
from tests.commands.sandboxes import PYTHON, Sandbox, said
from tests.commands.world import everything, ran

ALLOWED = "allowed"
KILLED = "killed"

HERE = -100
"""AT_FDCWD"""

O_CREAT, O_TMPFILE = 0o100, 0o20200000
SET_USER_ID, SET_GROUP_ID = 0o4755, 0o2755

HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
"""Where the system may keep the kernel's own tables of numbers. All machines have both."""

BEFORE_ALL_HAD_THEM = {"fchmodat2"}
"""Calls that older headers lack."""


def decided(machine: str, number: int, *arguments: int, audit: int | None = None) -> str | int:
    """Runs the filter as the kernel does: whether it allows a call, or kills its process, or which error it returns."""
    audit = MACHINES[machine].audit if audit is None else audit
    whole = [argument & 0xFFFF_FFFF_FFFF_FFFF for argument in (*arguments, *[0] * (6 - len(arguments)))]
    returned = run(filter_program(machine), struct.pack("<IIQ6Q", number, audit, 0, *whole))
    if returned == ALLOW:
        return ALLOWED
    if returned == KILL_PROCESS:
        return KILLED
    assert returned & 0xFFFF0000 == REFUSE
    return os.strerror(returned & 0xFFFF)


def run(program: bytes, data: bytes) -> int:
    """Runs classic BPF, as far as filters use it."""
    instructions = list(struct.iter_unpack("<HBBI", program))
    accumulator = at = 0
    while True:
        code, if_so, if_not, value = instructions[at]
        at += 1
        match code:
            case 0x20:
                assert value % 4 == 0
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x15:
                at += if_so if accumulator == value else if_not
            case 0x25:
                at += if_so if accumulator > value else if_not
            case 0x45:
                at += if_so if accumulator & value else if_not
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


@pytest.fixture(params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# The program


def test_every_path_through_the_program_ends(machine: str) -> None:
    """The kernel refuses a program with a jump over its end."""
    instructions = list(struct.iter_unpack("<HBBI", filter_program(machine)))
    for at, (code, if_so, if_not, _) in enumerate(instructions):
        if code not in (0x06, 0x20):
            assert at + 1 + max(if_so, if_not) < len(instructions)
    assert instructions[-1][0] == 0x06


def test_every_call_is_in_one_rule_and_known_on_all_machines_that_have_it() -> None:
    calls = [call for rule in RULES for call in rule.calls]
    assert len(calls) == len(set(calls))
    assert set(calls) == set(MACHINES["x86_64"].numbers)
    assert set(calls) - set(MACHINES["aarch64"].numbers) == {"open", "creat", "chmod", "mknod"}


def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    header = next((Path(name) for name in HEADERS[machine] if os.path.exists(name)), None)
    if header is None:
        pytest.skip("the headers of the kernel are not installed")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+) +(\d+)", header.read_text()))
    for call, number in MACHINES[machine].numbers.items():
        assert int(found.get(call, number if call in BEFORE_ALL_HAD_THEM else -1)) == number, call


def test_a_call_that_no_rule_names_is_allowed(machine: str) -> None:
    named = MACHINES[machine].numbers.values()
    for number in range(LAST_CALL + 1):
        if number not in named:
            assert decided(machine, number, *[0xFFFF_FFFF_FFFF_FFFF] * 6) == ALLOWED


def test_calls_without_conditions_are_refused_with_any_arguments(machine: str) -> None:
    for rule in RULES:
        for call in rule.calls:
            if not rule.conditions and call in MACHINES[machine].numbers:
                for argument in (0, 0xFFFF_FFFF_FFFF_FFFF):
                    number = MACHINES[machine].numbers[call]
                    assert decided(machine, number, *[argument] * 6) == os.strerror(rule.error)


def test_the_last_call_is_the_newest_that_was_reviewed(machine: str) -> None:
    """`file_setattr` of Linux 6.17. Before a larger number: may one of the calls up to it do what `RULES` refuse?"""
    assert LAST_CALL == 469
    assert decided(machine, 469) == ALLOWED


@pytest.mark.parametrize("number", [LAST_CALL + 1, 512, 547, 0x3FFF_FFFF, 0x4000_0000 | 41, 0x4000_0000 | 90])
def test_calls_that_were_not_reviewed_do_not_exist_nor_those_of_x32(machine: str, number: int) -> None:
    assert decided(machine, number) == "Function not implemented"


def test_a_call_that_a_debugger_skips_keeps_the_result_that_the_debugger_gave_it(machine: str) -> None:
    assert decided(machine, 0xFFFF_FFFF) == ALLOWED


@pytest.mark.parametrize("audit", [0x4000_0003, 0x4000_0028, 0xC000_00F3, 0])
def test_a_call_of_another_machine_ends_its_process(machine: str, audit: int) -> None:
    for number in (0, 1, 41, 198, 0xFFFF_FFFF):
        assert decided(machine, number, audit=audit) == KILLED


def test_sockets_have_one_of_four_families(machine: str) -> None:
    for call in ("socket", "socketpair"):
        number = MACHINES[machine].numbers[call]
        for family in range(64):
            expected = ALLOWED if family in (1, 2, 10, 16) else "Address family not supported by protocol"
            assert decided(machine, number, family, 1, 0) == expected
            # The kernel does not look at the upper half.
            assert decided(machine, number, 1 << 32 | family, 1, 0) == expected
            assert decided(machine, number, family, 40, 40) == expected


@pytest.mark.parametrize(
    ("call", "position"),
    [
        *[("chmod", 1), ("fchmod", 1), ("creat", 1), ("mknod", 1)],
        *[("fchmodat", 2), ("fchmodat2", 2), ("mknodat", 2)],
    ],
)
def test_no_mode_has_the_bits_that_lend_rights(machine: str, call: str, position: int) -> None:
    number = MACHINES[machine].numbers.get(call)
    if number is None:
        return
    for mode in range(0o10000):
        arguments = [0o6000] * 6
        arguments[position] = 0o100000 | mode
        expected = "Operation not permitted" if mode & 0o6000 else ALLOWED
        assert decided(machine, number, *arguments) == expected
        arguments[position] |= 0xFFFF_FFFF << 32
        assert decided(machine, number, *arguments) == expected


@pytest.mark.parametrize(("call", "position"), [("open", 1), ("openat", 2)])
def test_a_mode_counts_only_if_open_creates_a_file(machine: str, call: str, position: int) -> None:
    number = MACHINES[machine].numbers.get(call)
    if number is None:
        return
    for flags, mode, expected in (
        (O_CREAT | 0o1, SET_USER_ID, "Operation not permitted"),
        (O_CREAT | 0o1, SET_GROUP_ID, "Operation not permitted"),
        (O_TMPFILE | 0o2, SET_USER_ID, "Operation not permitted"),
        (1 << 32 | O_CREAT, 1 << 32 | SET_USER_ID, "Operation not permitted"),
        (O_CREAT | 0o1, 0o1777, ALLOWED),
        (0o1, SET_USER_ID, ALLOWED),
        (0o200000, 0xFFFF_FFFF, ALLOWED),
    ):
        assert decided(machine, number, *[0o6000] * position, flags, mode) == expected


def test_nothing_is_typed_into_a_terminal(machine: str) -> None:
    number = MACHINES[machine].numbers["ioctl"]
    for kind in (0x5412, 0x541C, 1 << 32 | 0x5412):
        assert decided(machine, number, 0, kind) == "Operation not permitted"
    for kind in (0x5401, 0x5413, 0x541B):
        assert decided(machine, number, 0x5412, kind, 0x5412) == ALLOWED


# The kernel


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Not in /tmp, of which every command has its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="holdfast-test-", ignore_cleanup_errors=True) as place:
        yield Path(place).resolve()


@pytest.fixture
def numbers(sandbox: Sandbox) -> dict[str, int]:
    return MACHINES[os.uname().machine].numbers


async def returned(commands: Commands, sandbox: Sandbox, *calls: tuple[int | str, ...]) -> list[str]:
    """What each call returns in the sandbox: 0 or the name of an error."""
    shutil.copy(Path(__file__).with_name("raw_calls.py"), sandbox.work)
    words = [",".join(f"@{word}" if isinstance(word, str) else str(word) for word in call) for call in calls]
    return (await said(commands, sandbox, f"exec '{PYTHON}' raw_calls.py {' '.join(words)}", network=False)).split()


def lent(folder: Path) -> list[str]:
    """The files that run with the rights of their owner or group."""
    return [one.name for one in folder.rglob("*") if one.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)]


async def test_only_known_families_of_sockets_are_there(
    commands: Commands, sandbox: Sandbox, numbers: dict[str, int]
) -> None:
    call = numbers["socket"]
    families = {"vsock": 40, "packet": 17, "alg": 38, "bluetooth": 31, "can": 29, "tipc": 30, "xdp": 44, "none": 0}
    others = [(call, family, kind, 0) for family in families.values() for kind in (1, 2, 3, 5)]
    assert set(await returned(commands, sandbox, *others)) == {"EAFNOSUPPORT"}
    disguised = [(call, 1 << 32 | family, kind, 0) for family in families.values() for kind in (1, 2, 3, 5)]
    assert set(await returned(commands, sandbox, *disguised)) == {"EAFNOSUPPORT"}
    known = [(call, socket.AF_UNIX, 1, 0), (call, socket.AF_INET, 1, 0), (call, 16, 3, 0)]
    assert await returned(commands, sandbox, *known) == ["0", "0", "0"]
    assert await returned(commands, sandbox, (numbers["socketpair"], 30, 1, 0)) == ["EAFNOSUPPORT"]


async def test_no_file_is_made_to_run_with_the_rights_of_its_owner(
    commands: Commands, sandbox: Sandbox, numbers: dict[str, int]
) -> None:
    (sandbox.work / "plain").touch()
    calls: list[tuple[int | str, ...]] = []
    for mode in (SET_USER_ID, SET_GROUP_ID, 0o6755, 1 << 32 | SET_USER_ID):
        calls += [
            (numbers["fchmod"], 1, mode),
            (numbers["fchmodat"], HERE, "plain", mode),
            (numbers["fchmodat2"], HERE, "plain", mode, 0),
            (numbers["mknodat"], HERE, "made", stat.S_IFREG | mode, 0),
            (numbers["openat"], HERE, "made", O_CREAT | os.O_WRONLY, mode),
            (numbers["openat"], HERE, ".", O_TMPFILE | os.O_WRONLY, mode),
        ]
        if "open" in numbers:
            calls += [
                (numbers["chmod"], "plain", mode),
                (numbers["open"], "made", O_CREAT | os.O_WRONLY, mode),
                (numbers["creat"], "made", mode),
                (numbers["mknod"], "made", stat.S_IFREG | mode, 0),
            ]
    assert set(await returned(commands, sandbox, *calls)) == {"EPERM"}
    assert lent(sandbox.work) == []
    assert not (sandbox.work / "made").exists()
    told = await said(commands, sandbox, "mkdir -m 2755 one; chmod u+s plain; install -m 4755 plain other; cp plain it")
    assert told.count("Operation not permitted") == 3
    assert lent(sandbox.work) == []


async def test_a_folder_is_made_without_the_bits_that_its_mode_asks_for(commands: Commands, sandbox: Sandbox) -> None:
    """The kernel ignores them, and so the filter may: `cp -r` passes those of the original."""
    (sandbox.work / "team" / "inner").mkdir(parents=True)
    (sandbox.work / "team" / "inner").chmod(0o2775)
    make = "import os; os.mkdir('made', 0o6755)"
    assert await said(commands, sandbox, f"'{PYTHON}' -c \"{make}\" && cp -r team copy && ls copy") == "inner\n"
    assert lent(sandbox.work) == ["inner"]
    assert lent(sandbox.work / "copy") == []


async def test_a_stale_mode_does_not_keep_a_file_from_being_read(
    commands: Commands, sandbox: Sandbox, numbers: dict[str, int]
) -> None:
    read = (numbers["openat"], HERE, "/etc/passwd", os.O_RDONLY, SET_USER_ID)
    made = (numbers["openat"], HERE, "made", O_CREAT | os.O_WRONLY, 0o1755)
    assert await returned(commands, sandbox, read, made) == ["0", "0"]


async def test_calls_that_the_filter_can_not_read_do_not_exist(
    commands: Commands, sandbox: Sandbox, numbers: dict[str, int]
) -> None:
    missing = ("openat2", "io_uring_setup", "io_uring_enter", "io_uring_register")
    assert set(await returned(commands, sandbox, *[(numbers[name], 1, 0, 0, 0) for name in missing])) == {"ENOSYS"}
    later = [(number, 1, 0, 0) for number in (LAST_CALL + 1, 512, 514, 0x4000_0000 | 41, 0x4000_0000 | 1)]
    assert set(await returned(commands, sandbox, *later)) == {"ENOSYS"}
    refused = [name for rule in RULES for name in rule.calls if not rule.conditions and name not in missing]
    assert set(await returned(commands, sandbox, *[(numbers[name], 0, 0, 0) for name in refused])) == {"EPERM"}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86-64 has this call")
async def test_a_32_bit_call_ends_its_process(commands: Commands, sandbox: Sandbox) -> None:
    (sandbox.work / "call.py").write_text(
        "import ctypes, mmap\n"
        "code = mmap.mmap(-1, 4096, prot=7)\n"
        r"code.write(b'\xb8\x14\0\0\0\xcd\x80\xc3')  # getpid: mov eax, 20; int 0x80; ret"
        "\nprint('called', ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())\n"
    )
    key, end = await ran(commands, sandbox.spec(f"exec '{PYTHON}' call.py", merged=True))
    # SIGSYS; or SIGSEGV, from a kernel without such calls.
    assert end.exit_code in (128 + 31, 128 + 11)
    assert b"called" not in await everything(commands, key)


async def test_processes_of_every_kind_have_the_filter_and_can_not_take_it_off(
    commands: Commands, sandbox: Sandbox
) -> None:
    look = "grep -h Seccomp: /proc/self/status"
    inner = f"unshare --user {look} 2> /dev/null || {look}"
    told = await said(commands, sandbox, f"{look} /proc/1/status; setsid -w env -i {look}; {inner}; ({look} & wait)")
    assert told.splitlines() == ["Seccomp:\t2"] * 5


async def test_a_command_gets_neither_the_filter_nor_another_file_from_its_start(
    commands: Commands, sandbox: Sandbox
) -> None:
    opened = (
        "import os; print([n for n in range(64) if os.path.exists(f'/proc/self/fd/{n}')], os.readlink('/dev/fd/0'))"
    )
    told = await said(commands, sandbox, f"exec '{PYTHON}' -c \"{opened}\"")
    assert told == "[0, 1, 2] /dev/null\n"


async def test_the_sandbox_s_own_processes_have_the_filter_before_the_command_runs(
    commands: Commands, sandbox: Sandbox
) -> None:
    """Otherwise a command that is quick enough lets one of them do what it may not do itself. Built-in commands only:
    another program would start too late to see it."""
    look = 'while read -r name value; do [ "$name" = Seccomp: ] && echo $value; done < /proc/1/status'
    for _ in range(10):
        told = await asyncio.gather(*[said(commands, sandbox, look) for _ in range(10)])
        assert told == ["2\n"] * 10


async def test_bubblewrap_has_the_filter_when_it_starts(commands: Commands, sandbox: Sandbox) -> None:
    program = sandbox.place / "bwrap"
    program.write_text("#!/bin/sh\ngrep -E '^(Seccomp|NoNewPrivs):' /proc/$$/status\nreadlink /proc/$$/fd/9\n")
    program.chmod(0o700)
    spec = sandbox.spec("", merged=True)
    key, _ = await ran(commands, msgspec.structs.replace(spec, inside=(str(program), *spec.inside[1:])))
    told = (await everything(commands, key)).decode()
    assert told.split() == ["NoNewPrivs:", "1", "Seccomp:", "2", str(sandbox.work)]


async def test_without_its_filter_bubblewrap_runs_nothing(commands: Commands, sandbox: Sandbox) -> None:
    """A supervisor that does not know of it, for example, does not install it."""
    key, end = await ran(commands, msgspec.structs.replace(sandbox.spec("touch made", merged=True), filter=b""))
    assert end.exit_code == 1
    assert b"/proc/self/fd/9" in await everything(commands, key)
    assert not (sandbox.work / "made").exists()


@pytest.mark.parametrize("filter", [b"half", bytes(8), bytes(1 << 20)])
async def test_a_filter_that_can_not_be_installed_keeps_the_command_from_starting(
    commands: Commands, sandbox: Sandbox, filter: bytes
) -> None:
    _, end = await ran(commands, msgspec.structs.replace(sandbox.spec("touch made"), filter=filter))
    assert end.reason == "not_started"
    assert "(seccomp)" in end.detail
    assert not (sandbox.work / "made").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel lets others do it: see the limits in docs/sandbox.md")
async def test_root_copies_no_file_that_lends_rights(commands: Commands, sandbox: Sandbox) -> None:
    """An overlay mount copies a file with its mode, without a call that sets one, and every machine has such files of
    root. The kernel lets nobody without a capability use the rights of root's files in a user namespace."""
    lower = sandbox.place / "lower"
    lower.mkdir()
    (lower / "lent").touch()
    (lower / "lent").chmod(SET_USER_ID)
    shutil.copy(Path(__file__).with_name("overlay_copy.py"), sandbox.work)
    told = await said(commands, sandbox, f"exec '{PYTHON}' overlay_copy.py '{lower}' lent")
    assert "Operation not permitted" in told
    assert lent(sandbox.work) == []


# Work goes on


async def test_archives_unpack_but_for_what_lends_rights(commands: Commands, sandbox: Sandbox) -> None:
    packed = sandbox.work / "packed"
    packed.mkdir()
    for name, mode in (("a", 0o644), ("b", SET_USER_ID), ("c", 0o755)):
        (packed / name).write_text(name)
        (packed / name).chmod(mode)
    assert shutil.make_archive(str(sandbox.work / "it"), "tar", sandbox.work, "packed")
    shutil.rmtree(packed)
    told = await said(commands, sandbox, "tar -xpf it.tar; echo $?; cat packed/*")
    assert "packed/b" in told
    assert told.count("Operation not permitted") == 1
    assert told.endswith("2\nabc")
    assert (packed / "c").stat().st_mode & 0o7777 == 0o755
    assert lent(sandbox.work) == []


WORK = {
    "files": "touch a && install -m 755 a b && cp -p b c && cp -a b d && chmod +t . && stat -c %a c d && mkfifo e",
    "git": "git init -q it && cd it && git config user.email a@b && git config user.name a && echo 1 > 1 && git add 1"
    " && git commit -qm 1 && git clone -q . ../other && ls ../other",
    "make": "printf 'a: b\\n\\tcp b a\\nb:\\n\\ttouch b\\n' > Makefile && make -s -j2 && ls",
    "gcc": "echo 'int main(void) { return 7; }' > a.c && gcc a.c -o a; ./a; [ $? = 7 ] && echo built",
    "node": "node -e \"require('fs').promises.writeFile('a', 'b').then(() => require('fs').readFileSync('a', 'utf8'))"
    '.then(console.log)"',
    "npm": "export npm_config_cache=/tmp/npm; mkdir one && cd one && npm init -y > /dev/null && npm pack --silent"
    " && cd .. && npm install --silent --offline --no-audit ./one/one-1.0.0.tgz && ls node_modules",
    "strace": "strace -e trace=none -e inject=getcwd:retval=7 true 2>&1 | tail -1",
    "gdb": "gdb -nx -batch -ex run -ex 'info inferiors' true 2>&1 | grep exited",
}


@pytest.mark.parametrize("program", WORK)
async def test_programs_work_as_before(commands: Commands, sandbox: Sandbox, program: str) -> None:
    if program != "files" and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    key, end = await ran(commands, sandbox.spec(WORK[program], merged=True, network=False))
    told = (await everything(commands, key)).decode()
    assert (end.exit_code, told != "") == (0, True), told


async def test_python_works_as_before(commands: Commands, sandbox: Sandbox) -> None:
    (sandbox.work / "work.py").write_text(
        "import asyncio, multiprocessing, os, shutil, socket, tempfile, venv\n"
        "async def talk():\n"
        "    async def answer(reader, writer):\n"
        "        writer.write(await reader.readline())\n"
        "        writer.close()\n"
        "    async with await asyncio.start_server(answer, '127.0.0.1', 0) as server:\n"
        "        port = server.sockets[0].getsockname()[1]\n"
        "        reader, writer = await asyncio.open_connection('localhost', port)\n"
        "        writer.write(b'talked\\n')\n"
        "        print((await reader.readline()).decode().strip())\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(talk())\n"
        "    a, b = socket.socketpair(); print(len(socket.if_nameindex()))\n"
        "    for how in ('fork', 'spawn', 'forkserver'):\n"
        "        with multiprocessing.get_context(how).Pool(2) as pool:\n"
        "            print(sum(pool.map(abs, [-1, 2])))\n"
        "    with tempfile.TemporaryFile() as file: file.write(b'1')\n"
        "    open('a', 'w').close(); shutil.copytree('.', '/tmp/copy'); os.chmod('a', 0o1700)\n"
        "    print('made')\n"
    )
    told = await said(commands, sandbox, f"'{PYTHON}' work.py", network=False)
    assert told.split() == ["talked", "1", "3", "3", "3", "made"]
