"""A tool: what the model is told of it, what it needs permission for, how it runs, and what a crash means to it."""

import asyncio
import contextlib
import inspect
import threading
import typing
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.events.ids import Key, Owner, SessionId, ToolCallId
from holdfast.events.message import Image
from holdfast.events.request import PermissionAsk
from holdfast.events.tool import Origin
from holdfast.store.tasks import TaskEnding, TaskRow
from holdfast.tasks.shell import Shell, ShellArguments
from holdfast.tools.errors import BadTool, InvalidArguments

AfterCrash = Literal["repeat", "report"]
"""What to do with a call whose outcome a crash left unknown: run it again, because twice is as good as once; or
tell the model that nobody knows."""


class ToolContext:
    """What a running tool may know and do."""

    def __init__(
        self,
        *,
        session_id: SessionId,
        tool_call_id: ToolCallId,
        key: str,
        attempt: int,
        working_directory: Path | None,
        report: Callable[[str], None],
        read_output: Callable[[str], Awaitable[str | None]],
        permitted: PermissionAsk | None = None,
        owner: str = "",
        shell: Shell | None = None,
        command: TaskRow | None = None,
        to_background: asyncio.Event | None = None,
        max_running_tasks: int = 20,
        is_interrupted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.session_id = session_id
        self.tool_call_id = tool_call_id
        self.key = key
        """The same for every attempt at this call and for no other call: what to deduplicate by."""
        self.attempt = attempt
        self.working_directory = working_directory
        self.read_output = read_output
        self.permitted = permitted
        """What the call was allowed to do, where the tool said what that is: it must not do anything else."""
        self.owner = owner
        self.shell = shell
        """Runs commands that outlive this process; None: here they can't."""
        self.command = command
        """The row of the command that this call runs, for tools that run one."""
        self.to_background = to_background or asyncio.Event()
        """Set when somebody no longer wants to wait for this call: what it started should go on in the background."""
        self.max_running_tasks = max_running_tasks
        self.is_interrupted = is_interrupted
        """Of a tool that is cancelled: whether the turn is ended, or only this process lets go of it, and another one
        goes on with what outlives a process."""
        self.last_words = ""
        """Left by a tool that is cancelled: what the model should know of how far it came."""
        self._report = report
        self._cancelled = threading.Event()

    @property
    def session(self) -> Key:
        return Key(Owner(self.owner), self.session_id)

    def progress(self, text: str) -> None:
        """Show people a line while the tool runs. It is not kept."""
        self._report(text)

    @property
    def cancelled(self) -> bool:
        """The turn was stopped. A tool that runs in a thread should look now and then, and return."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool gives back when plain text is not enough."""

    content: str
    success: bool = True
    binary: bytes | None = None
    images: tuple[Image, ...] = ()
    """Pictures that the model is shown with it."""
    details: str = ""
    """For people: more than the model is told."""
    origin: Origin | None = None
    """Where the content is from, if not from where the tool says that it gets what it gives."""
    went_on: Literal["", "started", "flipped"] = ""
    """The command of this call goes on in the background: it was to from the start, or took too long to wait for."""
    ending: TaskEnding | None = None
    """How the command of this call ended."""
    code: str = ""
    """The stable name of why it was refused, where there is one."""


Asker = Callable[[Any, Path | None], PermissionAsk | None]
"""From a call's arguments and the session's directory to what it would do, or None when nobody need be asked."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as the registry holds it. Made by `tool`, or by hand."""

    name: str
    description: str
    parameters: dict[str, Any]
    arguments: type[Any]
    """What the model's arguments are checked against and turned into."""
    run: Callable[[Any, ToolContext], Awaitable[Any]]
    asks: Asker
    after_crash: AfterCrash = "report"
    read_only: bool = False
    """It changes nothing: a dry run really runs it."""
    origin: Origin = "tool"
    """Where it gets what it gives. The model is shown that with each result, which it is told not to obey."""
    simulate: Callable[[Any], Any] | None = None
    asks_person: bool = False
    """Not run at all: its arguments are a question, and the answer is its result."""
    timeout_seconds: float | None = None
    waits_by_itself: bool = False
    """It bounds its own waiting: no limit is put on it from outside."""
    shell_arguments: Callable[[Any, Path | None], ShellArguments] | None = None
    """For a tool that runs a command: which one. Its row is written before it starts."""

    def parse(self, arguments: str) -> Any:
        """The model's arguments, checked; raises `InvalidArguments` with a sentence for the model."""
        try:
            return msgspec.json.decode(arguments or "{}", type=self.arguments)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
            raise InvalidArguments(f"The arguments of {self.name} are not valid: {error}") from error


@typing.overload
def tool(function: Callable[..., Any]) -> Tool: ...


@typing.overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    permission: Literal["ask", "allow"] | Asker = "ask",
    after_crash: AfterCrash = "report",
    read_only: bool = False,
    origin: Origin = "tool",
    simulate: Callable[[Any], Any] | None = None,
    timeout_seconds: float | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    permission: Literal["ask", "allow"] | Asker = "ask",
    after_crash: AfterCrash = "report",
    read_only: bool = False,
    origin: Origin = "tool",
    simulate: Callable[[Any], Any] | None = None,
    timeout_seconds: float | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, sync or async. Its type hints become the parameters, its docstring the description.

    A parameter annotated `ToolContext` gets the context. A sync function runs in a thread, which can't be stopped:
    it may end long after the turn did.
    """

    def make(found: Callable[..., Any]) -> Tool:
        tool_name = name or found.__name__
        arguments, context_parameter, parameters = _described(found, tool_name)
        return Tool(
            name=tool_name,
            description=description or inspect.getdoc(found) or "",
            parameters=parameters,
            arguments=arguments,
            run=_runner(found, context_parameter),
            asks=_asker(permission, tool_name),
            after_crash=after_crash,
            read_only=read_only,
            origin=origin,
            simulate=simulate,
            timeout_seconds=timeout_seconds,
        )

    return make if function is None else make(function)


def _described(function: Callable[..., Any], name: str) -> tuple[type[Any], str | None, dict[str, Any]]:
    try:
        arguments, context_parameter = _arguments_of(function, name)
        return arguments, context_parameter, _schema_of(arguments)
    except BadTool:
        raise
    except (TypeError, NameError) as error:
        raise BadTool(f"{name}: its parameters can't be described to a model: {error}") from error


def _arguments_of(function: Callable[..., Any], name: str) -> tuple[type[Any], str | None]:
    """The function's parameters as a struct, and the name of the one that takes the context."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    context_parameter = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise BadTool(f"{name}: a tool takes named parameters; {parameter} is not one")
        hint = hints.get(parameter.name)
        if hint is ToolContext:
            context_parameter = parameter.name
        elif hint is None:
            raise BadTool(f"{name}: the parameter {parameter.name} needs a type hint")
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, parameter.default))
    made = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
    return made, context_parameter


