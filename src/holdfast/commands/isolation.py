"""How commands are confined: the interface, and the implementations that confine nothing or run nothing."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from holdfast.commands.errors import IsolationUnavailable

REFUSED: Final = (
    "This server runs no commands: everyone with a key can use it, and it has no sandbox. Its operator can start it "
    "with --sandbox, or with HOLDFAST_COMMANDS_WITHOUT_SANDBOX=allow; commands then have all its user's rights."
)


class Isolation(Protocol):
    """Confines commands. `check` is called once, first; then `inside` for each command."""

    @property
    def name(self) -> str:
        """The name of this isolation in the settings."""
        ...

    @property
    def program(self) -> str:
        """The program that stays around a confined command, as the system shows it; empty if none stays."""
        ...

    @property
    def filter(self) -> bytes:
        """The filter of system calls under which the program of `inside` is started; empty for none."""
        ...

    @property
    def binds_directory(self) -> bool:
        """Whether the wrapper binds the folder it is started in, whatever its path leads to by then. It is then started
        in the root, and moves on to the directory from there."""
        ...

    async def check(self) -> None:
        """Raises `IsolationUnavailable` if commands can't be confined on this machine."""
        ...

    def inside(self, directory: str, *, root: str = "", hidden: Iterable[Path] = ()) -> tuple[str, ...]:
        """Returns the program and arguments that run one command's shell. The command works in `directory` and may
        write there, or anywhere in `root` if that is given (`directory` should lie in it). It sees nothing else of
        `hidden`. Raises `IsolationUnavailable` if the command can't be confined like that."""
        ...


class Unconfined:
    """Confines nothing: commands may do all that the runtime's user may, such as read and write the database."""

    name = "none"
    program = ""
    filter = b""
    binds_directory = False

    async def check(self) -> None:
        return None

    def inside(self, directory: str, *, root: str = "", hidden: Iterable[Path] = ()) -> tuple[str, ...]:
        return ()


class NoCommands:
    """Refuses every command."""

    name = "none"
    program = ""
    filter = b""
    binds_directory = False

    async def check(self) -> None:
        return None

    def inside(self, directory: str, *, root: str = "", hidden: Iterable[Path] = ()) -> tuple[str, ...]:
        raise IsolationUnavailable("commands_refused", REFUSED)
