"""The tools of a process, by name."""

import typing
from collections.abc import Iterable

from holdfast.events.context import ToolSpec
from holdfast.events.request import PermissionKind
from holdfast.events.session import ClientTool
from holdfast.tools.errors import BadTool
from holdfast.tools.tool import Tool


class Registry:
    """Tools by unique name. Their order is the order in which the model sees them."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in typing.get_args(PermissionKind):
                # Approving it for the session would grant the kind of that name to every tool.
                raise BadTool(f"{tool.name} is a kind of permission; a tool needs another name")
            if tool.name in self._tools:
                raise BadTool(f"There are two tools called {tool.name}; a name can be used once")
            self._tools[tool.name] = tool

    def names(self) -> frozenset[str]:
        return frozenset(self._tools)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def specs(self) -> tuple[ToolSpec, ...]:
        """All tools as the model reads of them."""
        return tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in self._tools.values())

    def offered(self, only: tuple[str, ...] | None, client_tools: tuple[ClientTool, ...]) -> tuple[ToolSpec, ...]:
        """Returns the tools offered to the model: the session's choice of these tools, then the client's own."""
        clients = {client.name for client in client_tools}
        own = [
            tool for tool in self._tools.values() if (only is None or tool.name in only) and tool.name not in clients
        ]
        return (
            *(ToolSpec(tool.name, tool.description, tool.parameters) for tool in own),
            *(ToolSpec(client.name, client.description, client.parameters) for client in client_tools),
        )
