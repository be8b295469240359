"""Another process at the same database, as a test sees it."""

import json
import signal
import subprocess
from typing import Any


class Other:
    def __init__(self, running: "subprocess.Popen[str]") -> None:
        self.running = running

    def order(self, line: str) -> None:
        assert self.running.stdin is not None
        self.running.stdin.write(line + "\n")
        self.running.stdin.flush()

    def hear(self) -> Any:
        assert self.running.stdout is not None
        return json.loads(self.running.stdout.readline())

    def tell(self, line: str) -> Any:
        self.order(line)
        return self.hear()

    def hear_all(self) -> list[Any]:
        """The output of the process before it ended. Its last line may be cut."""
        assert self.running.stdout is not None
        lines = self.running.stdout.read().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def signal(self, number: signal.Signals) -> None:
        self.running.send_signal(number)

    def end(self) -> None:
        self.running.kill()
        self.running.wait()
        for pipe in (self.running.stdin, self.running.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
