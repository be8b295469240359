"""A model that answers from a script: for the demo, and for tests that need predictable answers.

The answer follows from the conversation alone, so that the same call after a crash gets the same answer, unless the
script uses failures, `texts` that take turns, or `varied` answers.

How it chooses the reply: the last user text that contains a rule's `when` selects the rule, and the number of tool
rounds after that text selects the reply (beyond the last reply, the last one again). A text that matches no rule, such
as a note of the runtime or a message steered into the turn, does not change the rule; if it starts a new turn, after a
finished answer, the rule with an empty `when` applies. A rule with `has_image` is matched like one with a `when`. A
request for a title gets the first words of the message as its title, and a request for a summary the last words of the
conversation, whatever the rules are.
"""

import asyncio
import hashlib
import re
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Literal, Self
from xml.sax.saxutils import unescape

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.events.quote import unmarked
from holdfast.models.info import BOUNDLESS, ModelInfo
from holdfast.models.model import (
    AssistantTurn,
    Chunk,
    ContextMessage,
    Finished,
    ModelError,
    ModelRequest,
    ReasoningDelta,
    ReasoningEnd,
    SystemText,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolOutcome,
    UserText,
)
from holdfast.models.summary_request import asks_for_summary
from holdfast.models.title_request import asks_for_title

FailureKind = Literal[
    "rate_limited",
    "unavailable",
    "overloaded",
    "unauthorized",
    "refused",
    "too_large",
    "context_exceeded",
    "malformed",
    "cut",
    "hang",
    "error_event",
]

MID_ANSWER: Final[frozenset[FailureKind]] = frozenset({"malformed", "cut", "hang", "error_event"})
"""The failures that come after a part of the answer."""

INTERRUPTED_NOTE = "Your reply was interrupted"
"""The beginning of the runtime's note after an answer that a crash cut short."""

TASK_LISTS = ("Currently running background tasks:", "No background tasks are running any more.")
"""The beginnings of the runtime's lists of running tasks. They quote what a person or a model once said, and ask for
nothing."""

STOPPED_NOTE = "The user stopped your work here"
"""The beginning of the runtime's note after a turn that a person stopped."""

TASK_NEWS = "<task-notification>"
"""Part of every user-role text in which the runtime tells the model of a task. A rule for it should come first: the
text quotes the task's command and output, which may contain anything."""

TITLE_WORDS = 5
"""The number of words that the scripted model takes from a message for its title."""

TITLE_USAGE = TokenUsage(input_tokens=80, output_tokens=5, cost_microdollars=0)
"""The usage that a title call reports: a script costs nothing."""

TITLES = (None, -1)
"""The counter key of title calls."""

SUMMARIES = (None, -2)
"""The counter key of summary calls."""

SUMMARY_CHARACTERS = 400
"""The part of a conversation, from its end, that the scripted model gives as its summary."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The failure of a reply: `malformed`, `cut`, `hang` and `error_event` (the provider reports an error in the middle
    of its stream) after `after` chunks, the others instead of the answer."""

    kind: FailureKind
    times: int | None = None
    """How many calls fail before the others succeed, counted in one model instance; None for all of them."""
    after: int = 0
    status: int = 503
    retry_after: float | None = None
    window: int = 200_000
    """The window that a refusal with `context_exceeded` names."""


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | str = ""
    """An object, or the exact string to send, which need not be JSON."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer. In its texts, `{user}` is the person's last message and `{last_tool_result}` the last tool result
    (`{last_tool_message}` only its `message`, if it has one); `{task_id}`, `{task_status}`, `{task_exit_code}` and
    `{task_last_line}` come from the last notice of a task."""

    text: str = ""
    texts: tuple[str, ...] = ()
    """Used instead of `text`: each call of this reply takes the next one, in rotation."""
    reasoning: str = ""
    redacted: str = ""
    """Reasoning that nobody can read, after `reasoning`: its provider wants it back as it is."""
    tool_calls: tuple[ScriptedCall, ...] = ()
    more: tuple["Reply", ...] = ()
    """What follows in the same answer: the reasoning, text and tool calls of these replies; nothing else of them."""
    pauses: tuple[int, ...] = ()
    """After so many chunks the provider pauses its answer, and goes on when it is called again with what came. Only
    Anthropic's Messages have that."""
    delay_ms: float = 0
    """Silence before the first byte of the answer."""
    chunk_delay_ms: float = 0
    chunk_size: int = 0
    """The size of a chunk in characters; 0 for one word per chunk."""
    usage: TokenUsage | None = None
    finish: Literal["stop", "length", "tool_calls", "content_filter", "other"] | None = None
    fail: Failure | None = None


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replies to a user text that contains `when`, ignoring case; the first rule that matches applies."""

    replies: tuple[Reply, ...]
    when: str = ""
    has_image: bool = False
    """Match only a text that has an image, or that a tool result with an image follows."""


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: tuple[Rule, ...]
    varied: bool = False
    """No two answers have the same text, within a process or across processes."""
    notes: tuple[str, ...] = (INTERRUPTED_NOTE,)
    """The beginnings of the user-role texts that come from the runtime and not from a person."""
    title: Reply | None = None
    """The answer to a request for a title; None for the first words of the message, capitalized."""
    summary: Reply | None = None
    """The answer to a request for a summary; None for the last words of the conversation."""
    window: int | None = None
    """The model's window in tokens: a longer conversation is refused. None for no limit."""

    @classmethod
    def from_json(cls, data: bytes | str) -> "Script":
        """Parse a script. Raises `msgspec.DecodeError` with the path of the invalid value."""
        return msgspec.json.decode(data, type=cls)


