"""Errors of tool calls and tool definitions.

ToolFailure
├── InvalidArguments   the model's arguments do not fit the tool's parameters
└── DirectoryRefused   the session can't work in its directory (`working_directory.py`)
BadTool                a tool that can't be offered: the program that defines it is wrong
"""


class ToolFailure(Exception):
    """The tool failed. The model gets the message as the result."""

    code: str = ""
    """Stable name of the reason, or empty."""


class InvalidArguments(ToolFailure):
    """The arguments are not a JSON object, or do not fit the parameters."""


class BadTool(TypeError):
    """A function that can't be made a tool; the message says why."""
