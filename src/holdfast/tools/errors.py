"""What can be wrong with a tool call.

ToolFailure
├── InvalidArguments   the model's arguments do not fit the tool's parameters
└── DirectoryRefused   the session can't work in its directory (`working_directory.py`)
BadTool                a tool that can't be offered: the program that defines it is wrong
"""


class ToolFailure(Exception):
    """The tool could not do it. Its text is what the model is told."""

    code: str = ""
    """A stable name of the reason, where there is one."""


class InvalidArguments(ToolFailure):
    """The arguments are no JSON object, or do not fit."""


class BadTool(TypeError):
    """A function that can't be made a tool; the sentence says why."""