class Cue(msgspec.Struct, frozen=True):
    """The part of a conversation that decides the answer: the indices of the rule and of the round, and the person's
    last message."""

    rule: int | None
    round: int
    user: str


class ScriptedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one call: the pieces to send one by one, then the closing, unless `failure` comes first."""

    pieces: tuple[Chunk, ...]
    closing: tuple[Chunk, ...]
    failure: Failure | None
    delay_seconds: float
    chunk_delay_seconds: float
    pauses: tuple[int, ...] = ()
    """The indices of the pieces before which the provider pauses."""
    is_gated: bool = True

    @property
    def refused(self) -> bool:
        """Whether the call fails before it sends anything."""
        return self.failure is not None and self.failure.kind not in MID_ANSWER

    @property
    def fails_at(self) -> int | None:
        """The index of the piece (or of the closing) that the failure replaces."""
        return min(self.failure.after, len(self.pieces)) if self.failure is not None else None

    def leg(self, said: str | None) -> "ScriptedAnswer | None":
        """The part up to the next pause: from the beginning, or from after what was `said` before the last pause; None
        if no pause comes after just that. `pauses` is empty in the last leg."""
        begins = (0, *self.pauses)
        ends = (*self.pauses, len(self.pieces))
        for begin, end in zip(begins, ends, strict=True):
            if (said is None and begin == 0) or (begin and text_of(self.pieces[:begin]).rstrip() == said):
                return self._between(begin, end)
        return None

    def _between(self, begin: int, end: int) -> "ScriptedAnswer":
        is_last = end == len(self.pieces)
        failure, at = self.failure, self.fails_at
        if failure is not None and at is not None:
            fails_here = begin <= at and (at < end or is_last)
            failure = msgspec.structs.replace(failure, after=at - begin) if fails_here else None
        pauses = () if is_last else self.pauses
        return msgspec.structs.replace(self, pieces=self.pieces[begin:end], pauses=pauses, failure=failure)


def text_of(pieces: Iterable[Chunk]) -> str:
    """The text and the readable reasoning of an answer, in order."""
    return "".join(piece.text for piece in pieces if isinstance(piece, (TextDelta, ReasoningDelta)))


Gate = Callable[[int], Awaitable[None]]
"""Awaited with 0, 1, 2, … before each piece of an answer, and before its closing."""


class ScriptedModel:
    """Plays a script inside the process."""

    def __init__(
        self, script: Script, name: str = "scripted", *, gate: Gate | None = None, info: ModelInfo = BOUNDLESS
    ) -> None:
        """`info` holds for a script without a window of its own."""
        self._info = info
        self._script = script
        self._name = name
        self._gate = gate
        self._calls: Counter[tuple[int | None, int]] = Counter()
        self._suffix = secrets.token_hex(3) if script.varied else ""

    def __repr__(self) -> str:
        return f"ScriptedModel(name={self._name!r})"

    @property
    def name(self) -> str:
        return self._name

    @property
    def reasoning_source(self) -> str:
        return self._name

    @property
    def info(self) -> ModelInfo:
        window = self._script.window
        return self._info if window is None else ModelInfo(window=window, is_known=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Do nothing: the model holds no resources, but every model has `close`."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        """Play the answer, one piece per batch, or all of it in one batch if the request does not stream."""
        answer = self.answer(request.messages)
        usage = self._use_of(request, answer)
        if answer.delay_seconds > 0:
            await asyncio.sleep(answer.delay_seconds)
        if answer.refused or (answer.failure is not None and not request.stream):
            await _fail(answer.failure)
        if not request.stream:
            yield [*answer.pieces, *usage, *answer.closing]
            return
        for index, chunk in enumerate((*answer.pieces, None)):
            await self.pace(answer, index)
            if index == answer.fails_at:
                await _fail(answer.failure)
            yield [chunk] if chunk is not None else [*usage, *answer.closing]

    def _use_of(self, request: ModelRequest, answer: ScriptedAnswer) -> tuple[TokenUsage, ...]:
        """The usage of a call to a model with a window, whose script does not state it. Raises `ModelError` if the call
        does not fit into the window."""
        window = self._script.window
        if window is None:
            return ()
        sent = estimated_tokens(request)
        if sent > window:
            message = f"The call has {sent} tokens. The scripted model takes at most {window}."
            raise ModelError("model_context_exceeded", message, retryable=False, status=400, window=window)
        if any(isinstance(chunk, TokenUsage) for chunk in answer.closing):
            return ()
        written = sum(len(chunk.text) for chunk in answer.pieces if isinstance(chunk, TextDelta))
        return (TokenUsage(input_tokens=sent, output_tokens=-(-written // 4), cost_microdollars=0),)

    def answer(self, messages: Sequence[ContextMessage]) -> ScriptedAnswer:
        """Choose the answer to a conversation, and count the call."""
        if asks_for_title(messages):
            return self._aside(TITLES, self._script.title or _title_of(messages), messages)
        if asks_for_summary(messages):
            return self._aside(SUMMARIES, self._script.summary or _summary_of(messages), messages)
        cue = find_cue(self._script, messages)
        self._calls[cue.rule, cue.round] += 1
        return self._reply(cue, messages)

    def last_answer(self, messages: Sequence[ContextMessage]) -> ScriptedAnswer:
        """The answer that the last call with this conversation got: nothing is counted."""
        return self._reply(find_cue(self._script, messages), messages)

    def _reply(self, cue: Cue, messages: Sequence[ContextMessage]) -> ScriptedAnswer:
        reply = _reply_at(self._script, cue)
        count = max(self._calls[cue.rule, cue.round] - 1, 0)
        salt = f"{count + 1}-{self._suffix}" if self._script.varied else ""
        fails = reply.fail is not None and (reply.fail.times is None or count < reply.fail.times)
        pieces = _pieces(reply, cue, messages, count=count, salt=salt)
        return ScriptedAnswer(
            pieces=pieces,
            closing=_closing(reply),
            failure=reply.fail if fails else None,
            delay_seconds=reply.delay_ms / 1000,
            chunk_delay_seconds=reply.chunk_delay_ms / 1000,
            pauses=tuple(at for at in sorted(set(reply.pauses)) if 0 < at < len(pieces)),
        )

    def _aside(self, kind: tuple[int | None, int], reply: Reply, messages: Sequence[ContextMessage]) -> ScriptedAnswer:
        """The answer to a call beside the conversation. It counts toward no reply of the script, and does not wait for
        the gate."""
        count = self._calls[kind]
        self._calls[kind] += 1
        fails = reply.fail is not None and (reply.fail.times is None or count < reply.fail.times)
        return ScriptedAnswer(
            pieces=_pieces(reply, Cue(None, 0, _first_user_text(messages)), messages, count=count, salt=""),
            closing=_closing(reply),
            failure=reply.fail if fails else None,
            delay_seconds=reply.delay_ms / 1000,
            chunk_delay_seconds=reply.chunk_delay_ms / 1000,
            is_gated=False,
        )

    async def pace(self, answer: ScriptedAnswer, index: int) -> None:
        """Wait until the piece with this index is due; the index after the last piece is the closing."""
        if self._gate is not None and answer.is_gated:
            await self._gate(index)
        if 0 < index < len(answer.pieces) and answer.chunk_delay_seconds > 0:
            await asyncio.sleep(answer.chunk_delay_seconds)


def estimated_tokens(request: ModelRequest) -> int:
    """The size of a call as the scripted model counts it: four bytes are a token."""
    return -(-len(to_bytes([list(request.messages), list(request.tools)])) // 4)


def _title_of(messages: Sequence[ContextMessage]) -> Reply:
    return Reply(text=_first_words(_first_user_text(messages)), usage=TITLE_USAGE)


def _summary_of(messages: Sequence[ContextMessage]) -> Reply:
    return Reply(text=f"Goal\n{_first_user_text(messages)[-SUMMARY_CHARACTERS:]}")


def _first_user_text(messages: Sequence[ContextMessage]) -> str:
    return next((message.text for message in messages if isinstance(message, UserText)), "")


def _first_words(text: str) -> str:
    words = text.split()[:TITLE_WORDS]
    return " ".join(words)[:1].upper() + " ".join(words)[1:]


def find_cue(script: Script, messages: Sequence[ContextMessage]) -> Cue:
    """Read a conversation backwards for the rule and the round of the next answer."""
    rounds = 0
    opening_rounds = 0
    user: str | None = None
    cut_follows = False
    image_follows = False
    catch_all = _catch_all(script)
    for message in reversed(messages):
        match message:
            case AssistantTurn(_, tool_calls) if tool_calls:
                rounds += 1
                cut_follows = False
            case AssistantTurn(text) if text and not cut_follows and user is not None and catch_all is not None:
                break  # An answer that ended an earlier turn.
            case AssistantTurn():
                cut_follows = False
            case UserText(text) if unmarked(text).startswith(STOPPED_NOTE):
                if user is not None and catch_all is not None:
                    break  # A stop that ended an earlier turn.
            case UserText(text) if unmarked(text).startswith(TASK_LISTS):
                pass
            case UserText(text, images):
                text = unmarked(text)
                is_note = text.startswith(script.notes)
                if user is None and not is_note:
                    user = text
                rule = _rule_for(script, text, has_image=bool(images) or image_follows)
                if rule is not None:
                    return Cue(rule, rounds, user if user is not None else text)
                cut_follows = is_note
                opening_rounds = opening_rounds if is_note else rounds
            case ToolOutcome(images=images):
                image_follows = image_follows or bool(images)
            case SystemText():
                pass
    return Cue(catch_all, opening_rounds, user or "")


def to_error(failure: Failure) -> ModelError:
    """The error that a real provider's failure of this kind raises."""
    match failure.kind:
        case "rate_limited":
            message = "The scripted model is limiting how often it may be called."
            wait = failure.retry_after
            return ModelError("model_rate_limited", message, retryable=True, status=429, retry_after_seconds=wait)
        case "unavailable":
            message = f"The scripted model is not available (status {failure.status})."
            return ModelError("model_unavailable", message, retryable=True, status=failure.status)
        case "overloaded" | "error_event":
            wait = failure.retry_after
            message = "The scripted model is overloaded."
            return ModelError("model_unavailable", message, retryable=True, status=529, retry_after_seconds=wait)
        case "too_large":
            message = "The call is too large for the scripted model."
            return ModelError("model_refused", message, retryable=False, status=413)
        case "context_exceeded":
            message = f"The conversation is too long for the scripted model's window of {failure.window} tokens."
            window = failure.window
            return ModelError("model_context_exceeded", message, retryable=False, status=400, window=window)
        case "unauthorized":
            message = "The scripted model does not accept the key."
            return ModelError("model_unauthorized", message, retryable=False, status=401)
        case "refused":
            return ModelError("model_refused", "The scripted model refused the call.", retryable=False, status=400)
        case "malformed":
            message = "The scripted model answered with something that is not JSON."
            return ModelError("model_garbage", message, retryable=True)
        case "cut" | "hang":
            message = "The connection to the scripted model ended before its answer did."
            return ModelError("model_cut", message, retryable=True)


