"""One tool call: the facts that `decide` needs before it runs, and the run itself.

An attempt is committed, under the fence, right before the side effect. From then until the result is committed, a crash
leaves the outcome unknown, and the tool's own rule says what the next holder does.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.events import codec
from holdfast.events.body import Body
from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
from holdfast.events.request import PermissionAsk
from holdfast.events.session import ClientTool
from holdfast.events.task import TaskStarted
from holdfast.events.tool import Origin, ToolAttempted, ToolCompleted, ToolError
from holdfast.live.live import Progress
from holdfast.observability.activity import begin_tool_call
from holdfast.session.actions import Append
from holdfast.session.inputs import CallFacts, InterruptedCall
from holdfast.session.prompt import is_offered, unasked_tools
from holdfast.session.state import ModelReply, State, ToolCall
from holdfast.session.tool_results import preview
from holdfast.store.tasks import TaskChange, TaskEnding, TaskRow
from holdfast.tasks.endings import shortened
from holdfast.tools.built_in import Question
from holdfast.tools.errors import ToolFailure
from holdfast.tools.registry import Registry
from holdfast.tools.tool import Tool, ToolContext, ToolResult
from holdfast.turns import cancelled_tools
from holdfast.turns.held_session import HeldSession
from holdfast.turns.own_log import SessionLog
from holdfast.turns.status import Wait


async def facts_of(
    state: State,
    registry: Registry,
    *,
    running: Callable[[], frozenset[str]],
    max_calls: int,
    directory: Path | None = None,
) -> dict[ToolCallId, CallFacts]:
    """The facts about each call that waits for a decision: where it runs, what it asks, why it can't run.

    A tool reads files and compares texts to say what it asks, so other tasks get a turn between two calls. They may
    change the state meanwhile: on return, the facts cover every call that waits for a decision then."""
    facts: dict[ToolCallId, CallFacts] = {}
    while missing := [call for call in _undecided(state, running()) if call.tool_call_id not in facts]:
        reply = state.reply()
        allowed = {call.tool_call_id for call in reply.calls[:max_calls]} if reply is not None else set()
        for call in missing:
            if call.tool_call_id not in allowed:
                facts[call.tool_call_id] = _too_many(max_calls)
                continue
            if facts:
                await asyncio.sleep(0)
            facts[call.tool_call_id] = _facts(state, registry, call, directory)
    return facts


def _undecided(state: State, running: frozenset[str]) -> list[ToolCall]:
    """The calls that neither have a result, nor run, nor wait for an answer: an answer is followed by a decision, for
    which the tool describes its call again."""
    reply = state.reply()
    if reply is None:
        return []
    return [call for call in reply.unfinished() if call.request_id is None and call.tool_call_id not in running]


def _too_many(max_calls: int) -> CallFacts:
    return CallFacts(
        where="nowhere",
        error=f"Only {max_calls} tool calls can be made at once.",
        error_code="invalid_arguments",
    )


def _facts(state: State, registry: Registry, call: ToolCall, directory: Path | None) -> CallFacts:
    client = next((each for each in state.client_tools if each.name == call.name), None)
    if client is not None:
        return _client_facts(client, call)
    tool = registry.get(call.name)
    unasked = unasked_tools(compactions=state.compactions, has_files=state.has_files)
    if tool is None or not is_offered(call.name, state.tools, unasked):
        offered = ", ".join(spec.name for spec in registry.offered(state.tools, state.client_tools))
        text = f"Tool '{call.name}' does not exist. Available tools that can be called are {offered}."
        return CallFacts(where="nowhere", error=text)
    try:
        arguments = tool.parse(call.arguments)
        ask = tool.asks(arguments, directory)
    except ToolFailure as error:
        if error.code:
            return CallFacts(where="nowhere", error=str(error), error_code="failed", code=error.code)
        return _invalid_arguments(tool, str(error))
    except (
        Exception
    ) as error:  # The tool's own code: its errors become the result of this call, and do not end the session.
        text = codec.without_surrogates(f"{tool.name} can't take these arguments: {type(error).__name__}: {error}")
        return _invalid_arguments(tool, text)
    if tool.asks_person:
        return _question_facts(arguments)
    if state.dry_run and not tool.read_only:
        ask = None
    return CallFacts(where="here", ask=ask, repeatable=tool.after_crash == "repeat")


def _invalid_arguments(tool: Tool, error: str) -> CallFacts:
    return CallFacts(where="nowhere", error=error, error_code="invalid_arguments", error_origin=tool.origin)


def _client_facts(client: ClientTool, call: ToolCall) -> CallFacts:
    ask = None
    if client.asks_permission:
        details = {
            "toolName": client.name,
            "toolDescription": client.description,
            "args": codec.arguments(call.arguments),
        }
        ask = PermissionAsk(kind="custom-tool", subject=client.name, details=details)
    return CallFacts(where="client", ask=ask, repeatable=True)


def _question_facts(arguments: Question) -> CallFacts:
    return CallFacts(
        where="person",
        question=arguments.question,
        choices=arguments.choices,
        allow_freeform=arguments.allow_freeform,
        repeatable=True,
    )


async def run_tool(session: HeldSession, call: ToolCall, tool: Tool, permitted: PermissionAsk | None = None) -> None:
    """Run one call and record its result. When a stop cancels it, it records nothing: the stop does.

    `permitted` is the permission that the decision to run it was based on: a link that was changed since then must not
    be followed."""
    attempt = call.attempts + 1
    arguments = tool.parse(call.arguments)
    if session.state.dry_run and not tool.read_only:
        result = await _outcome_of(tool.name, _simulate(tool, arguments))
        await _record_result(session, call.tool_call_id, result, 0, tool.origin, simulated=True)
        return
    try:
        command = _command_row(session, call, tool, arguments)
    except Exception as error:  # The tool's own code, as in `_facts`.
        await _record_result(
            session, call.tool_call_id, ToolRunOutcome(f"{tool.name} failed: {error}", "failed"), 0, tool.origin
        )
        return
    attempted = ToolAttempted(tool_call_id=call.tool_call_id, attempt=attempt)
    await session.commit(Append(events=[attempted]), opens_task=command)
    started = session.clock.now_ms()
    wait = Wait(session, "tool", attempt=attempt, tool_call_id=call.tool_call_id)
    context = _context(session, call, attempt, permitted, command, wait)
    begin_tool_call(call.tool_call_id)
    try:
        with wait:
            result = await _run_in_span(session, call, tool, arguments, context)
    finally:
        context.cancel()
        session.to_background.pop(call.tool_call_id, None)
    duration = max(0, session.clock.now_ms() - started)
    await _record_result(session, call.tool_call_id, result, duration, tool.origin, command=command)


async def _run_in_span(
    session: HeldSession, call: ToolCall, tool: Tool, arguments: Any, context: ToolContext
) -> "ToolRunOutcome":
    """Run the tool, inside a span if traces are on."""
    turn = session.observed.span
    if turn is None:
        return await _run_within_limit(session, tool, arguments, context)
    span = turn.tool_call(tool.name, tool_call_id=call.tool_call_id, attempt=context.attempt, arguments=call.arguments)
    with span:
        result = await _run_within_limit(session, tool, arguments, context)
        span.ended(result.error, result.content)
        return result


async def _run_within_limit(session: HeldSession, tool: Tool, arguments: Any, context: ToolContext) -> "ToolRunOutcome":
    """Run the tool in a task of its own, within its time limit. A tool that ignores its cancellation, or can't be
    stopped because it runs in a thread, delays neither the turn nor a stop: it is left to `session.cancelled_tools`."""
    limit_seconds = _time_limit(session, tool)
    running = asyncio.create_task(_outcome_of(tool.name, tool.run(arguments, context)), name=f"tool {tool.name}")
    try:
        ended, _ = await asyncio.wait((running,), timeout=limit_seconds)
        if not ended:
            context.cancel()
            session.cancelled_tools.cancel(running)
            await asyncio.wait((running,), timeout=cancelled_tools.GIVE_UP_SECONDS)
    except asyncio.CancelledError:
        context.cancel()
        session.cancelled_tools.cancel(running)
        if session.is_interrupting:
            session.interrupted[context.tool_call_id] = partial(
                _interrupted_call, session, running, context, tool.origin
            )
        raise
    if running.done() and not running.cancelled():
        return running.result()
    if ended:
        return ToolRunOutcome(f"{tool.name} failed: it cancelled itself.", "failed")
    given_up = "was given up" if running.done() else "was given up, but it is still running"
    text = f"{tool.name} did not finish within {limit_seconds:g} seconds and {given_up}. It may still take effect."
    return ToolRunOutcome(text, "timeout", origin="runtime")


def _time_limit(session: HeldSession, tool: Tool) -> float | None:
    if tool.waits_by_itself:
        return None
    return min(tool.timeout_seconds or math.inf, session.bounds.tool_timeout_seconds)


def _interrupted_call(
    session: HeldSession, running: "asyncio.Task[ToolRunOutcome]", context: ToolContext, origin: Origin
) -> InterruptedCall:
    """How far an interrupted call got, as far as its tool has reported by now."""
    if not running.done():
        return InterruptedCall(has_ended=False)
    known = context.last_words if running.cancelled() else running.result().content
    known = session.redacted(codec.without_surrogates(known))
    if codec.size_of(known) > session.bounds.max_tool_result_bytes:
        known = "What it gave back is too large to be kept."
    return InterruptedCall(has_ended=True, known=known, origin=origin)


class ToolRunOutcome(msgspec.Struct, frozen=True):
    """The result of a run, made from the value that the tool returned or the error that it raised."""

    content: str
    error: ToolError | None = None
    origin: Origin | None = None
    """Where the content comes from; None: the tool's own origin."""
    binary: bytes | None = None
    images: tuple[Image, ...] = ()
    details: str = ""
    went_on: Literal["", "started", "flipped"] = ""
    ending: TaskEnding | None = None
    code: str = ""


