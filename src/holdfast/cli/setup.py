"""The settings of a session that a command makes, and the folder that the command is about."""

from typing import Final

import msgspec

from holdfast.events.session import SessionStarted
from holdfast.protocol.home import AnySession, Home

MARK: Final = "folder"
"""The metadata in which a session on a server keeps the folder on this machine that it was started from."""


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """The folder that a command is about."""

    directory: str | None
    """The working directory of new sessions; None leaves it to the server."""
    mark: str = ""
    """The value of `MARK` for sessions started from here; empty if the directory tells them apart."""

    def is_of(self, started: SessionStarted) -> bool:
        """Whether that session was started from this folder."""
        if self.directory is not None:
            return started.working_directory == self.directory
        return bool(self.mark) and started.metadata.get(MARK) == self.mark


class SessionSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a session to be made."""

    folder: Folder
    model: str | None = None
    allow: tuple[str, ...] = ()
    dry_run: bool = False

    async def create(self, home: Home) -> AnySession:
        return await home.session(
            model=self.model,
            working_directory=self.folder.directory,
            allow=self.allow,
            dry_run=self.dry_run,
            metadata={MARK: self.folder.mark} if self.folder.mark else None,
        )