async def _fail(failure: Failure | None) -> None:
    assert failure is not None
    if failure.kind == "hang":
        await asyncio.Event().wait()
    raise to_error(failure)


def _rule_for(script: Script, text: str, *, has_image: bool) -> int | None:
    folded = text.casefold()
    conditional = ((i, rule) for i, rule in enumerate(script.rules) if rule.when or rule.has_image)
    matches = (i for i, rule in conditional if rule.when.casefold() in folded and (has_image or not rule.has_image))
    return next(matches, None)


def _catch_all(script: Script) -> int | None:
    return next((i for i, rule in enumerate(script.rules) if not rule.when and not rule.has_image), None)


def _reply_at(script: Script, cue: Cue) -> Reply:
    replies = script.rules[cue.rule].replies if cue.rule is not None else ()
    if not replies:
        return Reply(text="The script has no reply to this.")
    return replies[min(cue.round, len(replies) - 1)]


def _pieces(reply: Reply, cue: Cue, messages: Sequence[ContextMessage], *, count: int, salt: str) -> tuple[Chunk, ...]:
    text = reply.texts[count % len(reply.texts)] if reply.texts else reply.text
    parts = [msgspec.structs.replace(reply, text=text + (f" ({salt})" if salt else "")), *reply.more]
    pieces: list[Chunk] = []
    calls = 0
    for part in parts:
        size = part.chunk_size or reply.chunk_size
        pieces += map(ReasoningDelta, _split(_fill(part.reasoning, cue, messages), size))
        if part.redacted:
            pieces.append(ReasoningEnd(to_bytes(part.redacted).decode()))
        pieces += map(TextDelta, _split(_fill(part.text, cue, messages), size))
        for call in part.tool_calls:
            pieces += _call_pieces(call, calls, _tool_call_id(messages, calls, salt), size)
            calls += 1
    return tuple(pieces)


