"""Resource bombs: small or allowed input that is made to cost much. Costs are counted in operations and in turns that
others get meanwhile, never in seconds; `python -m bench` measures those."""

import asyncio
import fnmatch
import gc
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from holdfast import Runtime, event_loop
from holdfast.events import message, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.ids import Key, MessageId, Position, RequestId, TaskId, ToolCallId
from holdfast.events.request import PermissionAsk
from holdfast.events.session import SettingsChanged, Truncated
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.models.server import ModelServer
from holdfast.server import json_bounds
from holdfast.server.errors import Conflict, Invalid, NotFound
from holdfast.server.json_bounds import BODY, JsonBounds, TooCostly
from holdfast.server.operations import SessionOptions
from holdfast.server.operations.transfers import BY_HAND, ImportBounds
from holdfast.session.fold import apply, dump, fold
from holdfast.session.permissions import MAX_MATCHING_STEPS, MAX_SESSION_RULES, Rules, judge
from holdfast.session.state import Phase, State, next_phase
from holdfast.tools import sleep_detection
from holdfast.tools.tool import tool as make_tool
from tests.session.logs import STARTED, TURN, at, call, result, said, step, step_ended, task_started, turn_ended, user

# Folding


def operations(work: Callable[[], object]) -> int:
    """How many steps of the interpreter this takes."""
    found = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal found
        frame.f_trace_opcodes = True
        found += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return found


def turn_of(*bodies: Body) -> list[Body]:
    return [turn.TurnStarted(turn_id=TURN), *bodies, turn_ended()]


def test_a_folded_log_leaves_the_garbage_collector_little_to_search() -> None:
    """A full collection searches all tracked objects, and nothing else runs meanwhile."""
    ids = [f"c{number}" for number in range(1_000)]
    log = at([STARTED, *turn_of(user(), step(1), said(*map(call, ids)), *map(result, ids), step_ended(1))])
    gc.collect()
    before = len(gc.get_objects())
    state = fold(log)
    assert len(gc.get_objects()) - before < 100
    assert len(state.history) == 2


def test_the_objects_of_the_modules_are_not_searched() -> None:
    async def tracked() -> int:
        gc.collect()
        return len(gc.get_objects())

    try:
        assert event_loop.run(tracked()) < 10_000 < gc.get_freeze_count()
    finally:
        gc.unfreeze()


def truncations_that_keep_all(n: int) -> Iterable[Body]:
    yield from turn_of(*(user(id=f"u{number}") for number in range(n)))
    yield from (Truncated(kept=Position(n + 2)) for _ in range(n))


def truncations_between_turns(n: int) -> Iterable[Body]:
    yield from turn_of(*(user(id=f"u{number}") for number in range(n)))
    for _ in range(n):
        yield Truncated(kept=Position(n + 2))
        yield from turn_of(step(1), said(call("c")), result("c"), step_ended(1))


def tasks(n: int) -> list[Body]:
    started = [task_started(f"t{number}") for number in range(n)]
    return turn_of(step(1), said(call("c1")), *started, result("c1"), step_ended(1))


def told(number: int, kind: task.NoticeKind = "completed") -> Body:
    return task.TaskNotified(notice=task.TaskNotice(task_id=TaskId(f"t{number}"), kind=kind, command="make"))


def truncations_that_news_outlives(n: int) -> Iterable[Body]:
    yield from tasks(1)
    yield from (told(0, "stalled") for _ in range(n))
    yield from (Truncated(kept=Position(2 * n - number)) for number in range(n))


def truncations_that_take_one_note_each(n: int) -> Iterable[Body]:
    yield from tasks(n)
    yield from (told(number) for number in reversed(range(n)))
    yield from (Truncated(kept=Position(4 + number)) for number in reversed(range(n)))


def turns_without_an_answer(n: int) -> Iterable[Body]:
    for number in range(n):
        yield from turn_of(user(id=f"u{number}"))


def steps_without_an_answer(n: int) -> Iterable[Body]:
    steps = [body for number in range(n) for body in (step(number), step_ended(number))]
    yield from turn_of(*(user(id=f"u{number}") for number in range(n)), *steps)


def calls_of_one_answer(n: int) -> Iterable[Body]:
    calls = [call(f"c{number}") for number in range(n)]
    attempts = [tool.ToolAttempted(tool_call_id=ToolCallId(f"c{number}"), attempt=1) for number in range(n)]
    results = [result(f"c{number}") for number in range(n)]
    yield from turn_of(step(1), said(*calls), *attempts, *results, step_ended(1))


