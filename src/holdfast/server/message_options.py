"""Options of a message: the page its writer is on, the model that answers it, and how long that model may think.

An option that the message leaves out is taken from the session, and then from the server's configuration.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.events.message import PageContext
from holdfast.events.session import Mode

MAX_THINKING_TOKENS: Final = 1_000_000
"""More than any model thinks for."""

ModelName = Annotated[str, Meta(min_length=1, max_length=200)]
FileName = Annotated[str, Meta(min_length=1, max_length=200)]
Thinking = Literal["off"] | Annotated[int, Meta(ge=0, le=MAX_THINKING_TOKENS)]
"""Tokens that the model may think for; 0 is `off`."""
Tier = Literal["standard", "advanced"]


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The page that the writer is on: the model reads it, people do not see it."""

    url: Annotated[str, Meta(max_length=2_000)] = ""
    content: Annotated[str, Meta(max_length=32_000)] = ""


class MessageOptions(msgspec.Struct, frozen=True, kw_only=True):
    context: Context | None = None
    model: ModelName | None = None
    """The model that answers in this message's turn."""
    tier: Tier | None = None
    """The same as a tier of the server, instead of a name."""
    thinking: Thinking | None = None
    mode: Mode | None = None
    files: tuple[FileName, ...] | None = None
    """Ids of files that were uploaded before. Those that the sender does not have are dropped."""

    @property
    def names_model(self) -> bool:
        return self.model is not None or self.tier is not None


class MessageChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The options after every check, under the names that `Operations.send` takes."""

    context: PageContext | None = None
    model: str | None = None
    thinking: int | None = None
    agent_mode: str = ""
    file_ids: tuple[str, ...] | None = None
    """None: those that the message had, if it is sent once more."""

    def as_arguments(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)


def thinking_tokens(thinking: Thinking | None) -> int | None:
    return 0 if thinking == "off" else thinking
