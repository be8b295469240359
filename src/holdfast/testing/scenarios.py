"""What a crash campaign plays: for each scenario what its client does, what the model says, and how it must end.

A program is played by one process after the other until one comes to its end, so each of its waits must also be
satisfied by what an earlier process left behind.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.events.ids import RequestId, ToolCallId
from holdfast.events.request import ExternalToolRequested
from holdfast.events.session import ClientTool, ModeChanged, PlanChanged, SessionShutdown, ToolDelivered
from holdfast.events.tool import ToolAttempted
from holdfast.models.model import ContextMessage, ReasoningDelta, TextDelta, TokenUsage
from holdfast.models.scripted import Answer, Failure, Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.server.operations import SessionOptions
from holdfast.store import crash_points
from holdfast.testing.client import Client
from holdfast.testing.journal import Affected, Journal
from holdfast.tools.built_in import BUILT_IN
from holdfast.tools.tool import Tool, ToolContext, tool

Program = Callable[[Client], Awaitable[None]]

HOLD_FOR_THE_STOP = "hold-for-the-stop"
STOPPING_SECONDS = 0.1
"""How long an answer waits for the stop to be on its way."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A story with a known end."""

    name: str
    stages: tuple[Program, ...]
    """Each is played by a process of its own."""
    rules: tuple[Rule, ...]
    says: tuple[tuple[str, str], ...]
    """The messages that the log must hold, in order: id and text."""
    ends: dict[str, tuple[str, ...]]
    """By message: how the turn that it is in may end."""
    removed: tuple[str, ...] = ()
    """Messages that were accepted and must not reach the log."""
    options: SessionOptions = SessionOptions()
    lags: str = ""
    """The writing thread pauses after points with this in their name, so that what happens elsewhere meanwhile does."""
    is_deleted: bool = False
    kills_itself: bool = False
    """The model ends the process: the runtime must give up on it."""


class StagedModel(ScriptedModel):
    """Plays the script; some words in it are stage directions. Before `hold…` it waits for the gate of that name; after
    `hold-for-the-stop` it says so and goes on once a stop is on its way, with nothing else to write; and `poison` ends
    the process. No two answers, in whatever process, begin alike: one that is put in the place of another shows."""

    def __init__(self, script: Script, client: Client, process: int) -> None:
        super().__init__(script)
        self._client = client
        self._process = process
        self._answers = 0

    def answer(self, messages: Sequence[ContextMessage]) -> Answer:
        found = super().answer(messages)
        self._answers += 1
        first, *rest = found.pieces or (TextDelta(""),)
        if isinstance(first, TextDelta | ReasoningDelta):
            first = type(first)(f"[{self._process}.{self._answers}] {first.text}")
        return msgspec.structs.replace(found, pieces=(first, *rest))

    async def pace(self, answer: Answer, index: int) -> None:
        piece = answer.pieces[index] if index < len(answer.pieces) else None
        word = piece.text.strip() if isinstance(piece, TextDelta) else ""
        if word.startswith("hold"):
            await self._client.gate(word).wait()
            if word == HOLD_FOR_THE_STOP:
                await self._until_stopping()
        elif word == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        await super().pace(answer, index)

    async def _until_stopping(self) -> None:
        self._client.open("stop now")
        with contextlib.suppress(TimeoutError):  # A stop that an earlier process put is not put again.
            async with asyncio.timeout(STOPPING_SECONDS):
                await self._client.until(lambda: self._client.passed("put:stop:before"))


def tools_for(client: Client, effects: Journal) -> tuple[Tool, ...]:
    """Tools whose effects can be counted afterwards."""

    def affect(name: str, context: ToolContext) -> str:
        crash_points.reach(f"tool:{name}:before")
        effects.add(
            Affected(process=effects.process, tool=name, tool_call_id=context.tool_call_id, attempt=context.attempt)
        )
        crash_points.reach(f"tool:{name}:after")
        return f"{name} is done"

    @tool(permission="allow")
    def append_line(text: str, context: ToolContext) -> str:
        """Append a line. Twice is not as good as once."""
        return affect("append_line", context)

    @tool(permission="allow", after_crash="repeat")
    def put_line(text: str, context: ToolContext) -> str:
        """Make sure that a line is there. Twice is as good as once."""
        return affect("put_line", context)

    @tool(permission="allow")
    async def note(text: str, context: ToolContext) -> str:
        """Note something, without a thread."""
        return affect("note", context)

    @tool
    def guarded_line(text: str, context: ToolContext) -> str:
        """Append a line, if one may."""
        return affect("guarded_line", context)

    @tool(permission="allow")
    async def wait_here(context: ToolContext) -> str:
        """Begin, and then wait until somebody ends it."""
        affect("wait_here", context)
        await client.gate("never").wait()
        return "never"

    return (append_line, put_line, note, guarded_line, wait_here, *BUILT_IN)