def failed_calls(n: int) -> Iterable[Body]:
    failed = message.CallFailed(
        message_id=MessageId("m"), attempt=1, error_code="x", message="x", retryable=True, retry_after_ms=None
    )
    yield from turn_of(user(), step(1), *[failed] * n, step_ended(1))


LOGS = [
    truncations_that_keep_all,
    truncations_between_turns,
    truncations_that_news_outlives,
    truncations_that_take_one_note_each,
    turns_without_an_answer,
    steps_without_an_answer,
    calls_of_one_answer,
    failed_calls,
]


@pytest.mark.parametrize("log", LOGS)
def test_folding_twice_as_many_events_takes_twice_as_many_operations(log: Callable[[int], Iterable[Body]]) -> None:
    short, long = (at([STARTED, *log(size)]) for size in (150, 300))
    phase = Phase.IDLE
    for event in long:
        phase = next_phase(phase, event.body)  # Nobody could import what is illegal.
    assert operations(lambda: fold(long)) < 2.3 * operations(lambda: fold(short))


@pytest.mark.parametrize("log", LOGS)
def test_folding_a_rewind_event_by_event_or_at_once_gives_the_same_state(
    log: Callable[[int], Iterable[Body]],
) -> None:
    events = at([STARTED, *log(20)])
    state = State()
    for event in events:
        apply(state, event)
    assert dump(fold(events)) == dump(state)


# Imports


def document(events: bytes | list[dict[str, Any]], *, title: str = "t", key: str = "events") -> bytes:
    told = events if isinstance(events, bytes) else msgspec.json.encode(events)
    return b'{"format": "holdfast-session-1", "session_id": "s", "title": "%b", "%b": %b}' % (
        title.encode(),
        key.encode(),
        told,
    )


def logged(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "version": 1, "time": 1, "data": {"type": kind, **data}}


START = logged("session.start", sessionId="s", producer="p", startTime=1)
INFO = logged("session.info", infoType="x", message="x")
FEW = ImportBounds(size=1_000_000, events=100, each=JsonBounds(values=400))


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(database=tmp_path / "holdfast.db", work=False) as opened:
        yield opened


async def imported(runtime: Runtime, data: bytes, bounds: ImportBounds = FEW) -> int:
    """How many events the session has that is made of it."""
    made = await runtime.operations.import_session(runtime.owner, data, bounds=bounds)
    row = await runtime.store.row(Key(runtime.owner, made))
    assert row is not None
    return row.head


async def test_others_get_turns_while_an_import_is_read(runtime: Runtime) -> None:
    turns, is_over = 0, False

    async def tick() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    ended_nowhere = logged("holdfast.turn_ended", turnId="t", reason="completed")
    ticking = asyncio.create_task(tick())
    with pytest.raises(Invalid, match="can't stand there"):
        await imported(runtime, document([START, *[INFO] * 3_000, ended_nowhere]), BY_HAND)
    is_over = True
    await ticking
    assert turns > 100, "one turn of each for every piece and every few events"


async def test_an_import_has_so_many_events_and_no_more(runtime: Runtime) -> None:
    assert await imported(runtime, document([START, *[INFO] * 99])) == 101, "a line says that it was imported"
    with pytest.raises(Invalid, match="more than 100 events"):
        await imported(runtime, document([START, *[INFO] * 100]))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (document(b"[" + msgspec.json.encode(START) + b",[" + b"[]," * 3_000 + b"0]]"), "over 2,000 values"),
        (document([START, logged("session.info", infoType="x", message="x", more=[0] * 500)]), "one of its events"),
        (document(b"[" + msgspec.json.encode(START) + b"," + b"[" * 3_000), "nested more than 128"),
        (document([START, INFO])[:-1] + b', "more": "' + b"x" * 200_000 + b'"}', "more in it than events"),
        (document([START, INFO], key="\\u0065vents"), "begins with session.start"),
        (document(msgspec.json.encode([START, INFO])[:-1] + b",7]"), "something else"),
        (document(msgspec.json.encode([START, INFO])[:-1] + b" 7]"), "something else"),
        (document(b"[7," + msgspec.json.encode([START, INFO])[1:]), "something else"),
        (document(msgspec.json.encode([START, INFO]).replace(b"},{", b"}{")), "something else"),
        (document(b"[" + msgspec.json.encode(START)), "not an exported session"),
        (document(b"[]"), "begins with session.start"),
        (document(b"{}"), "not an exported session"),
        (b"", "not an exported session"),
        (b"]", "not an exported session"),
        (b'"', "not an exported session"),
    ],
)
async def test_a_document_of_another_shape_is_refused_in_words(runtime: Runtime, data: bytes, problem: str) -> None:
    with pytest.raises(Invalid, match=problem) as refused:
        await imported(runtime, data)
    assert refused.value.code == "import_invalid"


