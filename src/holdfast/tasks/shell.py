"""Everything that tools need to run commands: the commands, the desk, the limits and the isolation."""

import glob
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from holdfast.commands.command import CommandKey, Limits
from holdfast.commands.commands import Commands
from holdfast.commands.isolation import Isolation
from holdfast.events.ids import Key, ToolCallId
from holdfast.store.tasks import TaskRow
from holdfast.tasks.desk import TaskDesk, task_id_of


class ShellArguments(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run, as a tool reads it from its arguments."""

    command: str
    description: str = ""
    directory: str
    alias: str = ""


class Shell:
    """The means to run commands, one object per runtime."""

    def __init__(
        self,
        commands: Commands,
        desk: TaskDesk,
        *,
        isolation: Isolation,
        limits: Limits,
        environment: Mapping[str, str] | None = None,
        folders_of_owners: Iterable[Path] = (),
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self.commands = commands
        self.desk = desk
        self.isolation = isolation
        self.limits = limits
        self.environment = dict(environment or {})
        """Variables that commands get in addition to the few that are always let through."""
        self.folders_of_owners = tuple(folders_of_owners)
        """Folders that contain the folders of several owners: a command of one owner sees nothing of the others
        there."""
        self._real_parent: str | None = None
        self.look = look
        """Wakes the task keeper after a task was started or a kill requested."""

    def row(self, key: Key, tool_call_id: ToolCallId, call_key: str, arguments: ShellArguments, now: int) -> TaskRow:
        """Returns the row of a command that is about to start. The same call always has the same row, whichever process
        makes it."""
        command_key = CommandKey(key.owner, key.session, call_key, 1)
        return TaskRow(
            key=key,
            task_id=task_id_of(command_key),
            tool_call_id=tool_call_id,
            call_key=call_key,
            command=arguments.command,
            description=arguments.description,
            directory=arguments.directory,
            host=self.desk.host,
            output_file=str(self.commands.session_folder(key.owner, key.session) / command_key.name / "output"),
            alias=arguments.alias,
            started_at=now,
        )

    def readable(self, key: Key) -> str:
        """The permission rule under which a session may read the output of its own commands."""
        folder = self.commands.session_folder(key.owner, key.session)
        # Links above the session's folder are resolved, as in the paths that tools ask for; a link that a command puts
        # in its place is not.
        if self._real_parent is None:
            self._real_parent = os.path.realpath(folder.parent)
        return f"read({glob.escape(os.path.join(self._real_parent, folder.name))}/*)"
