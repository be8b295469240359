"""A model that answers from a script: for the demo, and for tests that need to know what the model will say.

What it says follows from the conversation alone, so that the same call after a crash gets the same answer, unless the
script asks for failures, for `texts` that take turns, or for answers that are `varied`.

The reply is chosen like this. The last user text that contains a rule's `when` decides, and the reply is the one after
as many tool rounds as followed it (the last reply stays). A text that fits no such rule, being a note from the runtime
or a remark steered into the turn, leaves the turn on its course; when it opens a new turn, after a finished answer,
the rule with an empty `when` has it. A rule that wants an image is tried like one with a `when`. When it is asked for a
title it gives one, made of the message's own first words, whatever the rules say.
"""

import asyncio
import hashlib
import re
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, Self
from xml.sax.saxutils import unescape

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.events.quote import unmarked
from holdfast.models.model import (
    AssistantTurn,
    Chunk,
    ContextMessage,
    Finished,
    ModelError,
    ModelRequest,
    ReasoningDelta,
    SystemText,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolOutcome,
    UserText,
)
from holdfast.models.title_request import asks_for_title

FailureKind = Literal["rate_limited", "unavailable", "unauthorized", "refused", "malformed", "cut", "hang"]

INTERRUPTED_NOTE = "Your reply was interrupted"
STOPPED_NOTE = "The user stopped your work here"
"""How the runtime's note begins that follows an answer which a crash cut short."""

TASK_NEWS = "<task-notification>"
"""What is in the user-role text by which the runtime tells a model of a task. A rule for it should come first: the text
quotes the task's command and output, which may contain anything."""


TITLE_WORDS = 5
"""How many words of a message the scripted model makes a title of."""

TITLE_USAGE = TokenUsage(input_tokens=80, output_tokens=5, cost_microdollars=0)
"""What that took: a script costs nothing."""

TITLES = (None, -1)
"""Where calls for titles are counted."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a reply fails: `malformed`, `cut` and `hang` after that many chunks, the others instead of the answer."""

    kind: FailureKind
    times: int | None = None
    """Only the first so many calls fail, counted in one model instance; None: all of them."""
    after: int = 0
    status: int = 503
    retry_after: float | None = None


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | str = ""
    """An object, or the very string to send, which need not be JSON."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer. In texts, `{user}` is what the person said last and `{last_tool_result}` what the last tool did
    (`{last_tool_message}` only its `message`, if it has one); `{task_id}`, `{task_status}`, `{task_exit_code}` and
    `{task_last_line}` are what the last news of a task says."""

    text: str = ""
    texts: tuple[str, ...] = ()
    """Instead of `text`: each call of this reply takes the next one, round and round."""
    reasoning: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    delay_ms: float = 0
    chunk_delay_ms: float = 0
    chunk_size: int = 0
    """In characters; 0: by the word."""
    usage: TokenUsage | None = None
    finish: Literal["stop", "length", "tool_calls", "content_filter", "other"] | None = None
    fail: Failure | None = None


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`when`: what the user text contains, in any case of letters; the first rule that fits has it."""

    replies: tuple[Reply, ...]
    when: str = ""
    has_image: bool = False
    """It fits only a text that an image came with, or was given by a tool after it."""


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: tuple[Rule, ...]
    varied: bool = False
    """No two answers have the same text, within a process or across them."""
    notes: tuple[str, ...] = (INTERRUPTED_NOTE,)
    """How user-role texts begin that come from the runtime and not from a person."""
    title: Reply | None = None
    """What it answers when a title is asked for; left out: the first words of the message, the first in capitals."""

    @classmethod
    def from_json(cls, data: bytes | str) -> "Script":
        """Raises `msgspec.DecodeError` with the path of what is wrong."""
        return msgspec.json.decode(data, type=cls)


class Cue(msgspec.Struct, frozen=True):
    """What in a conversation decides the answer: the rule and the round by their index, and what the person said."""

    rule: int | None
    round: int
    user: str


class ScriptedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One call's answer: pieces to send one by one, then the closing, unless `failure` comes first."""

    pieces: tuple[Chunk, ...]
    closing: tuple[Chunk, ...]
    failure: Failure | None
    delay_seconds: float
    chunk_delay_seconds: float
    is_gated: bool = True

    @property
    def refused(self) -> bool:
        """Whether it fails before anything is sent."""
        return self.failure is not None and self.failure.kind not in ("malformed", "cut", "hang")

    @property
    def fails_at(self) -> int | None:
        """The index of the piece (or of the closing) that the failure comes in place of."""
        return min(self.failure.after, len(self.pieces)) if self.failure is not None else None


