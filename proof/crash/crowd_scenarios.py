"""Scenarios of a crash campaign with several sessions, owners and nodes at once: batches with units of many sessions,
slots that owners wait for, sessions that only some processes can run."""

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.server.operations import SessionOptions
from holdfast.store.turn_limits import TurnLimits
from proof.crash.client import Client
from proof.crash.scenario import COMPLETED, DONE, KEY, Companion, Program, Scenario, rule, says

# The programs


async def _one_turn(client: Client) -> None:
    await client.send("m1", _words(client.key))
    await client.turns_end(1)


async def _two_turns(client: Client) -> None:
    await client.send("m1", _words(client.key))
    await client.turns_end(1)
    await client.send("m2", _words(client.key))
    await client.turns_end(2)


async def _until_asked(client: Client) -> None:
    await client.send("m1", _words(client.key))
    await client.released()


async def _ask_and_wait(client: Client) -> None:
    """Asking takes no slot: the owner's other sessions run while this one waits, and are at rest before the answer."""
    await client.send("m1", _words(client.key))
    await client.asked()
    client.open("the others may run")
    await client.gate("the others are done").wait()
    await client.permit("a1")
    await client.turns_end(1)


async def _run_meanwhile(client: Client) -> None:
    await client.gate("the others may run").wait()
    await client.send("m1", _words(client.key))
    await client.turns_end(1)
    client.open("the others are done")


async def _nothing(client: Client) -> None:
    """It has a part only in the other stages."""


def _stuck(number: int) -> Program:
    """A session approved where no process can run it: it delays no other session, and can be stopped from anywhere."""

    async def program(client: Client) -> None:
        await client.permit("a1")
        client.open(f"stuck {number}")
        await client.gate("the free one is done").wait()
        await client.stop("s1")
        await client.turns_end(1)

    return program


async def _pass_the_stuck(client: Client) -> None:
    """A message whose owner comes after all owners that cannot be served."""
    for number in range(STUCK_OWNERS):
        await client.gate(f"stuck {number}").wait()
    await client.send("m1", _words(client.key))
    await client.turns_end(1)
    client.open("the free one is done")


def _beside(name: str, other: str) -> Program:
    """Two clients offer a tool each, through two processes, at the same moment: the model must be offered both."""

    async def program(client: Client) -> None:
        await client.meets(name, other)
        await client.offer(name)
        await client.offered(name, other)
        if name == "left":
            await client.send("m1", _words(client.key))
        await client.turns_end(1)

    return program


# The sessions


def _words(key: Key) -> str:
    """The text of a session, unlike the text of any other."""
    return f"{key.owner} in {key.session}"


def _session(owner: str, name: str, program: Program, *replies: object, **rest: object) -> Scenario:
    """A session in which one message is sent, and its turn completed, unless `rest` says otherwise."""
    key = Key(Owner(owner), SessionId(name))
    known = {
        "name": name,
        "key": key,
        "stages": (program,),
        "rules": (rule(_words(key), *replies),),  # type: ignore[arg-type]
        "says": (("m1", _words(key)),),
        "ends": {"m1": COMPLETED},
    }
    return Scenario(**{**known, **rest})  # type: ignore[arg-type]


_WORK = (says("I will.", "append_line", "occupy"), DONE)
_ASK = (says("May I?", "guarded_line"), says("Now I will.", "occupy"), DONE)

STUCK_OWNERS = 4
"""More than a process of that scenario has places."""

_NEEDS_NOTE = SessionOptions(tools=("note",))

_HERE = SessionOptions(working_directory="/")
"""Options that bind a session to its node."""


def _with_the_first(first: Scenario, name: str, **rest: object) -> Scenario:
    """A scenario is named for itself, and not for its first session."""
    known = {field: getattr(first, field) for field in first.__struct_fields__}
    return Scenario(**{**known, "name": name, **rest})


CROWD_SCENARIOS: tuple[Scenario, ...] = (
    _with_the_first(
        _session("somebody", "story", _one_turn, *_WORK),
        "crowd",
        beside=(
            _session("anna", "one", _one_turn, *_WORK),
            _session("anna", "two", _one_turn, *_WORK),
            _session("ben", "one", _one_turn, says("At once.")),
            _session("ben", "two", _one_turn, says("Let me think.", reasoning="Hm.", chunk_size=4, chunk_delay_ms=1)),
        ),
        limits=TurnLimits(running=2, in_flight=2),
    ),
    _with_the_first(
        _session("somebody", "story", _two_turns, *_WORK, says=(("m1", _words(KEY)), ("m2", _words(KEY)))),
        "slots",
        ends={"m1": COMPLETED, "m2": COMPLETED},
        beside=(
            _session("somebody", "second", _one_turn, *_WORK),
            _session("somebody", "third", _one_turn, *_WORK),
            _session("ben", "one", _one_turn, *_WORK),
        ),
        limits=TurnLimits(running=1, in_flight=3),
        places=2,
    ),
    _with_the_first(
        _session("somebody", "story", _ask_and_wait, *_ASK),
        "slot-of-a-waiting-turn",
        beside=(_session("somebody", "second", _run_meanwhile, *_WORK),),
        limits=TurnLimits(running=1, in_flight=2),
    ),
    _with_the_first(
        _session("somebody", "story", _nothing, says("At once."), stages=(_nothing, _pass_the_stuck)),
        "renamed-node",
        beside=tuple(
            _session(
                f"anna{number}",
                "stuck",
                _nothing,
                *_ASK,
                stages=(_until_asked, _stuck(number)),
                ends={"m1": ("stopped",)},
                options=_HERE,
            )
            for number in range(STUCK_OWNERS)
        ),
        nodes=("pod-1", "pod-2"),
        is_placed=True,
        unplaced_ms=20,
        places=2,
    ),
    _with_the_first(
        _session("somebody", "story", _one_turn, *_WORK, options=_HERE),
        "two-nodes",
        beside=(
            _session("anna", "free", _one_turn, *_WORK),
            _session("ben", "tooled", _one_turn, says("I will.", "note"), DONE, options=_NEEDS_NOTE, by_companion=True),
            _session("cleo", "south", _one_turn, *_WORK, options=_HERE, by_companion=True),
            _session("dora", "south-too", _one_turn, *_WORK, by_companion=True),
        ),
        nodes=("north",),
        companion=Companion(node="south", lacks=("note",)),
        is_placed=True,
        unplaced_ms=50,
    ),
    _with_the_first(
        _session("somebody", "story", _beside("left", "right"), says("Both are here.")),
        "two-clients",
        nodes=("north",),
        companion=Companion(node="south", plays=(_beside("right", "left"),)),
        looks_for_the_absent=True,
    ),
)
