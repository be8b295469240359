"""The entry to a sandbox: the last step of a process before it becomes the program that makes the sandbox.

The process gives up gaining rights and installs the filter of system calls, so that this program and everything that
it starts have the filter from their first instruction. bubblewrap can install a filter too, but its own process inside
the sandbox gets that filter a moment after the command has started: the command could make that process do what it may
not do itself.

A supervisor enters in the forked child. Run as a file, this module enters and starts a program, for processes that
cannot fork because they have threads: `sandbox_entry.py DIRECTORY FILTER PROGRAM ARGUMENT...`, the filter in
hexadecimal. So it imports only the standard library.
"""

import ctypes
import os
import sys
from typing import Final, NoReturn

BOUND: Final = 9
"""The descriptor of the folder that a command may write to. It exists only after `SandboxEntry.enter`, and bubblewrap
makes no sandbox without it: no command runs without its filter."""

NOT_STARTED: Final = 126

_INSTRUCTION_BYTES: Final = 8
_MAX_BYTES: Final = 4096 * _INSTRUCTION_BYTES
"""The kernel takes no longer program."""

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2


class _Program(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class SandboxEntry:
    """Prepares everything before the fork, so that the child makes only two calls. Raises `OSError` on a system without
    such filters, and `ValueError` if the filter is none."""

    def __init__(self, filter: bytes) -> None:
        if not filter or len(filter) % _INSTRUCTION_BYTES or len(filter) > _MAX_BYTES:
            raise ValueError("the filter of system calls (seccomp) has an impossible length")
        try:
            self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        except AttributeError:
            raise OSError("this system has no filters of system calls (seccomp)") from None
        self._prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
        self._buffer = ctypes.create_string_buffer(filter, len(filter))
        self._program = _Program(len(filter) // _INSTRUCTION_BYTES, ctypes.addressof(self._buffer))
        self._address = ctypes.addressof(self._program)

    def enter(self, directory: int) -> None:
        """Installs the filter in this process, and then opens the folder as `BOUND`. Raises `OSError`; the process must
        then not become the program."""
        for name, *arguments in (
            ("no_new_privs", _PR_SET_NO_NEW_PRIVS, 1, 0),
            ("seccomp", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._address),
        ):
            if self._prctl(*arguments, 0, 0):
                error = ctypes.get_errno()
                raise OSError(error, f"the filter of system calls ({name}) can't be installed: {os.strerror(error)}")
        os.dup2(directory, BOUND)
        os.set_inheritable(BOUND, True)  # `dup2` changes nothing if the folder has this number already.


def main() -> NoReturn:
    directory, filter, *line = sys.argv[1:]
    try:
        SandboxEntry(bytes.fromhex(filter)).enter(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        os.execv(line[0], line)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
    sys.exit(NOT_STARTED)


if __name__ == "__main__":
    main()