Gate = Callable[[int], Awaitable[None]]
"""Awaited with 0, 1, 2, … before each piece of an answer, and before its closing."""


class ScriptedModel:
    """Plays a script in process."""

    def __init__(self, script: Script, name: str = "scripted", *, gate: Gate | None = None) -> None:
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Nothing is held; here so that every model is closed alike."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        """Play the answer, one piece to a batch, or all of it in one when the request does not stream."""
        answer = self.answer(request.messages)
        if answer.delay_seconds > 0:
            await asyncio.sleep(answer.delay_seconds)
        if answer.refused or (answer.failure is not None and not request.stream):
            await _fail(answer.failure)
        if not request.stream:
            yield [*answer.pieces, *answer.closing]
            return
        for index, chunk in enumerate((*answer.pieces, None)):
            await self.pace(answer, index)
            if index == answer.fails_at:
                await _fail(answer.failure)
            yield [chunk] if chunk is not None else list(answer.closing)

    def answer(self, messages: Sequence[ContextMessage]) -> ScriptedAnswer:
        """Choose the answer to a conversation, and count the call."""
        if asks_for_title(messages):
            return self._title(messages)
        cue = find_cue(self._script, messages)
        reply = _reply_at(self._script, cue)
        count = self._calls[cue.rule, cue.round]
        self._calls[cue.rule, cue.round] += 1
        salt = f"{count + 1}-{self._suffix}" if self._script.varied else ""
        fails = reply.fail is not None and (reply.fail.times is None or count < reply.fail.times)
        return ScriptedAnswer(
            pieces=_pieces(reply, cue, messages, count=count, salt=salt),
            closing=_closing(reply),
            failure=reply.fail if fails else None,
            delay_seconds=reply.delay_ms / 1000,
            chunk_delay_seconds=reply.chunk_delay_ms / 1000,
        )

    def _title(self, messages: Sequence[ContextMessage]) -> ScriptedAnswer:
        """A call beside the conversation: it uses up none of the script's replies, and nothing holds it up."""
        said = next((message.text for message in messages if isinstance(message, UserText)), "")
        reply = self._script.title or Reply(text=_first_words(said), usage=TITLE_USAGE)
        count = self._calls[TITLES]
        self._calls[TITLES] += 1
        fails = reply.fail is not None and (reply.fail.times is None or count < reply.fail.times)
        return ScriptedAnswer(
            pieces=_pieces(reply, Cue(None, 0, said), messages, count=count, salt=""),
            closing=_closing(reply),
            failure=reply.fail if fails else None,
            delay_seconds=reply.delay_ms / 1000,
            chunk_delay_seconds=reply.chunk_delay_ms / 1000,
            is_gated=False,
        )

    async def pace(self, answer: ScriptedAnswer, index: int) -> None:
        """Wait until the piece with this index is due; the closing comes after the last one."""
        if self._gate is not None and answer.is_gated:
            await self._gate(index)
        if 0 < index < len(answer.pieces) and answer.chunk_delay_seconds > 0:
            await asyncio.sleep(answer.chunk_delay_seconds)


def _first_words(said: str) -> str:
    words = said.split()[:TITLE_WORDS]
    return " ".join(words)[:1].upper() + " ".join(words)[1:]


