"""The definition of a scenario of a crash campaign, and the vocabulary of its script.

One process after the other plays a program until one reaches its end, so each wait of the program must also be
satisfied by the state that an earlier process left.
"""

from collections.abc import Awaitable, Callable

import msgspec

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.models.info import TokenPrice
from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Reply, Rule, ScriptedCall
from holdfast.server.operations import SessionOptions
from holdfast.store.turn_limits import TurnLimits
from proof.crash.client import Client

Program = Callable[[Client], Awaitable[None]]


KEY = Key(Owner("somebody"), SessionId("story"))
NODE = "campaign"

ONE_AT_A_TIME = TurnLimits(running=1, in_flight=1)
"""A crash must leave no slot and no place taken: otherwise the only session would never run again."""


class Companion(msgspec.Struct, frozen=True, kw_only=True):
    """A second process of a trial, on another node. It lives as long as the stage, while the first is killed."""

    node: str
    lacks: tuple[str, ...] = ()
    """Tools that it does not have."""
    plays: tuple[Program, ...] = ()
    """The companion's program, by stage, on the session that the first process plays as well."""


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
    """The writing thread pauses after points with this in their name, so that concurrent work can proceed meanwhile."""
    tasks: tuple[str, ...] = ()
    """The news of its tasks, in order: kind and exit code, such as `failed 3`, with `silent` if the end is not
    reported."""
    runs: dict[str, tuple[int, ...]] = {}
    """Its commands, by the name of the file that each leaves a line in: how often it may have run."""
    has_webhook: bool = False
    """Its owner has a webhook, whose receiver is a process of its own."""
    rests: bool = False
    """All commands end between its stages, when no process looks after them."""
    retention_seconds: float = 86_400.0
    """Tasks that ended so long ago are forgotten."""
    shows_life_every_seconds: float = 8.0
    """How often its processes show PostgreSQL that they live."""
    key: Key = KEY
    beside: tuple["Scenario", ...] = ()
    """The other sessions of a trial, each with a program of its own that is played at the same time."""
    by_companion: bool = False
    """Such a session is the companion's to make, and to send messages to."""
    companion: Companion | None = None
    nodes: tuple[str, ...] = (NODE,)
    """The node that the processes of each stage are on; the last for all further stages."""
    is_placed: bool = False
    """Sessions with a working directory run only on the node on which they were created."""
    unplaced_ms: int = 60_000
    """After how long any process may say that no process can run a session."""
    knows_of_deaths: bool = False
    """The client's actions depend on whether the previous process is known to be dead."""
    limits: TurnLimits = ONE_AT_A_TIME
    places: int = 200
    """How many sessions a process runs at once."""
    is_deleted: bool = False
    files: tuple[str, ...] | None = None
    """The files that are left after the last sweep; None: it has none."""
    kills_itself: bool = False
    """The model ends the process: the runtime must give up on it."""
    looks_for_the_absent: bool = False
    """The outcome depends on which clients are gone. On SQLite the clients of a frozen process are not: it is alive."""
    window: int | None = None
    """The window of the session's model, in tokens."""
    tells_window: bool = True
    """The runtime knows the window; otherwise only a refusal names it."""
    summary: Reply | None = None
    """The model's answer when it is asked for a summary, if it is not the script's usual one."""
    fallback: str | None = None
    """The fall-back for the session's model, which then is always unavailable."""
    price: TokenPrice | None = None
    """The price of the model, whose answers have at most so many tokens as `budget_scenarios.LONGEST` says."""
    is_deadly_to_load: bool = False
    """A process that claimed the session in the middle of a turn dies when it loads the session."""

    @property
    def stories(self) -> tuple["Scenario", ...]:
        """All sessions of a trial."""
        return (self, *self.beside)

    @property
    def has_commands(self) -> bool:
        return bool(self.runs)


USAGE = TokenUsage(input_tokens=11, output_tokens=7)


def says(text: str, *calls: str, **rest: object) -> Reply:
    made = tuple(ScriptedCall(name, {"text": "x"} if name != "wait_here" else {}) for name in calls)
    return msgspec.structs.replace(Reply(text=text, tool_calls=made, usage=USAGE), **rest)


def rule(when: str, *replies: Reply) -> Rule:
    return Rule(replies, when)


DONE = says("All of it is done.")

M1 = (("m1", "first"),)
M1_M2 = (*M1, ("m2", "second"))
COMPLETED = ("completed",)
