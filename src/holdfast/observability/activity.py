"""What is being done right now, for whoever writes a line of the log in the middle of it.

It travels with the task: what a task starts knows the same.
"""

from contextvars import ContextVar

import msgspec


class ActivityContext(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The names of what is under way. A holder changes its turn as the session goes on: all that it started see it."""

    request_id: str = ""
    owner: str = ""
    session_id: str = ""
    turn_id: str = ""
    tool_call_id: str = ""
    trace_id: str = ""

    def named(self) -> dict[str, str]:
        """Those that there are."""
        return {name: text for name in self.__struct_fields__ if (text := getattr(self, name))}


current_activity: ContextVar[ActivityContext | None] = ContextVar("holdfast_activity", default=None)


def begin_tool_call(tool_call_id: str) -> None:
    """From here on this task runs one tool call."""
    current = current_activity.get()
    if current is not None:
        current_activity.set(msgspec.structs.replace(current, tool_call_id=tool_call_id))
