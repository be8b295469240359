"""The prompt that stands before every conversation: the product's instructions, its rules, and its tools.

A session keeps to the prompt that it started with, whatever a newer release would say: what was sent before stays the
beginning of what is sent. The log has the prompt's digest; the store keeps the content.
"""

from collections.abc import Collection, Iterable
from functools import cached_property
from hashlib import sha256
from typing import Final

import msgspec

from holdfast.events import quote
from holdfast.events.context import ToolSpec
from holdfast.events.session import ClientTool
from holdfast.session.tokens import tokens_of

RULES = (
    "When a message from the user arrives while you work, acknowledge it at once in one short visible line, then act "
    "on it. End every turn with a short visible answer, also after using tools."
)

RECALL = "recall"
"""The tool that reads what a summary stands for: offered once there is one."""

READ_ATTACHED_FILE = "read_attached_file"
"""The tool that reads the text of files: offered once there is one."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The parts of a prompt that are the same in every session of a process."""

    instructions: str = ""
    rules: str = RULES
    quoting: str = quote.RULES
    """The rules of quoting, with a place for the number of a session's notes."""
    tools: tuple[ToolSpec, ...] = ()

    @cached_property
    def content(self) -> bytes:
        return msgspec.json.encode(self)

    @cached_property
    def digest(self) -> str:
        return sha256(self.content).hexdigest()

    @cached_property
    def _tool_tokens(self) -> dict[str, int]:
        return {tool.name: tokens_in_tool(tool) for tool in self.tools}

    def offered(
        self, only: tuple[str, ...] | None, client_tools: Iterable[ClientTool], *, unasked: Collection[str] = ()
    ) -> tuple[ToolSpec, ...]:
        """The tools that the model is offered: the session's choice of these, then the client's own."""
        clients = tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in client_tools)
        taken = {tool.name for tool in clients}
        own = (tool for tool in self.tools if tool.name not in taken and is_offered(tool.name, only, unasked))
        return (*own, *clients)

    def tokens(self, offered: Iterable[ToolSpec]) -> int:
        """About how many tokens the prompt has with these tools, without what a client adds."""
        known = self._tool_tokens
        texts = tokens_of((self.instructions, self.rules, self.quoting))
        return texts + sum(known.get(tool.name) or tokens_in_tool(tool) for tool in offered)


def prompt_in(content: bytes) -> Prompt:
    """The inverse of `Prompt.content`."""
    return msgspec.json.decode(content, type=Prompt)


def tokens_in_tool(tool: ToolSpec) -> int:
    return tokens_of((tool.name, tool.description, msgspec.json.encode(tool.parameters).decode()))


UNASKED: Final = (RECALL, READ_ATTACHED_FILE)
"""Tools that sessions do not choose: without them the model would lose what a summary stands for, or the files that it
was given, and they read nothing else."""


def unasked_tools(*, compactions: int, has_files: bool) -> tuple[str, ...]:
    """Those of the tools in `UNASKED` that a session has by now."""
    return (RECALL,) * bool(compactions) + (READ_ATTACHED_FILE,) * has_files


def is_offered(name: str, only: tuple[str, ...] | None, unasked: Collection[str]) -> bool:
    """Whether a session has the tool."""
    return name in unasked if name in UNASKED else only is None or name in only