async def test_events_are_found_with_any_text(runtime: Runtime) -> None:
    said = logged("session.info", infoType="x", message='"events": [{"]}],\\')
    spaced = msgspec.json.format(document([START, said, INFO], title='\\"events\\": [{'))
    assert await imported(runtime, spaced) == 4


async def test_a_large_session_is_exported_forked_and_imported_again_the_same(runtime: Runtime) -> None:
    events = [START, *[INFO] * 2_500]
    made = await runtime.operations.import_session(runtime.owner, document(events))
    exported = await runtime.operations.export_session(Key(runtime.owner, made))
    told = msgspec.json.decode(exported)["events"]
    assert len(told) == 2_502
    copy = await runtime.operations.fork(Key(runtime.owner, made), before=None, title="copy")
    again = msgspec.json.decode(await runtime.operations.export_session(Key(runtime.owner, copy)))["events"]
    assert [event["data"] for event in again[1:-1]] == [event["data"] for event in told[1:]]


# JSON


def places(data: bytes) -> list[int]:
    """Brackets and commas outside of strings, one byte at a time."""
    found, is_inside, at = [], False, 0
    while at < len(data):
        byte = data[at : at + 1]
        if is_inside:
            at += byte == b"\\"
            is_inside = byte != b'"'
        elif byte == b'"':
            is_inside = True
        elif byte in b"[]{},":
            found.append(at)
        at += 1
    return found


@pytest.mark.parametrize("piece", [2, 3, 7, 1 << 16])
@pytest.mark.parametrize(
    "value",
    [
        {'a\\"[': [1, "x,\\\\", {"": '"\\'}]},
        ["\\" * 7, "]" * 30, "x" * 50, ["é\n", {}]],
        "x" * 40 + '"[\\' * 9,
        [[[], {}], {"k": [0.5, None]}],
    ],
)
def test_brackets_are_found_wherever_pieces_are_cut(value: Any, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_bounds, "PIECE_BYTES", piece)
    data = msgspec.json.encode(value)
    assert [found for found in json_bounds.tokens(data) if found >= 0] == places(data)


COSTLY = {
    "values": (b"[" + b"[]," * 2_000_000 + b"0]", "json_too_costly"),
    "texts": (b"[" + b'"",' * 2_000_000 + b"0]", "json_too_costly"),
    "keys": (b'{"a":0' + b',"b":0' * 1_000_000 + b"}", "json_too_costly"),
    "depth": (b"[" * 4_000_000, "json_too_deep"),
    "escapes": (b'"' + b"\\n" * 4_000_000 + b'"', "json_too_costly"),
    "wide text": (b'"\xf0\x9f\x98\x80' + b"x" * 4_000_000 + b'"', "json_too_large"),
    "escaped wide text": (b'"\\ud83d\\ude00' + b"x" * 4_000_000 + b'"', "json_too_large"),
}


@pytest.mark.parametrize("name", COSTLY)
def test_json_that_is_costly_to_read_is_refused_unread(name: str) -> None:
    data, code = COSTLY[name]
    with pytest.raises(TooCostly) as refused:
        for _ in json_bounds.counting(data, BODY):
            pass
    assert refused.value.code == code


@pytest.mark.parametrize(
    "data",
    [
        b'"' + b"x" * 13_000_000 + b'"',
        b'"' + b"[{,\\\\" * 900_000 + b'"',
        b"[" + b'"a",' * 49_000 + b"0]",
        b"[" * 64 + b"]" * 64,
        b'"' * 4_000_000,
        b'"' + b'\\"' * 900_000,
    ],
)
async def test_others_get_turns_while_large_json_is_counted(data: bytes) -> None:
    turns, is_over = 0, False

    async def tick() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await json_bounds.check(data, JsonBounds())
    is_over = True
    await ticking
    assert turns >= min(len(data), 1_900_000) // json_bounds.PIECE_BYTES // 2


