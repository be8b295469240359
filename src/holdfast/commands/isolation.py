"""How commands are kept apart from the rest of the machine: the seam, and the way that keeps nothing apart."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from holdfast.commands.errors import IsolationUnavailable

REFUSED: Final = (
    "This server runs no commands: it is for everybody who has a key, and has no sandbox. Whoever runs it can start it "
    "with --sandbox, or with HOLDFAST_COMMANDS_WITHOUT_SANDBOX=allow, and then they may do all that its user can."
)


class Isolation(Protocol):
    """A way to confine commands. `check` comes first, once; then `inside` for each command."""

    @property
    def name(self) -> str:
        """What the setting calls it."""
        ...

    @property
    def program(self) -> str:
        """The program that keeps a command confined, as the system shows it while it runs; empty: none stays around."""
        ...

    @property
    def binds_directory(self) -> bool:
        """Commands get the folder that their program is started in, whatever is found under its name by then: so it is
        started in the root, and goes on from there to the directory."""
        ...

    async def check(self) -> None:
        """Raises `IsolationUnavailable` if commands can't be confined on this machine."""
        ...

    def inside(self, directory: str, *, root: str = "", hidden: Iterable[Path] = ()) -> tuple[str, ...]:
        """The program, with its arguments, that is given the shell of one command to run. It works in the directory,
        and may write there, or in all of `root` if that is given: the directory should lie in it. It sees nothing else
        of what is `hidden`. Raises `IsolationUnavailable` if a command can't do that and be confined."""
        ...


class Unconfined:
    """Commands may do all that the user of the runtime may: read the database, and write to it."""

    name = "none"
    program = ""
    binds_directory = False

    async def check(self) -> None:
        return None

    def inside(self, directory: str, *, root: str = "", hidden: Iterable[Path] = ()) -> tuple[str, ...]:
        return ()


class NoCommands:
    """Starts no command at all."""

    name = "none"
    program = ""
    binds_directory = False

    async def check(self) -> None:
        return None

    def inside(self, directory: str, *, root: str = "", hidden: Iterable[Path] = ()) -> tuple[str, ...]:
        raise IsolationUnavailable("commands_refused", REFUSED)
