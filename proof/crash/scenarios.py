"""The scenarios of the crash campaign: the actions of each client, the replies of the model, and the required end."""

import asyncio

from holdfast.events.body import Body
from holdfast.events.ids import RequestId, ToolCallId
from holdfast.events.request import ExternalToolRequested
from holdfast.events.role import RoleBounds
from holdfast.events.session import (
    ClientTool,
    ModeChanged,
    PlanChanged,
    SessionInfo,
    SessionShutdown,
    SettingsChanged,
    TitleChanged,
    ToolDelivered,
)
from holdfast.events.tool import ToolAttempted
from holdfast.models.scripted import Failure, Reply, ScriptedCall
from holdfast.server.operations import SessionOptions
from proof.crash.budget_scenarios import BUDGET_SCENARIOS
from proof.crash.client import Client
from proof.crash.compaction_scenarios import COMPACTION_SCENARIOS
from proof.crash.crowd_scenarios import CROWD_SCENARIOS
from proof.crash.file_scenarios import FILE_SCENARIOS
from proof.crash.scenario import COMPLETED, DONE, M1, M1_M2, USAGE, Scenario, rule, says
from proof.crash.stage import HOLD_FOR_THE_STOP
from proof.crash.task_scenarios import TASK_SCENARIOS
from proof.crash.webhook_scenarios import WEBHOOK_SCENARIOS

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


async def _permit_always(client: Client) -> None:
    """The permission is revoked, and then the client sends its answer again."""
    if not client.is_done("ungrant held"):
        await client.permit_always("a1")
        await client.note_held("after the answer")
    await client.revoke_held()
    await client.permit_always("a1")
    await client.turns_end(1)
    await client.note_held("after the revocation")


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
    """The message arrives just when the holder, having seen an empty inbox, is about to release the session."""
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


async def _stop_late_tool(client: Client) -> None:
    """Stopped work is still ending when the next message comes."""
    await client.send("m1", "first")
    await client.until(lambda: any(isinstance(event.body, ToolAttempted) for event in client.events))
    await client.stop("s1")
    await client.send("m2", "second")
    await client.turns_end(2)


async def _stop_while_waiting(client: Client) -> None:
    await asyncio.gather(client.stop("s1"), client.permit("a1"))
    await client.turns_end(1)
    await client.send("m2", "second")
    await client.turns_end(2)


async def _stop_late(client: Client) -> None:
    """The stop is accepted while the turn's last text is being written; it must not affect the next turn."""
    await client.send("m1", "first")
    await client.turn_shows(1)
    await client.send("m2", "second", "enqueue")
    client.open(HOLD_FOR_THE_STOP)
    await client.until(lambda: client.gate("stop now").is_set() or client.ended() > 0)
    await client.stop("s1", keep_queued=True)
    await client.turns_end(2)


async def _stop_ended(client: Client) -> None:
    """The stop is for a turn that has ended: it must not touch later messages."""
    await client.send("m1", "first")
    await client.until(lambda: client.ended() > 0)
    await client.send("m2", "second")
    await client.turn_shows(2)
    await client.send("m3", "third", "enqueue")
    await client.stop("s1", number=1)
    client.open("hold")
    await client.turns_end(3)


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


async def _widen(client: Client) -> None:
    """A message of a sender who may grant little waits, while others give the session more."""
    await client.send("m1", "first")
    await client.turn_shows(1)
    await client.send("m2", "second", "enqueue", RoleBounds(rules=("read",)))
    await client.record("allow", SettingsChanged(allow=("guarded_line", "read")))
    client.open("hold")
    await client.turns_end(2)


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
    await client.see(1)
    await client.annotate(ticket="12")
    await client.rename("A title")
    await client.change_model("scripted")
    await client.record("mode", ModeChanged(new_mode="plan", previous_mode="interactive"))
    await client.record("info", SessionInfo(info_type="note", message="A line for people."))
    await client.record("plan", PlanChanged(operation="create"))
    await client.record("again", ToolDelivered(request_id=RequestId("r0"), tool_call_id=ToolCallId("t0")))
    client.open("hold")
    await client.turns_end(1)
    await client.record("shutdown", SessionShutdown(shutdown_type="routine"))
    await client.detach("c1")


