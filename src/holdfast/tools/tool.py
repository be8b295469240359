"""A tool: its description for the model, its permission request, how it runs, and what to do after a crash."""

import asyncio
import contextlib
import inspect
import math
import threading
import typing
from collections.abc import AsyncIterable, Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import FileId, Key, Owner, Position, SessionId, ToolCallId
from holdfast.events.message import Image
from holdfast.events.request import PermissionAsk
from holdfast.events.tool import Origin
from holdfast.files.errors import FilesUnavailable
from holdfast.files.files import Files
from holdfast.store.files import FileRow
from holdfast.store.tasks import TaskEnding, TaskRow
from holdfast.store.text_index import Hit
from holdfast.tasks.shell import Shell, ShellArguments
from holdfast.tools.errors import BadTool, InvalidArguments

AfterCrash = Literal["repeat", "report"]
"""How to treat a call whose outcome a crash left unknown: `repeat` runs it again, because twice is as good as once;
`report` tells the model that the outcome is unknown."""


class OwnLog(typing.Protocol):
    """The log of the tool's own session, for reading."""

    @property
    def seed(self) -> str:
        """The seed of the session's quotes."""
        ...

    async def search(self, query: str, *, limit: int, before: Position | None) -> tuple[Hit, ...]:
        """The newest passages with all words of the query."""
        ...

    async def passages(self, first: Position, last: Position, *, limit: int) -> tuple[Event, ...]:
        """The first of the passages between two positions, with both."""
        ...


class ToolContext:
    """The environment of a running tool: the data that it may read and the functions that it may call."""

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
        lease_seconds_left: Callable[[], float] = lambda: math.inf,
        log: OwnLog | None = None,
        files: Files | None = None,
    ) -> None:
        self.session_id = session_id
        self.tool_call_id = tool_call_id
        self.key = key
        """Deduplication key: the same for every attempt at this call, and for no other call."""
        self.attempt = attempt
        self.working_directory = working_directory
        self.read_output = read_output
        self.permitted = permitted
        """The permission that the call was given, if the tool declared what it does: it must not do anything else."""
        self.owner = owner
        self.shell = shell
        """Runs commands that outlive this process; None: commands can't be run here."""
        self.command = command
        """The row of the command that this call runs, for tools that run one."""
        self.to_background = to_background or asyncio.Event()
        """Set when this call should no longer be waited for: what it started should go on in the background."""
        self.max_running_tasks = max_running_tasks
        self.is_interrupted = is_interrupted
        """For a cancelled tool: True if the turn is stopped; False if only this process lets go of it and another one
        continues with what outlives a process."""
        self.lease_seconds_left = lease_seconds_left
        """For how long this process may trust its lease on the session. Later, another process may run the same
        call."""
        self.log = log
        """What was said in the session; None: it can't be read here."""
        self.files = files
        """The files of all owners; None: there are none here."""
        self.last_words = ""
        """Set by a cancelled tool: what the model should know about its progress."""
        self._report = report
        self._cancelled = threading.Event()

    @property
    def session(self) -> Key:
        return Key(Owner(self.owner), self.session_id)

    async def save_file(self, name: str, pieces: AsyncIterable[bytes], *, media_type: str = "") -> FileRow:
        """Save a file that the person can list and fetch with the session, and return its row. Another attempt at this
        call saves the same content once. Raises `FileRefused` and `FilesUnavailable`."""
        if self.files is None:
            raise FilesUnavailable("There is no file store here.")
        known = sha256(f"{self.owner}/{self.session_id}/{self.key}/{name}".encode("utf-8", "surrogatepass")).hexdigest()
        return await self.files.add(
            Owner(self.owner),
            name,
            pieces,
            media_type=media_type,
            file_id=FileId(f"made-{known[:48]}"),
            session=self.session_id,
            made_by=self.tool_call_id,
        )

    def progress(self, text: str) -> None:
        """Shows people a line while the tool runs. It is not stored."""
        self._report(text)

    @property
    def cancelled(self) -> bool:
        """Whether the turn was stopped. A tool that runs in a thread should check this from time to time, and
        return."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool when plain text is not enough."""

    content: str
    success: bool = True
    binary: bytes | None = None
    images: tuple[Image, ...] = ()
    """Images that the model sees with the result."""
    details: str = ""
    """Details for people that the model does not get."""
    origin: Origin | None = None
    """Origin of the content, if it differs from the tool's."""
    went_on: Literal["", "started", "flipped"] = ""
    """Set if the command of this call goes on in the background: `started` there, or `flipped` because it took too
    long."""
    ending: TaskEnding | None = None
    """How the command of this call ended."""
    code: str = ""
    """Stable code of a refusal, or empty."""


Asker = Callable[[Any, Path | None], PermissionAsk | None]
"""Turns a call's arguments and the session's directory into a permission request; None if no permission is needed."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as the registry holds it. Created by `tool` or directly."""

    name: str
    description: str
    parameters: dict[str, Any]
    arguments: type[Any]
    """The type that the model's arguments are checked against and decoded into."""
    run: Callable[[Any, ToolContext], Awaitable[Any]]
    asks: Asker
    after_crash: AfterCrash = "report"
    read_only: bool = False
    """The tool changes nothing: a dry run really runs it."""
    origin: Origin = "tool"
    """Origin of the tool's results. The model sees it with each result, and is instructed not to obey the content."""
    simulate: Callable[[Any], Any] | None = None
    asks_person: bool = False
    """The tool is not run: its arguments are a question, and the person's answer is its result."""
    timeout_seconds: float | None = None
    waits_by_itself: bool = False
    """The tool bounds its own waiting, so no timeout is imposed on it."""
    shell_arguments: Callable[[Any, Path | None], ShellArguments] | None = None
    """For a tool that runs a command: which one. The command's row is written before it starts."""

    def parse(self, arguments: str) -> Any:
        """Decodes the model's arguments. Raises `InvalidArguments` with a sentence for the model."""
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
    """Makes a tool of a function, sync or async. Its type hints become the parameters, its docstring the description.

    A parameter annotated `ToolContext` gets the context. A sync function runs in a thread, which can't be stopped: it
    may end long after the turn did.
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
    """Returns the function's parameters as a struct, and the name of the parameter that takes the context."""
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
        values = {field: getattr(arguments, field) for field in arguments.__struct_fields__}
        if context_parameter:
            values[context_parameter] = context
        if inspect.iscoroutinefunction(function):
            return await function(**values)
        return await _in_thread(function, values)

    return run


def in_thread(function: Callable[[Any, ToolContext], Any]) -> Callable[[Any, ToolContext], Awaitable[Any]]:
    """Wraps a plain function so that a tool runs it in a thread."""

    async def run(arguments: Any, context: ToolContext) -> Any:
        return await _in_thread(function, {"arguments": arguments, "context": context})

    return run


async def _in_thread(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """Runs a function in a thread of its own, so that neither many slow tools nor the end of the program wait for it. A
    thread can't be stopped: a cancellation is raised once the thread has ended."""
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
            result = function(**values)
        except BaseException as error:
            # An exception that would end the program or confuse the loop counts as a failure of this tool only.
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
        outcome.exception()  # A result that arrives after cancellation is discarded.
        raise cancelled
    return outcome.result()


def _asker(permission: Literal["ask", "allow"] | Asker, name: str) -> Asker:
    if callable(permission):
        return permission
    if permission == "allow":
        return lambda arguments, directory: None
    return lambda arguments, directory: PermissionAsk(kind="custom-tool", subject=name)
