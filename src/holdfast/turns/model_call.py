"""One model call: stream the answer, commit what comes before anyone sees it, record the message when it is whole.

A crash at any moment leaves segments that the next holder seals, or nothing at all, and then the call is made again.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable

from holdfast.events import message, tool
from holdfast.events.body import Body
from holdfast.events.message import ToolCallBlock
from holdfast.models.model import Chunk, Model, ModelError, ModelRequest
from holdfast.session.actions import Append, CallModel
from holdfast.session.inputs import Inputs
from holdfast.session.model_step import after_answer, after_answer_promotions
from holdfast.turns.activities import raise_if_cancelled
from holdfast.turns.answer_buffer import AnswerBuffer
from holdfast.turns.deferral import completed
from holdfast.turns.held_session import HeldSession


async def call_model(session: HeldSession, call: CallModel, model: Model, request: ModelRequest) -> None:
    """Make the call and record what came of it: the message, or the failure."""
    if call.delay_seconds:
        await session.clock.sleep(call.delay_seconds * random.uniform(1.0, 1.25))
    started = session.clock.now_ms()
    answer = AnswerBuffer(call.message_id, call.attempt, session.new_id, session.clock.monotonic)
    session.call_in_flight = (call.message_id, call.attempt)
    try:
        await _observed(session, answer, model, request)
    except ModelError as error:
        raise_if_cancelled()
        session.call_in_flight = None
        await _failed(session, call, error)
    else:
        raise_if_cancelled()
        session.call_in_flight = None
        await _record(session, answer, model.name, max(0, session.clock.now_ms() - started))


async def _observed(session: HeldSession, answer: AnswerBuffer, model: Model, request: ModelRequest) -> None:
    turn = session.observed.span
    if turn is None:
        return await _receive(session, answer, model, request)
    span = turn.model_call(
        model.name, message_id=answer.message_id, attempt=answer.attempt, stream=request.stream, sent=request.messages
    )
    started = session.clock.monotonic()
    with span:
        await _receive(session, answer, model, request, lambda: span.first_chunk(session.clock.monotonic() - started))
        span.answered(answer.finish_reason, answer.usage, answer.blocks)


async def _receive(
    session: HeldSession,
    answer: AnswerBuffer,
    model: Model,
    request: ModelRequest,
    began: Callable[[], None] | None = None,
) -> None:
    """`began` is called once, when the first of the answer is here."""
    writer = SegmentWriter(session, answer)
    stream = _whatever_it_raises(model, request)
    try:
        async for chunks in stream:
            raise_if_cancelled()
            answer.take(chunks)
            if began is not None:
                began()
                began = None
            if writer.has_shown or answer.finish_reason:
                writer.write_soon()
            else:
                await writer.write_now()
            if answer.characters > session.bounds.max_answer_characters:
                answer.finish_reason = "length"
                break
    finally:
        await stream.aclose()
        await writer.settle()


async def _whatever_it_raises(model: Model, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
    """The model's stream; a model that fails in a way of its own fails as models do."""
    try:
        async with contextlib.aclosing(model.stream(request)) as stream:
            async for chunks in stream:
                yield chunks
    except ModelError:
        raise
    except Exception as error:
        text = f"{model.name} failed: {type(error).__name__}: {error}"
        raise ModelError("model_failed", text, retryable=False) from error


class SegmentWriter:
    """Commits what came in while the last commit was under way, so that waiting for the disk makes larger pieces.

    One task writes for the whole call. Nobody cancels it: a commit whose outcome nobody heard would leave the state
    behind the log.
    """

    def __init__(self, session: HeldSession, answer: AnswerBuffer) -> None:
        self._session = session
        self._answer = answer
        self._more = asyncio.Event()
        self._is_settling = False
        self._writing: asyncio.Task[None] | None = None
        self.has_shown = False

    async def write_now(self) -> None:
        """The first words, that people wait for. They are written before more is read."""
        if segments := self._answer.take_segments():
            await self._session.commit_segments(segments)
            self.has_shown = True

    def write_soon(self) -> None:
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        elif self._writing.done():
            self._writing.result()
        self._more.set()

    async def settle(self) -> None:
        """Wait until what is being written is written. What came after it goes into the message itself."""
        self._is_settling = True
        self._more.set()
        if self._writing is not None:
            _, cancelled = await completed(self._writing)
            if cancelled is not None:
                raise cancelled

    async def _write(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            if self._is_settling:
                return
            if segments := self._answer.take_segments():
                await self._session.commit_segments(segments)


async def _record(session: HeldSession, answer: AnswerBuffer, model_name: str, duration_ms: int) -> None:
    """The message, what it used, its calls and, when it calls nothing, the end of its step and turn: one unit."""
    while True:
        await session.refresh_inbox()
        said = _message_events(answer, model_name, duration_ms)
        following: list[Body] = []
        inputs = Inputs(new_id=session.new_id, now=session.clock.now_ms(), bounds=session.bounds, inbox=session.inbox)
        if not answer.calls() and session.state.turn and not session.stopping():
            following = after_answer(session.state, inputs, session.state.turn, answer.text())
        written = Append(
            events=[*said, *following],
            promotes=after_answer_promotions(following, inputs),
            drops_segments=True,
        )
        if await session.commit(written):
            return


def _message_events(answer: AnswerBuffer, model_name: str, duration_ms: int) -> list[Body]:
    usage = answer.usage
    return [
        message.AssistantMessage(
            message_id=answer.message_id,
            blocks=answer.blocks(),
            model=model_name,
            finish_reason=answer.finish_reason,
            duration_ms=duration_ms,
        ),
        message.Usage(
            message_id=answer.message_id,
            model=model_name,
            input_tokens=usage.input_tokens if usage else None,
            output_tokens=usage.output_tokens if usage else None,
            cache_read_tokens=usage.cache_read_tokens if usage else None,
            reasoning_tokens=usage.reasoning_tokens if usage else None,
            cost_microdollars=usage.cost_microdollars if usage else None,
            attempt=answer.attempt,
            duration_ms=duration_ms,
        ),
        *(_started(block) for block in answer.calls()),
    ]


def _started(block: ToolCallBlock) -> tool.ToolStarted:
    return tool.ToolStarted(tool_call_id=block.tool_call_id, tool_name=block.name, arguments=block.arguments)


async def _failed(session: HeldSession, call: CallModel, error: ModelError) -> None:
    wait = error.retry_after_seconds
    failure = message.CallFailed(
        message_id=call.message_id,
        attempt=call.attempt,
        error_code=error.code,
        message=error.message,
        retryable=error.retryable,
        status_code=error.status,
        retry_after_ms=None if wait is None else int(wait * 1000),
    )
    await session.commit(Append(events=[failure]))
