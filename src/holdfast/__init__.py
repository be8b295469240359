"""Holdfast: a durable runtime for AI agents.

`Runtime`, `Session` and `tool` are all that most programs need.
"""

from typing import TYPE_CHECKING, Any

from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.app import Runtime
    from holdfast.protocol.turn import TurnResult
    from holdfast.server.embedded.session import Session
    from holdfast.tools.tool import ToolContext, ToolResult, tool


__all__ = ["Runtime", "Session", "ToolContext", "ToolResult", "TurnResult", "__version__", "tool"]

_HOMES = {
    "Runtime": "holdfast.app",
    "Session": "holdfast.server.embedded.session",
    "TurnResult": "holdfast.protocol.turn",
    "ToolContext": "holdfast.tools.tool",
    "ToolResult": "holdfast.tools.tool",
    "tool": "holdfast.tools.tool",
}


def __getattr__(name: str) -> Any:
    """Importing the package does nothing; what is asked for is imported then."""
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