# Permission rules


COSTLY_RULES: dict[str, Callable[[int], str]] = {
    "stars": lambda number: f"custom-tool(l{'*?' * 485}{number})",
    "stars and texts": lambda number: f"custom-tool(l{'*a' * 485}{number})",
    "sets": lambda number: f"custom-tool({'[a-z]' * 190}{number})",
    "ranges of one set": lambda number: f"custom-tool(*[{'a-b' * 320}]{number})",
    "a text that almost matches": lambda number: f"custom-tool(*{'a' * 400}[b]*{number})",
    "brackets": lambda number: f"custom-tool({'[' * 900}*{number})",
}

COSTLY_SHELL_RULES: dict[str, Callable[[int], str]] = {
    "space": lambda number: f"shell({' ' * 900}*{number})",
    "escapes": lambda number: f"shell({'[*]' * 300}{number})",
    "operators": lambda number: f"shell({'*;' * 450}{number})",
    "programs": lambda number: f"shell(*{number}?a*b)",
}


@pytest.mark.parametrize("name", [*COSTLY_RULES, *COSTLY_SHELL_RULES])
def test_stored_rules_are_matched_with_all_calls_of_a_step_in_so_many_operations_and_no_more(name: str) -> None:
    """A stored rule may be older than the bounds, and a session may have many."""
    rule_of, is_shell = (COSTLY_RULES | COSTLY_SHELL_RULES)[name], name in COSTLY_SHELL_RULES
    ask = PermissionAsk(kind="shell" if is_shell else "custom-tool", subject="l" + "a" * 50 + "; make")
    rules = [rule_of(number) for number in range(300)]

    def judge_calls() -> None:
        allow = Rules(rules, calls=64)
        for number in range(64):
            judge(ask, tool_name=f"l{number}" + "a" * 3_000, allow=allow, unattended=False)

    judge_calls()  # Code that runs once only, such as that of regular expressions, is not counted.
    assert operations(judge_calls) < 120 * MAX_MATCHING_STEPS
    assert compiled_meanwhile(judge_calls) == 0


def compiled_meanwhile(work: Callable[[], object]) -> int:
    """How many regular expressions are compiled."""
    before = fnmatch._compile_pattern.cache_info().misses  # type: ignore[attr-defined]
    work()
    return int(fnmatch._compile_pattern.cache_info().misses - before)  # type: ignore[attr-defined]


def test_a_call_that_could_not_be_matched_asks_and_a_rule_without_pattern_still_holds() -> None:
    costly = [f"custom-tool(*[a]b{number}*)" for number in range(300)]
    allow = Rules([*costly, "custom-tool(*aaa)", "custom-tool(found)", "write"])
    calling = PermissionAsk(kind="custom-tool", subject="found")
    assert judge(calling, tool_name="aaa", allow=Rules(["custom-tool(*aaa)"]), unattended=False) == "allow"
    assert judge(calling, tool_name="a" * 3_000, allow=allow, unattended=False) == "ask"
    assert judge(calling, tool_name="found", allow=allow, unattended=False) == "allow"
    assert judge(PermissionAsk(kind="write", subject="x"), tool_name="x", allow=allow, unattended=False) == "allow"


@pytest.mark.parametrize("text", ["x" * 10_000, "[*]" * 3_333, " " * 10_000, "a;" * 5_000])
def test_rules_without_wildcards_take_no_steps_from_patterns_however_long_they_are(text: str) -> None:
    """Approving a long command for the session stores such a rule."""
    rules = [f"shell({text}{number})" for number in range(MAX_SESSION_RULES - 1)]
    allow = Rules([*rules, "shell(git *)"])
    assert (
        judge(PermissionAsk(kind="shell", subject="git log"), tool_name="bash", allow=allow, unattended=False)
        == "allow"
    )
    approved = PermissionAsk(kind="shell", subject=text.replace("[*]", "*") + "7")
    assert judge(approved, tool_name="bash", allow=allow, unattended=False) == "allow"
    assert operations(lambda: Rules(rules)) < 120 * MAX_SESSION_RULES


def test_long_patterns_do_not_keep_a_short_one_from_being_read() -> None:
    allow = Rules([*(f"shell({'*;' * 450}{number})" for number in range(300)), "shell(git *)"])
    assert (
        judge(PermissionAsk(kind="shell", subject="git log"), tool_name="bash", allow=allow, unattended=False)
        == "allow"
    )