async def _titled(client: Client) -> None:
    """The first turn does not end before its session has a title from the model, whatever happens meanwhile."""
    await client.send("m1", "first")
    await client.until(lambda: any(_is_made_title(event.body) for event in client.events))
    client.open("hold")
    await client.turns_end(1)


async def _renamed(client: Client) -> None:
    """The model's title comes after a person chose another."""
    await client.send("m1", "first hold-the-title")
    await client.turn_shows(1)
    await client.rename("Mine")
    client.open("hold-the-title")
    client.open("hold")
    await client.turns_end(1)


def _is_made_title(body: Body) -> bool:
    return isinstance(body, TitleChanged) and body.by_model


async def _entrusted(client: Client) -> None:
    await client.entrust()
    await client.make_key()
    await client.send("m1", "first")
    await client.turns_end(1)
    await client.revoke_key()
    await client.audit()
    await client.lose_secret()
    await client.take_back()


async def _nobody_can_decide(client: Client) -> None:
    await client.grant("read")
    await client.decline("c1")
    await client.turns_end(1)
    await client.revoke_grant("read")


async def _the_one_who_could_leaves(client: Client) -> None:
    await client.decline_until_alone("c1", "c2")
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


async def _replaced(client: Client) -> None:
    """The words are edited while their turn runs; and then they are to be answered once more."""
    await client.send("m1", "first")
    await client.turn_shows(1)
    await client.send("m2", "never mind", "enqueue")
    await client.send_instead("m1", "other words", number=1)
    await client.turns_end(2)
    await client.send_instead("m1", "other words", number=2)
    await client.turns_end(3)


# The scenarios

_LOOKUP = ClientTool(name="lookup", description="Look something up.", parameters={"type": "object"})


