"""The filter of system calls in the sandbox: a table of refused calls, and the program for the kernel made from it.

The filter closes two ways that mounts and namespaces leave open: sockets that bypass the network (vsock, packets, …),
and the bits that let a file run with the rights of its owner. It also refuses calls that a command hardly needs and
that have been used to attack kernels. All other calls are allowed, up to the newest that was reviewed here. Later ones
do not exist in the sandbox (ENOSYS), because one of them may be another way to do what the table refuses.
`docs/decisions/0022-a-filter-of-system-calls.md` has the reasons.

The kernel runs the program before each call. It may read only numbers, no memory, so a call whose arguments stand in
memory (`openat2`, io_uring) is refused as a whole; programs then use the older call.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

# Errors, as Linux numbers them

EPERM: Final = 1
ENOSYS: Final = 38
EAFNOSUPPORT: Final = 97

# Arguments

SET_ID: Final = 0o6000
"""The set-user-id and the set-group-id bit of a mode."""

CREATES: Final = 0o20000100
"""O_CREAT and O_TMPFILE: without either, `open` ignores the mode, which may be anything."""

FAMILIES: Final = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK, which the C library uses to list addresses."""

TYPES_INTO_TERMINAL: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they type into a terminal, as if a person did."""


class HasBits(msgspec.Struct, frozen=True):
    """Holds if the argument has one of these bits."""

    argument: int
    bits: int


class IsOneOf(msgspec.Struct, frozen=True):
    argument: int
    values: tuple[int, ...]


class IsNoneOf(msgspec.Struct, frozen=True):
    argument: int
    values: tuple[int, ...]


Condition = HasBits | IsOneOf | IsNoneOf


class CallRule(msgspec.Struct, frozen=True):
    """Refuses these calls with this error, if all conditions hold. A machine without a call ignores its name."""

    error: int
    calls: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()


RULES: Final = (
    CallRule(EAFNOSUPPORT, ("socket", "socketpair"), (IsNoneOf(0, FAMILIES),)),
    # `mkdir` is not here: the kernel itself ignores these bits of its mode, and `cp -r` passes those of the original.
    CallRule(EPERM, ("chmod", "fchmod", "creat", "mknod"), (HasBits(1, SET_ID),)),
    CallRule(EPERM, ("fchmodat", "fchmodat2", "mknodat"), (HasBits(2, SET_ID),)),
    CallRule(EPERM, ("open",), (HasBits(1, CREATES), HasBits(2, SET_ID))),
    CallRule(EPERM, ("openat",), (HasBits(2, CREATES), HasBits(3, SET_ID))),
    CallRule(EPERM, ("ioctl",), (IsOneOf(1, TYPES_INTO_TERMINAL),)),
    # Files by number instead of name: around the mounts.
    CallRule(EPERM, ("open_by_handle_at",)),
    # The keys of the session that started the server.
    CallRule(EPERM, ("add_key", "request_key", "keyctl")),
    # Parts of the kernel that commands hardly need.
    CallRule(EPERM, ("bpf", "perf_event_open", "userfaultfd")),
    CallRule(EPERM, ("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load")),
    # Programs that get this error use older calls, which the rules above can read.
    CallRule(ENOSYS, ("openat2", "io_uring_setup", "io_uring_enter", "io_uring_register")),
)

LAST_CALL: Final = 469
"""`file_setattr` of Linux 6.17, the newest call that was reviewed for this filter. From 424 on, all machines number
calls alike. The numbers of x32, a second set of calls on x86-64, are larger too."""


class Machine(msgspec.Struct, frozen=True):
    """A kind of processor, as the kernel names it to filters, with its numbers of the calls in `RULES`."""

    audit: int
    numbers: dict[str, int]


SAME_NUMBERS: Final = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "openat2": 437,
    "fchmodat2": 452,
}

MACHINES: Final = {
    "x86_64": Machine(
        0xC000003E,
        SAME_NUMBERS
        | {
            "open": 2,
            "ioctl": 16,
            "socket": 41,
            "socketpair": 53,
            "creat": 85,
            "chmod": 90,
            "fchmod": 91,
            "mknod": 133,
            "init_module": 175,
            "delete_module": 176,
            "kexec_load": 246,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "openat": 257,
            "mknodat": 259,
            "fchmodat": 268,
            "perf_event_open": 298,
            "open_by_handle_at": 304,
            "finit_module": 313,
            "kexec_file_load": 320,
            "bpf": 321,
            "userfaultfd": 323,
        },
    ),
    "aarch64": Machine(
        0xC00000B7,
        SAME_NUMBERS
        | {
            "ioctl": 29,
            "mknodat": 33,
            "fchmod": 52,
            "fchmodat": 53,
            "openat": 56,
            "kexec_load": 104,
            "init_module": 105,
            "delete_module": 106,
            "socket": 198,
            "socketpair": 199,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "perf_event_open": 241,
            "open_by_handle_at": 265,
            "finit_module": 273,
            "bpf": 280,
            "userfaultfd": 282,
            "kexec_file_load": 294,
        },
    ),
}
"""By the name that `uname` has for it."""

# The program: classic BPF. An instruction is a code, the instructions to skip if a comparison holds and if it does not,
# and a value.

Instruction = tuple[int, int, int, int]

_INSTRUCTION: Final = struct.Struct("<HBBI")

LOAD: Final = 0x20
JUMP_IF_EQUAL: Final = 0x15
JUMP_IF_GREATER: Final = 0x25
JUMP_IF_BITS: Final = 0x45
RETURN: Final = 0x06

# Offsets in the kernel's `struct seccomp_data`, and what a program returns

NUMBER_AT: Final = 0
MACHINE_AT: Final = 4
ARGUMENTS_AT: Final = 16

ALLOW: Final = 0x7FFF0000
REFUSE: Final = 0x00050000
"""Plus the error that the call returns."""
KILL_PROCESS: Final = 0x80000000

NO_CALL: Final = 0xFFFFFFFF
"""The number of a call that a debugger, such as strace, has the kernel skip. An error would replace its result."""


def filter_program(machine: str) -> bytes:
    """Returns the filter for a machine, as the kernel takes it. Raises `KeyError` if it is not in `MACHINES`."""
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in _instructions(MACHINES[machine]))


def _instructions(machine: Machine) -> list[Instruction]:
    return [
        # A 32-bit call (`int 0x80`) has other numbers.
        (LOAD, 0, 0, MACHINE_AT),
        (JUMP_IF_EQUAL, 1, 0, machine.audit),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER_AT),
        (JUMP_IF_EQUAL, 2, 0, NO_CALL),
        (JUMP_IF_GREATER, 0, 1, LAST_CALL),
        (RETURN, 0, 0, REFUSE | ENOSYS),
        *(instruction for rule in RULES for instruction in _block(rule, machine.numbers)),
        (RETURN, 0, 0, ALLOW),
    ]


def _block(rule: CallRule, numbers: dict[str, int]) -> list[Instruction]:
    """Returns from the program for the calls of the rule; for others it jumps to its own end."""
    own = [numbers[call] for call in rule.calls if call in numbers]
    if not own:
        return []
    body: list[Instruction] = [(RETURN, 0, 0, REFUSE | rule.error)]
    for condition in reversed(rule.conditions):
        # The instruction after the body allows the call.
        body = [*_checked(condition, otherwise=len(body)), *body]
    if rule.conditions:
        body.append((RETURN, 0, 0, ALLOW))
    return [*_one_of(own, otherwise=len(body)), *body]


def _checked(condition: Condition, *, otherwise: int) -> list[Instruction]:
    """Goes on to the next instruction if the condition holds; skips `otherwise` of them if not."""
    # The kernel takes these arguments as 32-bit numbers and ignores the upper half of the register, so this does too.
    load = (LOAD, 0, 0, ARGUMENTS_AT + 8 * condition.argument)
    match condition:
        case HasBits(bits=bits):
            return [load, (JUMP_IF_BITS, 0, otherwise, bits)]
        case IsOneOf(values=values):
            return [load, *_one_of(values, otherwise=otherwise)]
        case IsNoneOf(values=values):
            after = len(values) - 1
            jumps = [(JUMP_IF_EQUAL, after - i + otherwise, 0, value) for i, value in enumerate(values)]
            return [load, *jumps]


def _one_of(values: Sequence[int], *, otherwise: int) -> list[Instruction]:
    last = len(values) - 1
    return [(JUMP_IF_EQUAL, last - i, otherwise if i == last else 0, value) for i, value in enumerate(values)]