def _call_pieces(call: ScriptedCall, index: int, tool_call_id: str, chunk_size: int) -> list[Chunk]:
    raw = call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()
    pieces: list[Chunk] = [ToolCallDelta(index, "", tool_call_id, call.name)]
    return pieces + [ToolCallDelta(index, piece) for piece in _split(raw, chunk_size)]


def _closing(reply: Reply) -> tuple[Chunk, ...]:
    calls = any(part.tool_calls for part in (reply, *reply.more))
    finished = Finished(reply.finish or ("tool_calls" if calls else "stop"))
    return (finished,) if reply.usage is None else (reply.usage, finished)


def _fill(template: str, cue: Cue, messages: Sequence[ContextMessage]) -> str:
    if "{" not in template:
        return template
    result = unmarked(next((m.text for m in reversed(messages) if isinstance(m, ToolOutcome)), ""))
    values = {"{user}": cue.user, "{last_tool_result}": result}
    if "{last_tool_message}" in template:
        values["{last_tool_message}"] = _message_in(result)
    if "{task_" in template:
        values |= _last_news(messages)
    return _PLACEHOLDERS.sub(lambda placeholder: values.get(placeholder[0], ""), template)


_PLACEHOLDERS = re.compile(
    r"\{(?:user|last_tool_result|last_tool_message|task_id|task_status|task_exit_code|task_last_line)\}"
)