def test_a_costly_call_does_not_take_the_steps_of_the_others_wherever_it_stands() -> None:
    rules = [*(f"custom-tool(*[a]b{number}*)" for number in range(8)), "custom-tool(plain*)"]
    costly = "a" * 3_000
    for place in range(8):
        names = [f"plain{number}" for number in range(7)]
        names.insert(place, costly)
        allow = Rules(rules, calls=len(names))
        ask = PermissionAsk(kind="custom-tool", subject="x")
        verdicts = {name: judge(ask, tool_name=name, allow=allow, unattended=False) for name in names}
        assert verdicts == {name: "ask" if name == costly else "allow" for name in names}


def test_steps_that_a_call_does_not_use_are_left_to_those_that_follow() -> None:
    ask = PermissionAsk(kind="custom-tool", subject="x")
    costly = "a" * 3_000 + "b"  # Takes more than half of the steps for calls.
    rules = ["custom-tool(*[a]c*)", "custom-tool(*[a][b])"]
    alone, shared = Rules(rules), Rules(rules, calls=2)
    assert judge(ask, tool_name=costly, allow=alone, unattended=False) == "allow"
    assert judge(ask, tool_name="x", allow=shared, unattended=False) == "ask"
    assert judge(ask, tool_name=costly, allow=shared, unattended=False) == "allow"


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        (["write(" + "x" * 1_000 + ")"], "rule_too_long"),
        (["write(" + "*?" * 17 + ")"], "rule_too_complex"),
        (["write"] * 101, "too_many_rules"),
        (["write(" + "[*]" * 300 + ")"], None),
        (["write(" + "*a" * 32 + ")"] * 100, None),
    ],
)
async def test_rules_are_bounded_when_they_are_given(runtime: Runtime, rules: list[str], code: str | None) -> None:
    options = SessionOptions(allow=tuple(rules))
    if code is None:
        await runtime.operations.create(runtime.owner, options)
        return
    with pytest.raises(Invalid) as refused:
        await runtime.operations.create(runtime.owner, options)
    assert refused.value.code == code


async def test_a_session_has_so_many_rules_and_no_more_and_older_ones_can_be_revoked(runtime: Runtime) -> None:
    operations = runtime.operations
    key = Key(runtime.owner, await operations.create(runtime.owner, SessionOptions()))
    older = tuple(f"read({'*?' * 400}{number})" for number in range(MAX_SESSION_RULES))
    await operations.record(key, SettingsChanged(allow=older))
    request = RequestId("r")
    with pytest.raises(Conflict) as refused:
        await operations.decide_permission(key, request, "approved-for-session", rules=("read(new)",))
    assert refused.value.code == "too_many_rules"
    with pytest.raises(NotFound):  # It may be approved once.
        await operations.decide_permission(key, request, "approved")
    (first, *_) = await operations.session_permissions(key)
    await operations.revoke_session_permission(key, first.id)
    assert len((await operations.state(key)).allow) == MAX_SESSION_RULES - 1
    with pytest.raises(NotFound):
        await operations.decide_permission(key, request, "approved-for-session", rules=("read(new)",))


# Turns


def worked(steps: int, calls: int) -> Iterable[dict[str, Any]]:
    """The log of a turn with so many answers, each with so many calls."""
    yield START
    yield logged("holdfast.turn_started", turnId="t")
    yield logged("user.message", messageId="u", turnId="t", content="x", delivery="idle")
    for number in range(steps):
        ids = [f"{number}-{each}" for each in range(calls)]
        blocks = [{"type": "tool_call", "toolCallId": each, "name": "x", "arguments": "{}"} for each in ids]
        yield logged("assistant.turn_start", turnId="t", step=number + 1, messageId=f"m{number}")
        yield logged("assistant.message", messageId=f"m{number}", blocks=blocks)
        yield from (logged("tool.execution_complete", toolCallId=each, success=True, content="x") for each in ids)
        yield logged("assistant.turn_end", turnId="t", step=number + 1)
    yield logged("holdfast.turn_ended", turnId="t", reason="completed")


