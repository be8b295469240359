"""A supervisor that notes what it does, line by line, in the file `trace` of its folder.

python -m tests.commands.noting ROOT SETTINGS

turn                it looks for what there is to do
asked VERB          somebody asked for something
piece CALL OFFSET   it reads a piece of the output of a command
rested CALL         it may read on
"""

import os
import sys
from pathlib import Path

from holdfast.commands import supervisor
from holdfast.commands.connection import SupervisorConnection
from holdfast.commands.execution import CommandExecution
from holdfast.commands.loop import SupervisorLoop
from holdfast.commands.protocol import Request
from holdfast.commands.service import SupervisorService


def main() -> int:
    trace = Path(sys.argv[1]) / "trace"
    pause, asked, readable, rested = (
        SupervisorLoop._pause,
        SupervisorService._on_request,
        CommandExecution._readable,
        CommandExecution._rested,
    )

    def note(line: str) -> None:
        with open(trace, "ab", buffering=0) as file:
            file.write(line.encode() + b"\n")

    def noting_pause(self: SupervisorLoop) -> float | None:
        note("turn")
        return pause(self)

    def noting_asked(self: SupervisorService, connection: SupervisorConnection, request: Request) -> None:
        note(f"asked {type(request.verb).__name__}")
        asked(self, connection, request)

    def noting_readable(self: CommandExecution, pipe: int) -> None:
        note(f"piece {self.record.key.tool_call} {self.status().output_bytes}")
        readable(self, pipe)

    def noting_rested(self: CommandExecution, pipe: int) -> None:
        note(f"rested {self.record.key.tool_call}")
        rested(self, pipe)

    for kind, name, noting in (
        (SupervisorLoop, "_pause", noting_pause),
        (SupervisorService, "_on_request", noting_asked),
        (CommandExecution, "_readable", noting_readable),
        (CommandExecution, "_rested", noting_rested),
    ):
        setattr(kind, name, noting)
    os.makedirs(trace.parent, mode=0o700, exist_ok=True)
    return supervisor.main()


if __name__ == "__main__":
    sys.exit(main())