REPEATABLE = frozenset({"put_line"})
"""Tools that declared that they may run again for the same call."""

_USAGE = TokenUsage(input_tokens=11, output_tokens=7)


def _says(text: str, *calls: str, **rest: object) -> Reply:
    made = tuple(ScriptedCall(name, {"text": "x"} if name != "wait_here" else {}) for name in calls)
    return msgspec.structs.replace(Reply(text=text, tool_calls=made, usage=_USAGE), **rest)


def _rule(when: str, *replies: Reply) -> Rule:
    return Rule(replies, when)


DONE = _says("All of it is done.")


# The programs


async def _two_turns(client: Client) -> None:
    await client.send("m1", "first")
    await client.turns_end(1)
    await client.send("m2", "second")
    await client.turns_end(2)


async def _one_turn(client: Client) -> None:
    await client.send("m1", "first")
    await client.turns_end(1)


async def _until_asked(client: Client) -> None:
    await client.send("m1", "first")
    await client.released()


async def _permit_twice(client: Client) -> None:
    await client.permit("a1")
    await client.permit("a2", "denied-interactively-by-user")
    await client.turns_end(1)


async def _permit_at_once(client: Client) -> None:
    await client.send("m1", "first")
    await asyncio.gather(client.permit("a1"), client.permit("a2", "denied-interactively-by-user"))
    await client.turns_end(1)


async def _give_result_twice(client: Client) -> None:
    await client.give_result("a1", "forty-two")
    await client.give_result("a2", "forty-three")
    await client.turns_end(1)


async def _answer_question(client: Client) -> None:
    await client.send("m1", "first")
    await asyncio.gather(client.reply("a1", "blue"), client.reply("a2", "red"))
    await client.turns_end(1)


async def _follow_ups(client: Client) -> None:
    await client.send("m1", "first")
    await client.turn_shows(1)
    await client.send("m2", "also this")
    await client.send("m3", "afterwards that", "enqueue")
    await client.send("m4", "and this")
    client.open("hold")
    await client.turns_end(2)


async def _late_follow_up(client: Client) -> None:
    """The message comes just when the holder, seeing nothing, is about to let go of the session."""
    await client.send("m1", "first")
    await client.until(lambda: client.passed("turn_ended:after") or client.ended() > 0)
    await client.send("m2", "second")
    await client.turns_end(2)


async def _stop_model(client: Client) -> None:
    await client.send("m1", "first")
    await client.turn_shows(1)
    await client.send("m2", "never mind", "enqueue")
    await client.stop("s1")
    await client.turns_end(1)
    await client.send("m3", "third")
    await client.turns_end(2)


async def _stop_tool(client: Client) -> None:
    await client.send("m1", "first")
    await client.until(lambda: any(isinstance(event.body, ToolAttempted) for event in client.events))
    await client.stop("s1")
    await client.turns_end(1)
    await client.send("m2", "second")
    await client.turns_end(2)


async def _stop_while_waiting(client: Client) -> None:
    await asyncio.gather(client.stop("s1"), client.permit("a1"))
    await client.turns_end(1)
    await client.send("m2", "second")
    await client.turns_end(2)


async def _stop_late(client: Client) -> None:
    """The stop is accepted while the turn's last words are being written; the next turn must not feel it."""
    await client.send("m1", "first")
    await client.turn_shows(1)
    await client.send("m2", "second", "enqueue")
    client.open(HOLD_FOR_THE_STOP)
    await client.until(lambda: client.gate("stop now").is_set() or client.ended() > 0)
    await client.stop("s1", keep_queued=True)
    await client.turns_end(2)


async def _interrupt(client: Client) -> None:
    await client.send("m1", "first")
    await client.turn_shows(1)
    await client.send("m2", "second", "interrupt")
    await client.turns_end(2)


async def _provider_errors(client: Client) -> None:
    for number, text in enumerate(("limited", "cut", "refused", "last"), 1):
        await client.send(f"m{number}", text)
        await client.turns_end(number)


async def _edit_queue(client: Client) -> None:
    await client.send("m1", "first")
    await client.turn_shows(1)
    for number in (2, 3, 4):
        await client.send(f"m{number}", f"number {number}", "enqueue")
    await client.edit("m3", "number 3, edited")
    await client.reorder("m4", "m2", "m3")
    await client.remove("m2")
    client.open("hold")
    await client.turns_end(3)


async def _delete(client: Client) -> None:
    await client.send("m1", "first")
    await client.turn_shows(1)
    await client.delete()
    await client.send("m2", "too late")
    await client.create_again()