def _schema_of(arguments: type[Any]) -> dict[str, Any]:
    (schema,), definitions = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    own = definitions.pop(schema["$ref"].rsplit("/", 1)[1])
    own.pop("title", None)
    if definitions:
        own["$defs"] = definitions
    return dict(own)


def _runner(
    function: Callable[..., Any], context_parameter: str | None
) -> Callable[[Any, ToolContext], Awaitable[Any]]:
    async def run(arguments: Any, context: ToolContext) -> Any:
        given = {field: getattr(arguments, field) for field in arguments.__struct_fields__}
        if context_parameter:
            given[context_parameter] = context
        if inspect.iscoroutinefunction(function):
            return await function(**given)
        return await _in_thread(function, given)

    return run


def in_thread(function: Callable[[Any, ToolContext], Any]) -> Callable[[Any, ToolContext], Awaitable[Any]]:
    """How a tool that is made by hand runs a plain function."""

    async def run(arguments: Any, context: ToolContext) -> Any:
        return await _in_thread(function, {"arguments": arguments, "context": context})

    return run


async def _in_thread(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """In a thread of its own, that neither a crowd of slow tools nor the end of the program waits for. A thread can't
    be stopped: a cancellation is raised once it has ended."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = function(**given)
        except BaseException as error:
            # What would end the program, or confuse the loop, is this tool's failure and no more.
            heeded = isinstance(error, (Exception, SystemExit, asyncio.CancelledError))
            failure = (
                error
                if heeded and not isinstance(error, StopIteration)
                else RuntimeError(f"it raised {type(error).__name__}: {error}")
            )
        with contextlib.suppress(RuntimeError):  # the program ended first
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name=f"tool {function.__name__}", daemon=True).start()
    cancelled: asyncio.CancelledError | None = None
    while not outcome.done():
        try:
            await asyncio.wait((outcome,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        outcome.exception()  # What it gave, having been told to end, is no result.
        raise cancelled
    return outcome.result()


def _asker(permission: Literal["ask", "allow"] | Asker, name: str) -> Asker:
    if callable(permission):
        return permission
    if permission == "allow":
        return lambda arguments, directory: None
    return lambda arguments, directory: PermissionAsk(kind="custom-tool", subject=name)
