"""One model call: stream the answer, commit each piece before readers see it, record the message when it is complete.

A crash at any moment leaves segments, which the next holder seals, or nothing; in both cases the next holder makes the
call again.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable

from holdfast.events import message, tool
from holdfast.events.body import Body
from holdfast.events.message import ReasoningBlock, ToolCallBlock
from holdfast.models.model import Chunk, Model, ModelError, ModelRequest
from holdfast.session.actions import Append, CallModel
from holdfast.session.inputs import Inputs
from holdfast.session.model_step import after_answer, after_answer_promotions
from holdfast.turns.activities import raise_if_cancelled
from holdfast.turns.answer_buffer import AnswerBuffer
from holdfast.turns.deferral import defer_cancellation
from holdfast.turns.held_session import HeldSession
from holdfast.turns.status import Wait


async def call_model(session: HeldSession, call: CallModel, model: Model, request: ModelRequest) -> None:
    """Make the call and record its outcome: the message, or the failure."""
    reason = _last_failure(session)
    if call.delay_seconds:
        delay = call.delay_seconds * random.uniform(1.0, 1.25)
        with Wait(session, "retry", attempt=call.attempt, reason=reason, delay_seconds=delay):
            await session.clock.sleep(delay)
    started = session.clock.now_ms()
    answer = AnswerBuffer(call.message_id, call.attempt, session.new_id, session.clock.monotonic)
    session.call_in_flight = (call.message_id, call.attempt)
    try:
        with Wait(session, "model", attempt=call.attempt, reason=reason) as wait:
            await _receive_in_span(session, answer, model, request, wait)
    except ModelError as error:
        raise_if_cancelled()
        session.call_in_flight = None
        await _record_failure(session, call, error)
    else:
        raise_if_cancelled()
        session.call_in_flight = None
        await _record_answer(session, answer, model, max(0, session.clock.now_ms() - started))


def unreachable_files() -> ModelError:
    """The failure of a call whose files can't be read. The reason is for the operator, in the log."""
    return ModelError("files_unavailable", "The files of this conversation can't be reached.", retryable=True)


async def fail_call(session: HeldSession, call: CallModel, error: ModelError) -> None:
    """Record that a call failed before it was made."""
    if call.delay_seconds:
        await session.clock.sleep(call.delay_seconds)
    raise_if_cancelled()
    await _record_failure(session, call, error)


def _last_failure(session: HeldSession) -> str:
    """The error code of the call's last attempt; empty if none failed."""
    turn = session.state.turn
    return turn.failure.code if turn is not None and turn.failure is not None else ""


async def _receive_in_span(
    session: HeldSession, answer: AnswerBuffer, model: Model, request: ModelRequest, wait: Wait
) -> None:
    turn = session.observed.span
    if turn is None:
        return await _receive(session, answer, model, request, wait)
    span = turn.model_call(
        model.name, message_id=answer.message_id, attempt=answer.attempt, stream=request.stream, sent=request.messages
    )
    started = session.clock.monotonic()
    with span:
        await _receive(
            session, answer, model, request, wait, lambda: span.first_chunk(session.clock.monotonic() - started)
        )
        span.answered(answer.finish_reason, answer.usage, answer.blocks)


async def _receive(
    session: HeldSession,
    answer: AnswerBuffer,
    model: Model,
    request: ModelRequest,
    wait: Wait,
    on_first_chunk: Callable[[], None] | None = None,
) -> None:
    """Stream the answer into the buffer and commit its segments. `on_first_chunk` is called once, for the first."""
    writer = SegmentWriter(session, answer)
    stream = _stream_with_model_errors(model, request)
    try:
        async for chunks in stream:
            raise_if_cancelled()
            answer.take(chunks)
            wait.heard("answer")
            if on_first_chunk is not None:
                on_first_chunk()
                on_first_chunk = None
            if writer.has_shown or answer.finish_reason:
                writer.write_soon()
            else:
                await writer.write_now()
            if answer.characters > session.bounds.max_answer_characters:
                answer.finish_reason = answer.finish_reason or "length"
                break
    finally:
        await stream.aclose()
        await writer.finish()


