"""The activity that the current asyncio task works on, for the lines that it logs.

It is a context variable: a task inherits the activity of the task that starts it.
"""

from contextvars import ContextVar

import msgspec


class ActivityContext(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The ids of the work in progress. A holder updates its turn in place, so every task that it started sees the
    change."""

    request_id: str = ""
    owner: str = ""
    session_id: str = ""
    turn_id: str = ""
    tool_call_id: str = ""
    trace_id: str = ""

    def fields(self) -> dict[str, str]:
        """The ids that are set, by name."""
        return {name: text for name in self.__struct_fields__ if (text := getattr(self, name))}


current_activity: ContextVar[ActivityContext | None] = ContextVar("holdfast_activity", default=None)


def begin_tool_call(tool_call_id: str) -> None:
    """Note that the current task runs this tool call from here on."""
    current = current_activity.get()
    if current is not None:
        current_activity.set(msgspec.structs.replace(current, tool_call_id=tool_call_id))