async def test_others_get_turns_while_a_long_history_is_sent_to_a_model(tmp_path: Path) -> None:
    """No more is done in one go than looking over all that was said, however much there is to tell of it."""
    steps, calls = 4, 1_000
    data = document(list(worked(steps, calls)))
    done, most, is_over = 0, 0, False

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal done
        done += event == "call" or event == "c_call"

    async def tick() -> None:
        nonlocal done, most
        while not is_over:
            most, done = max(most, done), 0
            await asyncio.sleep(0)

    async with (
        ModelServer(Script((Rule((Reply(text="Well."),)),))) as server,
        HttpModel(ChatCompletions("m"), base_url=server.url, name="m") as model,
        Runtime(database=tmp_path / "holdfast.db", model=model) as opened,
    ):
        session = opened.open(await opened.operations.import_session(opened.owner, data))
        ticking = asyncio.create_task(tick())
        sys.setprofile(count)
        try:
            told = await session.run("Go on.")
        finally:
            sys.setprofile(None)
            is_over = True
        await ticking
    assert told.text == "Well."
    assert most < 10 * steps * calls


class Asked:
    """A tool that asks for permission, and notes for each time how many turns other tasks have had by then."""

    def __init__(self) -> None:
        self.turns = 0
        self.asked: list[tuple[int, int]] = []
        self.is_over = False
        self.has_run = asyncio.Event()

        @make_tool(name="asks", permission=self._asks)
        async def asks(number: int) -> None:
            self.has_run.set()

        self.tool = asks

    def _asks(self, arguments: Any, directory: Path | None) -> PermissionAsk:
        self.asked.append((arguments.number, self.turns))
        return PermissionAsk(kind="custom-tool", subject=f"asks {arguments.number}")

    async def tick(self) -> None:
        while not self.is_over:
            self.turns += 1
            await asyncio.sleep(0)


def calling(calls: int) -> ScriptedModel:
    made = tuple(ScriptedCall("asks", {"number": number}) for number in range(calls))
    return ScriptedModel(Script((Rule((Reply(tool_calls=made), Reply(text="Well."))),)))


@pytest.mark.parametrize("allow", [(), ("custom-tool",)])
async def test_others_get_turns_while_the_calls_of_one_answer_say_what_they_ask(
    tmp_path: Path, allow: tuple[str, ...]
) -> None:
    calls, seen = 64, Asked()
    async with Runtime(database=tmp_path / "holdfast.db", model=calling(calls), tools=[seen.tool]) as opened:
        session = await opened.session(allow=allow)
        ticking = asyncio.create_task(seen.tick())
        turn = await session.run("Go.")
        seen.is_over = True
        await ticking
    assert turn.text == "Well." if allow else len(turn.requests) == calls
    assert [number for number, _ in seen.asked] == list(range(calls)), "each once"
    assert len({turns for _, turns in seen.asked}) == calls, "a turn between any two of them"


async def test_a_call_that_waits_for_an_answer_says_again_what_it_asks_only_after_it(tmp_path: Path) -> None:
    """A file may be another one by then. Until then, a decision about other calls does not look at it."""
    calls, seen = 8, Asked()
    async with Runtime(database=tmp_path / "holdfast.db", model=calling(calls), tools=[seen.tool]) as opened:
        session = await opened.session()
        turn = await session.run("Go.", message_id="m-1")
        first, *others = turn.requests
        await session.approve(first.id)
        await asyncio.wait_for(seen.has_run.wait(), 30)
        assert {f"custom-tool asks {number}" for number, _ in seen.asked[calls:]} == {first.title}
        for request in others:
            await session.approve(request.id)
        assert (await session.result_of("m-1")).text == "Well."
    assert {number for number, _ in seen.asked[calls:]} == set(range(calls))


class CountedWords(list[sleep_detection._Word]):
    """Words that count how often one of them is read or copied."""

    reads = 0

    def __getitem__(self, which: Any) -> Any:
        found = super().__getitem__(which)
        type(self).reads += len(found) if isinstance(which, slice) else 1
        return CountedWords(found) if isinstance(which, slice) else found


@pytest.mark.parametrize("word", ["nice", "time -f x", "timeout 5", "A=1 env -u x"])
def test_looking_for_a_sleep_in_twice_as_many_words_takes_twice_as_many_reads(word: str) -> None:
    def reads(times: int) -> int:
        words = CountedWords(sleep_detection._Word(text) for text in word.split() * times)
        before = CountedWords.reads
        assert sleep_detection._slept(words, 0) == []
        return CountedWords.reads - before

    assert 0 < reads(400) < 2.1 * reads(200)