async def _records(client: Client) -> None:
    await client.attach("c1")
    await client.send("m1", "first")
    await client.turn_shows(1)
    await client.rename("A title")
    await client.change_model("scripted")
    await client.record("mode", ModeChanged(new_mode="plan", previous_mode="interactive"))
    await client.record("plan", PlanChanged(operation="create"))
    await client.record("again", ToolDelivered(request_id=RequestId("r0"), tool_call_id=ToolCallId("t0")))
    client.open("hold")
    await client.turns_end(1)
    await client.record("shutdown", SessionShutdown(shutdown_type="routine"))
    await client.detach("c1")


async def _entrusted(client: Client) -> None:
    await client.entrust()
    await client.send("m1", "first")
    await client.turns_end(1)
    await client.lose_secret()
    await client.take_back()


async def _nobody_can_decide(client: Client) -> None:
    await client.grant("read")
    await client.decline("c1")
    await client.turns_end(1)


async def _until_handed_out(client: Client) -> None:
    await client.send("m1", "first")
    await client.request(ExternalToolRequested)
    await client.released()


async def _not_continued(client: Client) -> None:
    await client.come_back_without_pending_work("c2")
    await client.turns_end(1)
    await client.send("m2", "second")
    await client.turns_end(2)


async def _suspended(client: Client) -> None:
    await client.suspend("s1")
    await client.turns_end(1)
    await client.send("m2", "second")
    await client.turns_end(2)


async def _rewound(client: Client) -> None:
    await client.send("m1", "first")
    await client.turns_end(1)
    await client.send("m2", "second")
    await client.turns_end(2)
    await client.rewind_to_end_of(1)
    await client.send("m3", "third")
    await client.turns_end(3)


# The scenarios