def _message_in(result: str) -> str:
    try:
        value = msgspec.json.decode(result)
    except msgspec.DecodeError:
        return result
    return value["message"] if isinstance(value, dict) and isinstance(value.get("message"), str) else result


def _last_news(messages: Sequence[ContextMessage]) -> dict[str, str]:
    """The placeholders' values from the last notice of a task, as a model reads it."""
    texts = (m.text for m in reversed(messages) if isinstance(m, UserText))
    notice = unmarked(next((text for text in texts if TASK_NEWS in text), ""))
    tail = _tagged(notice, "output-tail").strip().splitlines()
    return {
        "{task_id}": _tagged(notice, "task-id"),
        "{task_status}": _tagged(notice, "status"),
        "{task_exit_code}": _tagged(notice, "exit-code") or "unknown",
        "{task_last_line}": tail[-1] if tail else "(nothing)",
    }


def _tagged(notice: str, name: str) -> str:
    match = re.search(f"<{name}>(.*?)</{name}>", notice, re.DOTALL)
    return unescape(match[1]) if match else ""


@lru_cache(maxsize=256)
def _split(text: str, chunk_size: int) -> tuple[str, ...]:
    if chunk_size > 0:
        return tuple(text[at : at + chunk_size] for at in range(0, len(text), chunk_size))
    return tuple(re.findall(r"\s*\S+|\s+$", text))


def _tool_call_id(messages: Sequence[ContextMessage], index: int, salt: str) -> str:
    """An id that is the same for the same call of the same conversation, and for no other."""
    digest = hashlib.sha256(to_bytes([list(messages), index, salt]))
    return f"call_{digest.hexdigest()[:24]}"
