"""Errors about a task that a caller names.

TaskError
├── TaskNotFound      the caller is wrong: no such task in this session, or it ended long ago
├── TaskNotRunning    the caller is late: it has ended; the message says how
└── TaskUnreachable   the world: it belongs to another machine, and only that machine can reach it
"""


class TaskError(Exception):
    """The errors that `TaskDesk` raises. The code is stable; the message says what to do."""

    code = "task_error"


class TaskNotFound(TaskError):
    code = "task_not_found"

    def __init__(self, task_id: str) -> None:
        super().__init__(f"task {task_id!r} not found in this session; list_tasks shows those there are")


class TaskNotRunning(TaskError):
    code = "task_not_running"

    def __init__(self, task_id: str, status: str) -> None:
        super().__init__(f"task {task_id!r} is not running: it is {status}")
        self.status = status


class TaskUnreachable(TaskError):
    code = "task_unreachable"

    def __init__(self, task_id: str) -> None:
        super().__init__(f"task {task_id!r} runs on another machine, which can't be reached from here")
