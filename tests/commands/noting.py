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
from holdfast.commands.connection import Connection
from holdfast.commands.execution import Running
from holdfast.commands.loop import Loop
from holdfast.commands.protocol import Request
from holdfast.commands.service import Service


def main() -> int:
    trace = Path(sys.argv[1]) / "trace"
    pause, asked, readable, rested = Loop._pause, Service._asked, Running._readable, Running._rested

    def note(line: str) -> None:
        with open(trace, "ab", buffering=0) as file:
            file.write(line.encode() + b"\n")

    def noting_pause(self: Loop) -> float | None:
        note("turn")
        return pause(self)

    def noting_asked(self: Service, connection: Connection, request: Request) -> None:
        note(f"asked {type(request.verb).__name__}")
        asked(self, connection, request)

    def noting_readable(self: Running, pipe: int) -> None:
        note(f"piece {self.asked.key.tool_call} {self.status().output_bytes}")
        readable(self, pipe)

    def noting_rested(self: Running, pipe: int) -> None:
        note(f"rested {self.asked.key.tool_call}")
        rested(self, pipe)

    for kind, name, noting in (
        (Loop, "_pause", noting_pause),
        (Service, "_asked", noting_asked),
        (Running, "_readable", noting_readable),
        (Running, "_rested", noting_rested),
    ):
        setattr(kind, name, noting)
    os.makedirs(trace.parent, mode=0o700, exist_ok=True)
    return supervisor.main()


if __name__ == "__main__":
    sys.exit(main())
