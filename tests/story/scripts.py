"""Helpers of the stories: a scripted model, and a way to wait."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.models.scripted import Gate, Reply, Rule, Script, ScriptedCall, ScriptedModel


def says(
    *replies: str | ScriptedCall,
    gate: Gate | None = None,
    rules: Mapping[str, tuple[str | ScriptedCall, ...]] | None = None,
) -> ScriptedModel:
    """A model that answers with these, one after the other as its tools give results. A message that contains a word
    of the `rules` is answered with what stands there instead."""
    special = tuple(Rule(tuple(map(_reply, found)), when=word) for word, found in (rules or {}).items())
    return ScriptedModel(Script((*special, Rule(tuple(map(_reply, replies))))), gate=gate)


def calls(name: str, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name, arguments)


def _reply(said: str | ScriptedCall) -> Reply:
    return Reply(text=said) if isinstance(said, str) else Reply(tool_calls=(said,))


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is so; a story that would wait for ever fails."""
    async with asyncio.timeout(20):
        while not await holds():  # noqa: ASYNC110 - what is waited for may be in another process
            await asyncio.sleep(0.01)
