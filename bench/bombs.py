"""Requests of allowed size that are made to cost as much as they can: time in which a server serves nobody else, and
memory. Each was the worst of its kind that was found."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bench.models import LAMP_NAME, MANY_CALLS

IMPORT_BYTES = 15_900_000
IMPORT_EVENTS = 9_990
EVENT_BYTES = 3_990_000
BODY_BYTES = 990_000
RESULT_BYTES = 13_900_000
WIDE_BYTES = 3_990_000

LAMP = {"name": "lamp", "description": "", "parameters": {"type": "object"}}


class Bomb(msgspec.Struct, frozen=True):
    """One request. `{session}` and `{request}` in its path stand for a session whose client's tool is asked for."""

    name: str
    path: str
    body: bytes
    method: str = "POST"
    say: str = ""
    """A message for the session that it makes, in a turn in which nobody can be asked."""


def bombs() -> Iterator[Bomb]:
    """All of them, one after another: together they would take up more memory than what they are sent to."""
    yield from _sessions()
    yield from _rules()
    yield from _answers()
    yield from _chats()
    for name, events in _logs():
        yield Bomb(f"import: {name}", "/v1/sessions/import", document(events))


def _sessions() -> Iterator[Bomb]:
    values = b"[" + b"[]," * (BODY_BYTES // 3) + b"0]"
    few = b"[" + b"[]," * 24_000 + b"0]"
    keys = b"{" + b",".join(b'"%d":0' % number for number in range(49_000)) + b"}"
    for name, schema in (("many values", values), ("as many values as may be", few), ("many keys", keys)):
        body = b'{"client_tools": [{"name": "lamp", "parameters": {"x": ' + schema + b"}}]}"
        yield Bomb(f"session: {name}", "/v1/sessions", body)
    yield Bomb("session: deep", "/v1/sessions", b'{"metadata": ' + b"[" * BODY_BYTES + b"}")
    yield Bomb("session: quotes", "/v1/sessions", b'{"title": "' + b'\\"' * (BODY_BYTES // 2) + b'"}')
    yield Bomb("session: many empty texts", "/v1/sessions", b'{"allow": [' + b'"",' * (BODY_BYTES // 3) + b'""]}')
    yield Bomb("session: a long number", "/v1/sessions", b'{"client_tools": ' + b"9" * BODY_BYTES + b"}")
    yield Bomb("session: a wrong choice", "/v1/sessions", b'{"tier": "' + b"x" * BODY_BYTES + b'"}')
    yield Bomb("message: long", "/v1/sessions/{session}/messages", b'{"text": "' + b"x" * BODY_BYTES + b'"}')


def _rules() -> Iterator[Bomb]:
    """Sessions with as many rules as may be given, which are then matched with as many calls as one answer may have."""
    tool = {"name": LAMP_NAME, "parameters": {"type": "object"}, "asks_permission": True}
    for name, pattern in (
        ("many stars", "l" + "*?" * 485),
        ("as many stars as may be", "l" + "*?" * 16),
        ("as many texts as may be", "l" + "*a" * 32),
        ("as many sets as may be", "*" + "[a-z]" * 30 + "b"),
        ("long sets", "*[" + "a-b" * 300 + "]b"),
        ("a text that almost matches", "*" + "a" * 40 + "[b]*"),
    ):
        rules = [f"custom-tool({pattern}{number})" for number in range(100)]
        body = msgspec.json.encode({"allow": rules, "client_tools": [tool], "title": "Measured"})
        yield Bomb(f"rules: {name}", "/v1/sessions", body, say=MANY_CALLS)


def _answers() -> Iterator[Bomb]:
    path = "/v1/sessions/{session}/requests/{request}"
    for name, text in texts():
        yield Bomb(f"answer: {name}", path, b'{"answer": "' + text + b'"}')
    for name, text in texts():
        yield Bomb(f"result: {name}", path, b'{"success": true, "content": "' + text + b'"}')


def texts(most: int = RESULT_BYTES) -> Iterator[tuple[str, bytes]]:
    yield "plain text", b"x" * most
    yield "escapes", b"\\n" * (most // 2)
    yield "as many escapes as may be", b"\\n" * 1_900_000 + b"x" * (most - 3_900_000)
    yield "one wide character", "😀".encode() + b"x" * (WIDE_BYTES - 500)
    yield "two-byte characters", "é".encode() * (WIDE_BYTES // 2 - 500)
    yield "escaped characters", b"\\u00e9" * (WIDE_BYTES // 6 - 500)
    yield "quotes and backslashes", b'\\"\\\\' * 490_000


def _chats() -> Iterator[Bomb]:
    message = b'{"role":"user","id":"m","parts":[]},'
    part = b'{"type":"text","text":""},'
    said = b'{"id": "chat", "messages": [%b{"role": "user", "id": "m", "parts": [%b{"type": "text", "text": "hi"}]}]}'
    yield Bomb("chat: many messages", "/v1/chat", said % (message * 12_000, b""))
    yield Bomb("chat: too many messages", "/v1/chat", said % (message * 360_000, b""))
    yield Bomb("chat: many parts", "/v1/chat", said % (b"", part * 24_000))
    outputs = b'{"type":"tool-x","toolCallId":"c","state":"output-available","output":[[],[]]},' * 7_000
    answered = b'{"id": "chat", "messages": [{"role": "assistant", "id": "m", "parts": [%b{"type": "x"}]}]}' % outputs
    yield Bomb("chat: many results", "/v1/chat", answered)
    for name, text in texts():
        yield Bomb(f"chat: {name}", "/v1/chat", b'{"id": "chat", "text": "' + text + b'"}')


# Imports

Logged = dict[str, Any]


def document(events: Sequence[Logged] | bytes) -> bytes:
    told = events if isinstance(events, bytes) else msgspec.json.encode(events)
    return b'{"format": "holdfast-session-1", "session_id": "s", "title": "t", "events": ' + told + b"}"


def logged(kind: str, **data: Any) -> Logged:
    return {"type": kind, "version": 1, "time": 1, "data": {"type": kind, **data}}


START = logged("session.start", sessionId="s", producer="p", startTime=1)


def _logs() -> Iterator[tuple[str, Sequence[Logged] | bytes]]:
    half = IMPORT_EVENTS // 2
    begun, ended = (
        logged("holdfast.turn_started", turnId="t"),
        logged("holdfast.turn_ended", turnId="t", reason="completed"),
    )
    said = logged("user.message", messageId="u", turnId="t", content="x", delivery="idle")
    truncated = logged("holdfast.truncated", kept=half)
    yield "messages and truncations", [START, begun, *[said] * (half - 4), ended, *[truncated] * half]
    yield "many small events", [START] + [logged("session.info", infoType="x", message="x")] * (IMPORT_EVENTS - 1)
    yield "too many events", [START] + [logged("session.info", infoType="x", message="x")] * 170_000
    stepped, step = (
        logged("assistant.turn_start", turnId="t", step=1, messageId="m"),
        logged("assistant.turn_end", turnId="t", step=1),
    )
    calls = [{"type": "tool_call", "toolCallId": f"c{n}", "name": "x", "arguments": "{}"} for n in range(1_600)]
    answered = logged("assistant.message", messageId="m", blocks=calls)
    results = [logged("tool.execution_complete", toolCallId=f"c{n}", success=True, content="x") for n in range(1_600)]
    yield "calls of one answer", [START, begun, said, stepped, answered, *results]
    yield "open calls", [START, begun, said, stepped, answered]
    steps = [stepped, answered, *results, step] * (IMPORT_EVENTS // 1_610)
    yield "calls of many answers", [START, begun, said, *steps]
    yield "many results", [START, *_worked(IMPORT_EVENTS // 1_620, "x")]
    yield "much in results", [START, *_worked(2, "x" * (IMPORT_BYTES // 2 // 1_800))]
    yield "a long talk", [START, *_talked(IMPORT_EVENTS // 6 - 10, "x")]
    yield "much talk", [START, *_talked(200, "x" * (IMPORT_BYTES // 430))]
    yield "few words of much talk", [START, *_talked(2, "x" * (EVENT_BYTES - 1_000))]
    yield "wide words of much talk", [START, *_talked(2, "😀" + "x" * (EVENT_BYTES - 1_000))]
    one = msgspec.json.encode(START)
    yield "values", b"[" + one + b"," + b"[]," * (IMPORT_BYTES // 3 - 200) + b"0]"
    yield (
        "values of one event",
        b"["
        + one
        + b',{"type":"session.info","version":1,"time":1,"data":{"type":"session.info","x":['
        + b"[]," * 4_900
        + b"0]}}]",
    )
    yield "quotes", b"[" + one + b',"' + b'\\"' * (IMPORT_BYTES // 2 - 200) + b'"]'
    for name, text in texts(EVENT_BYTES - 500):
        head, tail = (
            b'{"type":"user.message","version":1,"time":1,"data":{"type":"user.message","messageId":"u","turnId":"t","content":"',
            b'","delivery":"idle"}}',
        )
        turn = msgspec.json.encode(begun)
        yield f"one event of {name}", b"[" + one + b"," + turn + b"," + head + text + tail + b"]"
    piece = "😀" + "x" * 300
    yield (
        "much wide text",
        [
            START,
            begun,
            *[{**said, "data": {**said["data"], "content": piece}}] * min(IMPORT_EVENTS - 10, IMPORT_BYTES // 460),
        ],
    )


def _worked(steps: int, result: str) -> Iterator[Logged]:
    """A turn of so many answers, each with as many calls as one may have, and their results."""
    yield logged("holdfast.turn_started", turnId="t")
    yield logged("user.message", messageId="u", turnId="t", content="x", delivery="idle")
    for step in range(steps):
        ids = [f"{step}-{number}" for number in range(1_600)]
        calls = [{"type": "tool_call", "toolCallId": each, "name": "x", "arguments": "{}"} for each in ids]
        yield logged("assistant.turn_start", turnId="t", step=step + 1, messageId=f"m{step}")
        yield logged("assistant.message", messageId=f"m{step}", blocks=calls)
        for each in ids:
            yield logged("tool.execution_complete", toolCallId=each, success=True, content=result)
        yield logged("assistant.turn_end", turnId="t", step=step + 1)
    yield logged("holdfast.turn_ended", turnId="t", reason="completed")


def _talked(turns: int, text: str) -> Iterator[Logged]:
    """So many turns in which both say that."""
    for number in range(turns):
        turn = f"t{number}"
        yield logged("holdfast.turn_started", turnId=turn)
        yield logged("user.message", messageId=f"u{number}", turnId=turn, content=text, delivery="idle")
        yield logged("assistant.turn_start", turnId=turn, step=1, messageId=f"m{number}")
        yield logged("assistant.message", messageId=f"m{number}", blocks=[{"type": "text", "text": text}])
        yield logged("assistant.turn_end", turnId=turn, step=1)
        yield logged("holdfast.turn_ended", turnId=turn, reason="completed")
