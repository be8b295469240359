"""Makes the summary of a compaction, beside the turn, and records how the compaction ended.

Until the end is committed nothing has changed: a process that dies here leaves the old context, and a compaction that
the next holder starts again.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from holdfast.events.compaction import CompactionEnded, CompactionError
from holdfast.events.event import Event
from holdfast.events.ids import Position
from holdfast.models.model import Model, ModelError, ModelRequest, TextDelta, TokenUsage
from holdfast.models.summary_request import summary_request
from holdfast.session import compaction
from holdfast.session.actions import Append
from holdfast.session.fold import TOO_LONG
from holdfast.session.inputs import Inputs
from holdfast.session.passages import Passages
from holdfast.session.state import Compaction, State
from holdfast.session.tokens import tokens_in
from holdfast.store.log_pages import PAGE_BYTES
from holdfast.store.store import Store
from holdfast.turns.activities import raise_if_cancelled
from holdfast.turns.held_session import HeldSession

TRANSCRIPT_SHARE: Final = 0.6
"""The share of the window that the transcript takes up; the rest is for the earlier summary, for the new one, and for
tokens that the estimate misses."""

EVENTS_AT_ONCE: Final = 100
"""How many events are read at a time, from the newest backwards."""

SUMMARY_SECONDS: Final = 600.0
"""A summary that takes longer, with all tries at its call, has failed: a turn may be waiting for it."""

CHARACTERS_PER_TOKEN: Final = 8
"""More than any text has. A model that goes on beyond the tokens it was given is cut off."""

Reserve = Callable[[ModelRequest], Awaitable[bool]]
"""Has money reserved for a call; False: there is none."""

log = logging.getLogger(__name__)


class MadeSummary(msgspec.Struct, kw_only=True):
    """The outcome of the model call."""

    text: str = ""
    usage: TokenUsage | None = None
    error: str = ""
    is_called: bool = True
    """The model was called."""
    is_cut_off: bool = False
    """The model went on beyond all bounds."""


async def summarise(
    session: HeldSession,
    current: Compaction,
    model: Model,
    *,
    model_window: int,
    inputs: Callable[[], Inputs],
    reserve: Reserve,
) -> None:
    """Make the summary, and commit the end of the compaction, unless it was given up meanwhile. `model_window` is the
    window of the model that makes it; `inputs` gives what is decided on, as it is then; `reserve` has money reserved
    for a call."""
    replaced = compaction.tokens_left_out(session.state, current.up_to)
    made = await _ask(session, current, model, model_window, inputs, reserve)
    raise_if_cancelled()
    while session.state.compaction is not None and session.state.compaction.compaction_id == current.compaction_id:
        ended = _end(session.state, inputs(), current, made, model.name, replaced)
        # It may have been given up in a unit that is on its way to the log: then this one is refused.
        if await session.commit(Append(events=[ended], supposes_head=True)):
            return


def _end(
    state: State, inputs: Inputs, current: Compaction, made: MadeSummary, model: str, replaced: int
) -> CompactionEnded:
    text, code, message = _judged(made, replaced)
    ended = compaction.ended(state, inputs, current, text, error=code, message=message, model=model)
    usage = made.usage or TokenUsage()
    return msgspec.structs.replace(
        ended,
        attempt=ended.attempt if made.is_called else 0,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_microdollars=usage.cost_microdollars,
    )


def _judged(made: MadeSummary, replaced: int) -> tuple[str, CompactionError, str]:
    """The summary; or no text, a code and a sentence that say why there is none."""
    text = made.text.strip()
    if made.error:
        return "", "failed", made.error
    if not text:
        return "", "empty", "The model gave no summary."
    if made.is_cut_off:
        return "", "too_long", "The summary is much longer than it may be."
    if tokens_in(text) >= replaced:
        return "", "too_long", "The summary is no shorter than what it would replace."
    return text, "", ""


async def _ask(
    session: HeldSession,
    current: Compaction,
    model: Model,
    window: int,
    inputs: Callable[[], Inputs],
    reserve: Reserve,
) -> MadeSummary:
    try:
        async with asyncio.timeout(SUMMARY_SECONDS):
            return await _try(session, current, model, window, inputs, reserve)
    except TimeoutError:
        return MadeSummary(error=f"The summary took longer than {SUMMARY_SECONDS:.0f} seconds.")


async def _try(
    session: HeldSession,
    current: Compaction,
    model: Model,
    window: int,
    inputs: Callable[[], Inputs],
    reserve: Reserve,
) -> MadeSummary:
    """Call the model, again after a passing failure. A refusal as too long shortens the transcript: to the window that
    the provider names, or to a half."""
    failure = ""
    for attempt in range(session.bounds.max_compaction_attempts):
        if attempt:
            await session.clock.sleep(session.bounds.backoff_seconds * 2.0 ** (attempt - 1) * random.uniform(1.0, 1.25))
        request = await _request(session, current, window, inputs())
        raise_if_cancelled()
        made = MadeSummary()
        if not await reserve(request):
            return MadeSummary(error="There is no budget left for a summary.", is_called=attempt > 0)
        try:
            await _receive(model, request, made)
        except ModelError as error:
            failure = error.message
            if error.code == TOO_LONG:
                window = min(window // 2, error.window or window)
            elif not error.retryable:
                break
        except Exception as error:
            log.warning("no summary of session %s could be made: %s", session.key.session, type(error).__name__)
            failure = f"{model.name} failed: {type(error).__name__}"
            break
        else:
            return made
    return MadeSummary(error=failure)


async def _receive(model: Model, request: ModelRequest, made: MadeSummary) -> None:
    async with contextlib.aclosing(model.stream(request)) as stream:
        pieces: list[str] = []
        left = (request.max_tokens or 0) * CHARACTERS_PER_TOKEN
        async for chunks in stream:
            raise_if_cancelled()  # A model that ignored its cancellation is not read on, and not called again.
            for chunk in chunks:
                if isinstance(chunk, TextDelta):
                    pieces.append(chunk.text)
                    left -= len(chunk.text)
                elif isinstance(chunk, TokenUsage):
                    made.usage = chunk
            if left < 0:
                made.is_cut_off = True
                break
    made.text = "".join(pieces)


async def _request(session: HeldSession, current: Compaction, window: int, inputs: Inputs) -> ModelRequest:
    state = session.state
    passages = Passages(current.up_to, int(window * TRANSCRIPT_SHARE), state.seed)
    await _fill(session.store, session, passages)
    summary = state.summary()
    return summary_request(
        passages.text(),
        earlier=summary.text if summary is not None and passages.next > 0 else "",
        instructions=current.instructions,
        max_tokens=compaction.summary_tokens(state, inputs, window),
    )


async def _fill(store: Store, session: HeldSession, passages: Passages) -> None:
    """Read the log from the newest event backwards, until there is no more room."""
    page: dict[Position, Event] = {}
    while passages.next > 0:
        event = page.get(passages.next)
        if event is None:
            page = await _page_before(store, session, passages.next)
            event = page[passages.next]
        if not passages.take(event):
            return


async def _page_before(store: Store, session: HeldSession, last: Position) -> dict[Position, Event]:
    """Events up to position `last`, with it. Of large events, fewer."""
    count = EVENTS_AT_ONCE
    while True:
        after = Position(max(0, last - count))
        found = await store.events_after(session.key, after, limit=last - after, max_bytes=PAGE_BYTES)
        if found and found[-1].position == last:
            return {event.position: event for event in found}
        count = max(1, count // 4)