async def _outcome_of(name: str, work: Awaitable[Any]) -> ToolRunOutcome:
    """Turn the tool's value or error into a result that the model can read. An error that it raises after it was
    cancelled carries no information, and is raised as the cancellation."""
    try:
        return _as_outcome(await work)
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        return ToolRunOutcome(f"{name} failed: something that it waited for was cancelled.", "failed")
    except (Exception, SystemExit) as error:
        if _is_cancelled():
            raise asyncio.CancelledError from error
        if isinstance(error, ToolFailure):
            return ToolRunOutcome(str(error), "failed", "runtime" if error.code else None, code=error.code)
        return ToolRunOutcome(f"{name} failed: {type(error).__name__}: {error}", "failed")


def _is_cancelled() -> bool:
    """Whether this task was cancelled; false if the tool raised a `CancelledError` by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _as_outcome(value: Any) -> ToolRunOutcome:
    match value:
        case ToolResult():
            raw: object = value.content
            content = raw if isinstance(raw, str) else codec.to_bytes(raw).decode()
            return ToolRunOutcome(
                content,
                None if value.success else "failed",
                value.origin,
                value.binary,
                value.images,
                value.details,
                value.went_on,
                value.ending,
                value.code,
            )
        case str():
            return ToolRunOutcome(value)
        case bytes():
            return _from_bytes(value)
        case None:
            return ToolRunOutcome("Done.", origin="runtime")
        case _:
            return ToolRunOutcome(codec.to_bytes(value).decode())


def _from_bytes(value: bytes) -> ToolRunOutcome:
    try:
        return ToolRunOutcome(value.decode())
    except UnicodeDecodeError:
        return ToolRunOutcome(
            f"The tool returned {len(value):,} bytes of binary data, which are kept with the call.",
            None,
            "runtime",
            value,
        )


async def _simulate(tool: Tool, arguments: Any) -> Any:
    if tool.simulate is not None:
        return tool.simulate(arguments)
    return f"(dry run: {tool.name} was not run; suppose that it succeeded)"


async def _record_result(
    session: HeldSession,
    tool_call_id: ToolCallId,
    outcome: ToolRunOutcome,
    duration_ms: int,
    origin: Origin,
    *,
    simulated: bool = False,
    command: TaskRow | None = None,
) -> None:
    bounds = session.bounds
    size = codec.size_of(outcome.content) + len(outcome.binary or b"")
    size += codec.size_of(outcome.details) + sum(len(image.data) for image in outcome.images)
    if size > bounds.max_tool_result_bytes:
        limit = bounds.max_tool_result_bytes
        text = f"The result was {size:,} bytes; more than {limit:,} can't be kept. Ask for less."
        outcome = ToolRunOutcome(text, "too_large", "runtime", went_on=outcome.went_on, ending=outcome.ending)
    content = session.redacted(codec.without_surrogates(outcome.content))
    completed = ToolCompleted(
        tool_call_id=tool_call_id,
        success=outcome.error is None,
        content=content,
        preview=preview(content, bounds.max_tool_characters, tool_call_id),
        origin=outcome.origin or origin,
        error=outcome.error,
        code=outcome.code,
        binary=outcome.binary,
        images=outcome.images,
        details=session.redacted(codec.without_surrogates(outcome.details)),
        simulated=simulated,
        duration_ms=duration_ms,
    )
    if command is None:
        await session.commit(Append(events=[completed]))
        return
    goes_on = bool(outcome.went_on)
    events: list[Body] = [completed, _task_started(session, command, outcome)] if goes_on else [completed]
    change = TaskChange(task_id=command.task_id, goes_on=goes_on, ending=outcome.ending)
    await session.commit(Append(events=events), changes_task=change)


def _task_started(session: HeldSession, command: TaskRow, outcome: ToolRunOutcome) -> TaskStarted:
    return TaskStarted(
        task_id=command.task_id,
        tool_call_id=command.tool_call_id,
        command=shortened(session.redacted(command.command)),
        description=session.redacted(command.description),
        output_file=command.output_file,
        flipped=outcome.went_on == "flipped",
    )


def _command_row(session: HeldSession, call: ToolCall, tool: Tool, arguments: Any) -> TaskRow | None:
    """The row of the command that a call starts; None if it starts none. The row is written with the attempt, before
    the command starts, so that the command is watched even after a crash."""
    if tool.shell_arguments is None or session.shell is None:
        return None
    shell_arguments = tool.shell_arguments(arguments, session.directory())
    call_key = _call_key(session.state.reply(), call)
    return session.shell.row(session.key, call.tool_call_id, call_key, shell_arguments, session.clock.now_ms())


def _context(
    session: HeldSession,
    call: ToolCall,
    attempt: int,
    permitted: PermissionAsk | None,
    command: TaskRow | None,
    wait: Wait,
) -> ToolContext:
    loop = asyncio.get_running_loop()

    def report(text: str) -> None:
        hint = Progress(call.tool_call_id, session.redacted(text))
        loop.call_soon_threadsafe(wait.heard)
        loop.call_soon_threadsafe(session.live.publish, session.key, hint)

    log = SessionLog(session.store, session.key, session.state.seed)
    reply = session.state.reply()
    to_background = session.to_background.setdefault(call.tool_call_id, asyncio.Event())
    return ToolContext(
        session_id=session.key.session,
        tool_call_id=call.tool_call_id,
        key=_call_key(reply, call),
        attempt=attempt,
        working_directory=session.directory(),
        report=report,
        read_output=log.whole_output,
        permitted=permitted,
        owner=session.key.owner,
        shell=session.shell,
        command=command,
        to_background=to_background,
        max_running_tasks=session.bounds.max_running_tasks,
        is_interrupted=lambda: session.is_interrupting,
        lease_seconds_left=session.lease_seconds_left,
        log=log,
        files=session.files,
    )


def _call_key(reply: ModelReply | None, call: ToolCall) -> str:
    return f"{reply.message_id if reply else ''}:{call.tool_call_id}"