_M1 = (("m1", "first"),)
_M1_M2 = (*_M1, ("m2", "second"))
_COMPLETED = ("completed",)
_LOOKUP = ClientTool(name="lookup", description="Look something up.", parameters={"type": "object"})

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="plain",
        stages=(_two_turns,),
        rules=(_rule("first", _says("Hello to you.")), _rule("second", _says("Hello again."))),
        says=_M1_M2,
        ends={"m1": _COMPLETED, "m2": _COMPLETED},
    ),
    Scenario(
        name="streaming",
        stages=(_one_turn,),
        rules=(
            _rule(
                "first",
                _says(
                    "A long answer, é and 漢字 and 🙂 in it, that comes in many small pieces.",
                    reasoning="Let me think about this for a while.",
                    chunk_size=5,
                    chunk_delay_ms=1,
                ),
            ),
        ),
        says=_M1,
        ends={"m1": _COMPLETED},
    ),
    Scenario(
        name="tools",
        stages=(_one_turn,),
        rules=(_rule("first", _says("I will.", "append_line", "put_line", "note"), DONE),),
        says=_M1,
        ends={"m1": _COMPLETED},
    ),
    Scenario(
        name="permission",
        stages=(_until_asked, _permit_twice),
        rules=(_rule("first", _says("May I?", "guarded_line"), DONE),),
        says=_M1,
        ends={"m1": _COMPLETED},
    ),
    Scenario(
        name="permission-race",
        stages=(_permit_at_once,),
        rules=(_rule("first", _says("May I?", "guarded_line", "append_line"), DONE),),
        says=_M1,
        ends={"m1": _COMPLETED},
    ),
    Scenario(
        name="client-tool",
        stages=(_until_asked, _give_result_twice),
        rules=(_rule("first", _says("Please look.", "lookup"), DONE),),
        says=_M1,
        ends={"m1": _COMPLETED},
        options=SessionOptions(client_tools=(_LOOKUP,)),
    ),
    Scenario(
        name="question",
        stages=(_answer_question,),
        rules=(
            _rule(
                "first",
                Reply(text="Tell me.", tool_calls=(ScriptedCall("ask_user", {"question": "Which colour?"}),)),
                DONE,
            ),
        ),
        says=_M1,
        ends={"m1": _COMPLETED},
    ),
    Scenario(
        name="follow-ups",
        stages=(_follow_ups,),
        rules=(_rule("first", _says("One two hold three.", "append_line"), DONE), _rule("afterwards", DONE)),
        says=(("m1", "first"), ("m2", "also this"), ("m4", "and this"), ("m3", "afterwards that")),
        ends={"m1": _COMPLETED, "m3": _COMPLETED},
    ),
    Scenario(
        name="late-follow-up",
        stages=(_late_follow_up,),
        lags="turn_ended:after",
        rules=(_rule("first", DONE), _rule("second", DONE)),
        says=_M1_M2,
        ends={"m1": _COMPLETED, "m2": _COMPLETED},
    ),
    Scenario(
        name="stop-model",
        stages=(_stop_model,),
        rules=(_rule("first", _says("One two hold-for-ever three.")), _rule("third", DONE)),
        says=(("m1", "first"), ("m3", "third")),
        ends={"m1": ("stopped",), "m3": _COMPLETED},
        removed=("m2",),
    ),
    Scenario(
        name="stop-tool",
        stages=(_stop_tool,),
        rules=(
            _rule("first", _says("I will.", "wait_here"), _says("And now hold-for-ever.")),
            _rule("second", DONE),
        ),
        says=_M1_M2,
        ends={"m1": ("stopped",), "m2": _COMPLETED},
    ),
    Scenario(
        name="stop-waiting",
        stages=(_until_asked, _stop_while_waiting),
        rules=(_rule("first", _says("May I?", "guarded_line"), DONE), _rule("second", DONE)),
        says=_M1_M2,
        ends={"m1": ("stopped",), "m2": _COMPLETED},
    ),
    Scenario(
        name="stop-late",
        stages=(_stop_late,),
        lags="put:stop:after",
        rules=(_rule("first", _says(f"One {HOLD_FOR_THE_STOP} two.")), _rule("second", _says("Three four five."))),
        says=_M1_M2,
        ends={"m1": ("completed", "stopped"), "m2": _COMPLETED},
    ),
    Scenario(
        name="interrupt",
        stages=(_interrupt,),
        rules=(_rule("first", _says("One two hold-for-ever three.")), _rule("second", DONE)),
        says=_M1_M2,
        ends={"m1": ("stopped",), "m2": _COMPLETED},
    ),
    Scenario(
        name="provider-errors",
        stages=(_provider_errors,),
        rules=(
            _rule("limited", _says("After all.", fail=Failure(kind="rate_limited", times=1))),
            _rule("cut", _says("One two three four.", chunk_delay_ms=3, fail=Failure(kind="cut", times=1, after=2))),
            _rule("refused", _says("", fail=Failure(kind="refused"))),
            _rule("last", DONE),
        ),
        says=(("m1", "limited"), ("m2", "cut"), ("m3", "refused"), ("m4", "last")),
        ends={"m1": _COMPLETED, "m2": _COMPLETED, "m3": ("error",), "m4": _COMPLETED},
    ),
    Scenario(
        name="queue",
        stages=(_edit_queue,),
        rules=(_rule("first", _says("One hold two.")), _rule("number", DONE)),
        says=(("m1", "first"), ("m4", "number 4"), ("m3", "number 3, edited")),
        ends={"m1": _COMPLETED, "m4": _COMPLETED, "m3": _COMPLETED},
        removed=("m2",),
    ),
    Scenario(
        name="delete",
        stages=(_delete,),
        rules=(_rule("first", _says("One two hold-for-ever three.")),),
        says=(),
        ends={},
        is_deleted=True,
    ),
    Scenario(
        name="records",
        stages=(_records,),
        rules=(_rule("first", _says("One hold two.", "append_line"), DONE),),
        says=_M1,
        ends={"m1": _COMPLETED},
    ),
    Scenario(
        name="entrusted",
        stages=(_entrusted,),
        rules=(_rule("first", _says("I will.", "append_line"), DONE),),
        says=_M1,
        ends={"m1": _COMPLETED},
    ),
    Scenario(
        name="declined",
        stages=(_until_asked, _nobody_can_decide),
        rules=(_rule("first", _says("May I?", "guarded_line"), DONE),),
        says=_M1,
        ends={"m1": _COMPLETED},
    ),
    Scenario(
        name="not-continued",
        stages=(_until_handed_out, _not_continued),
        rules=(_rule("first", _says("Let me see.", "lookup"), DONE), _rule("second", DONE)),
        says=_M1_M2,
        ends={"m1": ("interrupted",), "m2": _COMPLETED},
        options=SessionOptions(client_tools=(_LOOKUP,), conventions="copilot"),
    ),
    Scenario(
        name="suspended",
        stages=(_until_asked, _suspended),
        rules=(_rule("first", _says("May I?", "guarded_line"), DONE), _rule("second", DONE)),
        says=_M1_M2,
        ends={"m1": ("stopped",), "m2": _COMPLETED},
    ),
    Scenario(
        name="rewound",
        stages=(_rewound,),
        rules=(_rule("first", DONE), _rule("second", DONE), _rule("third", DONE)),
        says=(*_M1_M2, ("m3", "third")),
        ends={"m1": _COMPLETED, "m2": _COMPLETED, "m3": _COMPLETED},
    ),
    Scenario(
        name="poison",
        stages=(_two_turns,),
        rules=(_rule("first", _says("Well then poison")), _rule("second", DONE)),
        says=_M1_M2,
        ends={"m1": ("error",), "m2": _COMPLETED},
        kills_itself=True,
    ),
)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