def _deadly_step(number: int) -> Reply:
    """The session kills its process once, after the progress of the step before."""
    call = ScriptedCall("put_line", {"text": f"line {number}"})
    return Reply(text=f"Well then die{number} and now", tool_calls=(call,), usage=USAGE)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="plain",
        stages=(_two_turns,),
        rules=(rule("first", says("Hello to you.")), rule("second", says("Hello again."))),
        says=M1_M2,
        ends={"m1": COMPLETED, "m2": COMPLETED},
    ),
    Scenario(
        name="streaming",
        stages=(_one_turn,),
        rules=(
            rule(
                "first",
                says(
                    "A long answer, é and 漢字 and 🙂 in it, that comes in many small pieces.",
                    reasoning="Let me think about this for a while.",
                    chunk_size=5,
                    chunk_delay_ms=1,
                ),
            ),
        ),
        says=M1,
        ends={"m1": COMPLETED},
    ),
    Scenario(
        name="tools",
        stages=(_one_turn,),
        rules=(rule("first", says("I will.", "append_line", "put_line", "note"), DONE),),
        says=M1,
        ends={"m1": COMPLETED},
    ),
    Scenario(
        name="permission",
        stages=(_until_asked, _permit_twice),
        rules=(rule("first", says("May I?", "guarded_line"), DONE),),
        says=M1,
        ends={"m1": COMPLETED},
    ),
    Scenario(
        name="lasting-permission",
        stages=(_until_asked, _permit_always),
        rules=(rule("first", says("May I?", "guarded_line"), DONE),),
        says=M1,
        ends={"m1": COMPLETED},
    ),
    Scenario(
        name="permission-race",
        stages=(_permit_at_once,),
        rules=(rule("first", says("May I?", "guarded_line", "append_line"), DONE),),
        says=M1,
        ends={"m1": COMPLETED},
    ),
    Scenario(
        name="client-tool",
        stages=(_until_asked, _give_result_twice),
        rules=(rule("first", says("Please look.", "lookup"), DONE),),
        says=M1,
        ends={"m1": COMPLETED},
        options=SessionOptions(client_tools=(_LOOKUP,)),
    ),
    Scenario(
        name="question",
        stages=(_answer_question,),
        rules=(
            rule(
                "first",
                Reply(text="Tell me.", tool_calls=(ScriptedCall("ask_user", {"question": "Which colour?"}),)),
                DONE,
            ),
        ),
        says=M1,
        ends={"m1": COMPLETED},
    ),
    Scenario(
        name="follow-ups",
        stages=(_follow_ups,),
        rules=(rule("first", says("One two hold three.", "append_line"), DONE), rule("afterwards", DONE)),
        says=(("m1", "first"), ("m2", "also this"), ("m4", "and this"), ("m3", "afterwards that")),
        ends={"m1": COMPLETED, "m3": COMPLETED},
    ),
    Scenario(
        name="late-follow-up",
        stages=(_late_follow_up,),
        lags="turn_ended:after",
        rules=(rule("first", DONE), rule("second", DONE)),
        says=M1_M2,
        ends={"m1": COMPLETED, "m2": COMPLETED},
    ),
    Scenario(
        name="stop-model",
        stages=(_stop_model,),
        rules=(rule("first", says("One two hold-for-ever three.")), rule("third", DONE)),
        says=(("m1", "first"), ("m3", "third")),
        ends={"m1": ("stopped",), "m3": COMPLETED},
        removed=("m2",),
    ),
    Scenario(
        name="stop-tool",
        stages=(_stop_tool,),
        rules=(
            rule("first", says("I will.", "wait_here"), says("And now hold-for-ever.")),
            rule("second", DONE),
        ),
        says=M1_M2,
        ends={"m1": ("stopped",), "m2": COMPLETED},
    ),
    Scenario(
        name="stop-waiting",
        stages=(_until_asked, _stop_while_waiting),
        rules=(rule("first", says("May I?", "guarded_line"), DONE), rule("second", DONE)),
        says=M1_M2,
        ends={"m1": ("stopped",), "m2": COMPLETED},
    ),
    Scenario(
        name="stop-late",
        stages=(_stop_late,),
        lags="put:stop:after",
        rules=(rule("first", says(f"One {HOLD_FOR_THE_STOP} two.")), rule("second", says("Three four five."))),
        says=M1_M2,
        ends={"m1": ("completed", "stopped"), "m2": COMPLETED},
    ),
    Scenario(
        name="stop-ended",
        stages=(_stop_ended,),
        rules=(rule("first", DONE), rule("second", says("One hold two.")), rule("third", DONE)),
        says=(*M1_M2, ("m3", "third")),
        ends={"m1": COMPLETED, "m2": COMPLETED, "m3": COMPLETED},
    ),
    Scenario(
        name="interrupt",
        stages=(_interrupt,),
        rules=(rule("first", says("One two hold-for-ever three.")), rule("second", DONE)),
        says=M1_M2,
        ends={"m1": ("stopped",), "m2": COMPLETED},
    ),
    Scenario(
        name="provider-errors",
        stages=(_provider_errors,),
        rules=(
            rule("limited", says("After all.", fail=Failure(kind="rate_limited", times=1))),
            rule("cut", says("One two three four.", chunk_delay_ms=3, fail=Failure(kind="cut", times=1, after=2))),
            rule("refused", says("", fail=Failure(kind="refused"))),
            rule("last", DONE),
        ),
        says=(("m1", "limited"), ("m2", "cut"), ("m3", "refused"), ("m4", "last")),
        ends={"m1": COMPLETED, "m2": COMPLETED, "m3": ("error",), "m4": COMPLETED},
    ),
    Scenario(
        name="queue",
        stages=(_edit_queue,),
        rules=(rule("first", says("One hold two.")), rule("number", DONE)),
        says=(("m1", "first"), ("m4", "number 4"), ("m3", "number 3, edited")),
        ends={"m1": COMPLETED, "m4": COMPLETED, "m3": COMPLETED},
        removed=("m2",),
    ),
    Scenario(
        name="bounded-message",
        stages=(_widen,),
        rules=(rule("first", says("One hold two.")), rule("second", says("I write.", "note"), DONE)),
        says=M1_M2,
        ends={"m1": COMPLETED, "m2": COMPLETED},
    ),
    Scenario(
        name="delete",
        stages=(_delete,),
        rules=(rule("first", says("One two hold-for-ever three.")),),
        says=(),
        ends={},
        is_deleted=True,
    ),
    Scenario(
        name="records",
        stages=(_records,),
        rules=(rule("first", says("One hold two.", "append_line"), DONE),),
        says=M1,
        ends={"m1": COMPLETED},
        shows_life_every_seconds=0.01,
    ),
    Scenario(
        name="entrusted",
        stages=(_entrusted,),
        rules=(rule("first", says("I will.", "append_line"), DONE),),
        says=M1,
        ends={"m1": COMPLETED},
    ),
    Scenario(
        name="titled",
        stages=(_titled,),
        rules=(rule("first", says("One hold two.")),),
        says=M1,
        ends={"m1": COMPLETED},
        options=SessionOptions(wants_title=True),
    ),
    Scenario(
        name="renamed",
        stages=(_renamed,),
        rules=(rule("first", says("One hold two.")),),
        says=(("m1", "first hold-the-title"),),
        ends={"m1": COMPLETED},
        options=SessionOptions(wants_title=True),
    ),
    Scenario(
        name="declined",
        stages=(_until_asked, _nobody_can_decide),
        rules=(rule("first", says("May I?", "guarded_line"), DONE),),
        says=M1,
        ends={"m1": COMPLETED},
        looks_for_the_absent=True,
    ),
    Scenario(
        name="declined-by-the-rest",
        stages=(_until_asked, _the_one_who_could_leaves),
        rules=(rule("first", says("May I?", "guarded_line"), DONE),),
        says=M1,
        ends={"m1": COMPLETED},
        looks_for_the_absent=True,
    ),
    Scenario(
        name="not-continued",
        stages=(_until_handed_out, _not_continued),
        rules=(rule("first", says("Let me see.", "lookup"), DONE), rule("second", DONE)),
        says=M1_M2,
        ends={"m1": ("interrupted",), "m2": COMPLETED},
        options=SessionOptions(client_tools=(_LOOKUP,), conventions="copilot"),
        knows_of_deaths=True,
    ),
    Scenario(
        name="suspended",
        stages=(_until_asked, _suspended),
        rules=(rule("first", says("May I?", "guarded_line"), DONE), rule("second", DONE)),
        says=M1_M2,
        ends={"m1": ("stopped",), "m2": COMPLETED},
    ),
    Scenario(
        name="rewound",
        stages=(_rewound,),
        rules=(rule("first", DONE), rule("second", DONE), rule("third", DONE)),
        says=(*M1_M2, ("m3", "third")),
        ends={"m1": COMPLETED, "m2": COMPLETED, "m3": COMPLETED},
    ),
    Scenario(
        name="replaced",
        stages=(_replaced,),
        rules=(
            rule("first", says("One two hold-for-ever three.")),
            rule("other", says("I will.", "append_line"), DONE),
        ),
        says=(("m1", "first"), ("m1", "other words"), ("m1", "other words")),
        ends={"m1": COMPLETED},
        removed=("m2",),
    ),
    Scenario(
        name="fallback",
        stages=(_two_turns,),
        rules=(rule("first", says("I will.", "append_line"), DONE), rule("second", DONE)),
        says=M1_M2,
        ends={"m1": COMPLETED, "m2": COMPLETED},
        fallback="another",
    ),
    Scenario(
        name="poison",
        stages=(_two_turns,),
        rules=(rule("first", says("Well then poison")), rule("second", DONE)),
        says=M1_M2,
        ends={"m1": ("error",), "m2": COMPLETED},
        kills_itself=True,
    ),
    Scenario(
        name="deadly-load",
        stages=(_one_turn,),
        rules=(rule("first", says("Well then die0")),),
        says=M1,
        ends={"m1": ("error",)},
        kills_itself=True,
        is_deadly_to_load=True,
    ),
    Scenario(
        name="deadly-steps",
        stages=(_one_turn,),
        rules=(rule("first", *map(_deadly_step, range(7)), DONE),),
        says=M1,
        ends={"m1": COMPLETED},
        kills_itself=True,
    ),
    Scenario(
        name="stop-late-tool",
        stages=(_stop_late_tool,),
        rules=(
            rule("first", says("I will.", "end_late"), says("And now hold-for-ever.")),
            rule("second", says("I will.", "occupy"), DONE),
        ),
        says=M1_M2,
        ends={"m1": ("stopped",), "m2": COMPLETED},
    ),
    *TASK_SCENARIOS,
    *FILE_SCENARIOS,
    *CROWD_SCENARIOS,
    *COMPACTION_SCENARIOS,
    *BUDGET_SCENARIOS,
    *WEBHOOK_SCENARIOS,
)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