async def _stream_with_model_errors(model: Model, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
    """Stream from the model, and turn every other exception that it raises into a `ModelError`."""
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
    """Commits the segments that arrived during the last commit, so that waiting for the disk makes larger segments.

    One task writes for the whole call. It is never cancelled: a commit whose outcome is not awaited would leave the
    state behind the log.
    """

    def __init__(self, session: HeldSession, answer: AnswerBuffer) -> None:
        self._session = session
        self._answer = answer
        self._wakeup = asyncio.Event()
        self._is_finishing = False
        self._task: asyncio.Task[None] | None = None
        self.has_shown = False

    async def write_now(self) -> None:
        """Commit at once, before more is read from the model: people wait for the first words."""
        if segments := self._answer.take_segments():
            await self._session.commit_segments(segments)
            self.has_shown = True

    def write_soon(self) -> None:
        """Have the writer task commit what arrived; raises its error if it failed."""
        if self._task is None:
            self._task = asyncio.create_task(self._write())
        elif self._task.done():
            self._task.result()
        self._wakeup.set()

    async def finish(self) -> None:
        """Wait until the commit in progress completes. Text that arrived after it goes into the message itself."""
        self._is_finishing = True
        self._wakeup.set()
        if self._task is not None:
            _, cancelled = await defer_cancellation(self._task)
            if cancelled is not None:
                raise cancelled

    async def _write(self) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            if self._is_finishing:
                return
            if segments := self._answer.take_segments():
                await self._session.commit_segments(segments)


async def _record_answer(session: HeldSession, answer: AnswerBuffer, model: Model, duration_ms: int) -> None:
    """Commit as one unit: the message, its usage, its tool calls and, if it has none, the end of its step and turn."""
    while True:
        await session.refresh_inbox()
        message_events = _message_events(answer, model, duration_ms)
        following: list[Body] = []
        inputs = Inputs(
            new_id=session.new_id,
            now=session.clock.now_ms(),
            bounds=session.bounds,
            inbox=session.inbox,
            over_budget=session.reservations.over_budget,
        )
        if not answer.calls() and session.state.turn and not session.has_stop():
            following = after_answer(session.state, inputs, session.state.turn, answer.text())
        append = Append(
            events=[*message_events, *following],
            promotes=after_answer_promotions(following, session.state, inputs),
            drops_segments=True,
        )
        if await session.commit(append):
            return


def _message_events(answer: AnswerBuffer, model: Model, duration_ms: int) -> list[Body]:
    usage, blocks = answer.usage, answer.blocks()
    has_opaque = any(isinstance(block, ReasoningBlock) and block.opaque for block in blocks)
    return [
        message.AssistantMessage(
            message_id=answer.message_id,
            blocks=blocks,
            model=model.name,
            reasoning_source=model.reasoning_source if has_opaque else "",
            finish_reason=answer.finish_reason,
            duration_ms=duration_ms,
        ),
        message.Usage(
            message_id=answer.message_id,
            model=model.name,
            input_tokens=usage.input_tokens if usage else None,
            output_tokens=usage.output_tokens if usage else None,
            cache_read_tokens=usage.cache_read_tokens if usage else None,
            cache_write_tokens=usage.cache_write_tokens if usage else None,
            reasoning_tokens=usage.reasoning_tokens if usage else None,
            cost_microdollars=usage.cost_microdollars if usage else None,
            attempt=answer.attempt,
            duration_ms=duration_ms,
            context_tokens=usage.context_tokens if usage else None,
        ),
        *(_started(block) for block in answer.calls()),
    ]


def _started(block: ToolCallBlock) -> tool.ToolStarted:
    return tool.ToolStarted(tool_call_id=block.tool_call_id, tool_name=block.name, arguments=block.arguments)


async def _record_failure(session: HeldSession, call: CallModel, error: ModelError) -> None:
    wait = error.retry_after_seconds
    failure = message.CallFailed(
        message_id=call.message_id,
        attempt=call.attempt,
        error_code=error.code,
        message=error.message,
        retryable=error.retryable,
        status_code=error.status,
        retry_after_ms=None if wait is None else int(wait * 1000),
        window=error.window,
    )
    await session.commit(Append(events=[failure]))