def find_cue(script: Script, messages: Sequence[ContextMessage]) -> Cue:
    """Read a conversation backwards for what decides the next answer."""
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
                break  # The turn before this one had its answer.
            case AssistantTurn():
                cut_follows = False
            case UserText(text) if unmarked(text).startswith(STOPPED_NOTE):
                if user is not None and catch_all is not None:
                    break  # The turn before this one is over.
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
    """The error that a real provider's failure of this kind would be raised as."""
    match failure.kind:
        case "rate_limited":
            message = "The scripted model is limiting how often it may be called."
            wait = failure.retry_after
            return ModelError("model_rate_limited", message, retryable=True, status=429, retry_after_seconds=wait)
        case "unavailable":
            message = f"The scripted model is not available (status {failure.status})."
            return ModelError("model_unavailable", message, retryable=True, status=failure.status)
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
    wanting = ((i, rule) for i, rule in enumerate(script.rules) if rule.when or rule.has_image)
    fits = (i for i, rule in wanting if rule.when.casefold() in folded and (has_image or not rule.has_image))
    return next(fits, None)


def _catch_all(script: Script) -> int | None:
    return next((i for i, rule in enumerate(script.rules) if not rule.when and not rule.has_image), None)


def _reply_at(script: Script, cue: Cue) -> Reply:
    replies = script.rules[cue.rule].replies if cue.rule is not None else ()
    if not replies:
        return Reply(text="The script has no reply to this.")
    return replies[min(cue.round, len(replies) - 1)]


def _pieces(reply: Reply, cue: Cue, messages: Sequence[ContextMessage], *, count: int, salt: str) -> tuple[Chunk, ...]:
    text = reply.texts[count % len(reply.texts)] if reply.texts else reply.text
    said = _split(_fill(text, cue, messages) + (f" ({salt})" if salt else ""), reply.chunk_size)
    thought = _split(_fill(reply.reasoning, cue, messages), reply.chunk_size)
    calls: list[Chunk] = []
    for index, call in enumerate(reply.tool_calls):
        calls += _call_pieces(call, index, _tool_call_id(messages, index, salt), reply.chunk_size)
    return (*map(ReasoningDelta, thought), *map(TextDelta, said), *calls)


def _call_pieces(call: ScriptedCall, index: int, tool_call_id: str, chunk_size: int) -> list[Chunk]:
    raw = call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()
    pieces: list[Chunk] = [ToolCallDelta(index, "", tool_call_id, call.name)]
    return pieces + [ToolCallDelta(index, piece) for piece in _split(raw, chunk_size)]


def _closing(reply: Reply) -> tuple[Chunk, ...]:
    finished = Finished(reply.finish or ("tool_calls" if reply.tool_calls else "stop"))
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
    return _BLANKS.sub(lambda found: values.get(found[0], ""), template)


_BLANKS = re.compile(
    r"\{(?:user|last_tool_result|last_tool_message|task_id|task_status|task_exit_code|task_last_line)\}"
)


def _message_in(result: str) -> str:
    try:
        found = msgspec.json.decode(result)
    except msgspec.DecodeError:
        return result
    return found["message"] if isinstance(found, dict) and isinstance(found.get("message"), str) else result


def _last_news(messages: Sequence[ContextMessage]) -> dict[str, str]:
    """What the last notice of a task says, as a model would read it."""
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
    found = re.search(f"<{name}>(.*?)</{name}>", notice, re.DOTALL)
    return unescape(found[1]) if found else ""


@lru_cache(maxsize=256)
def _split(text: str, chunk_size: int) -> tuple[str, ...]:
    if chunk_size > 0:
        return tuple(text[at : at + chunk_size] for at in range(0, len(text), chunk_size))
    return tuple(re.findall(r"\s*\S+|\s+$", text))


def _tool_call_id(messages: Sequence[ContextMessage], index: int, salt: str) -> str:
    """The same for the same call of the same conversation, and for no other."""
    digest = hashlib.sha256(to_bytes([list(messages), index, salt]))
    return f"call_{digest.hexdigest()[:24]}"
