"""Whatever people, models, tools and crashes do, in whatever order: every turn ends, and nothing illegal is written."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.events import message, request, session, tool, turn
from holdfast.events.body import Body
from holdfast.events.event import PROGRESS, RECORDS
from holdfast.events.ids import ToolCallId
from holdfast.events.message import Block, TextBlock, ToolCallBlock
from holdfast.session.state import Phase
from tests.session.world import BOUNDS, World

SEEDS = st.integers(0, 2**32)


def played(seed: int, moves: int) -> World:
    """A failing seed replays."""
    world = World(Random(seed))
    world.send()
    world.play(moves)
    return world


def turns_of(log: list[Body]) -> list[list[Body]]:
    """The events of each turn, from its start to its end."""
    found: list[list[Body]] = []
    for body in log:
        if isinstance(body, turn.TurnStarted):
            found.append([])
        if found:
            found[-1].append(body)
    return found


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 120))
def test_every_session_comes_to_rest_and_every_turn_has_its_end(seed: int, moves: int) -> None:
    world = played(seed, moves)
    assert world.state.phase is Phase.IDLE
    assert world.state.turn is None
    assert not world.state.requests
    assert not world.shown
    for events in turns_of(world.log):
        check_ending([body for body in events if not isinstance(body, RECORDS)])


def check_ending(events: list[Body]) -> None:
    """It ends once, visibly, and with its cause."""
    (ended,) = [body for body in events if isinstance(body, turn.TurnEnded)]
    assert ended is events[-1]
    match ended.reason:
        case "completed":
            last = [body for body in events if isinstance(body, message.AssistantMessage)][-1]
            assert any(isinstance(block, TextBlock) and block.text.strip() for block in last.blocks)
        case "stopped":
            assert sum(isinstance(body, turn.Aborted) for body in events) == 1
        case "error":
            assert sum(isinstance(body, session.SessionError) for body in events) == 1
        case "interrupted":
            raise AssertionError("nothing ends like this")


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 120))
def test_every_message_is_taken_up_once_and_every_request_and_call_is_closed_once(seed: int, moves: int) -> None:
    world = played(seed, moves)
    taken = [body.message_id for body in world.log if isinstance(body, message.UserMessage)]
    assert sorted(taken) == sorted(set(world.sent) - world.returned)
    asked = Counter(body.request_id for body in world.log if isinstance(body, REQUESTED))
    closed = Counter(body.request_id for body in world.log if isinstance(body, COMPLETED))
    assert asked == closed
    called = Counter(block.tool_call_id for block in calls_of(world.log))
    finished = Counter(body.tool_call_id for body in world.log if isinstance(body, tool.ToolCompleted))
    assert called == finished


REQUESTED = (request.PermissionRequested, request.ExternalToolRequested, request.UserInputRequested)
COMPLETED = (request.PermissionCompleted, request.ExternalToolCompleted, request.UserInputCompleted)


def calls_of(log: list[Body]) -> list[ToolCallBlock]:
    blocks = [block for body in log if isinstance(body, message.AssistantMessage) for block in body.blocks]
    return [block for block in blocks if isinstance(block, ToolCallBlock)]


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 120))
def test_messages_that_steer_are_taken_up_in_the_order_of_their_arrival(seed: int, moves: int) -> None:
    world = played(seed, moves)
    bodies = [body for body in world.log if isinstance(body, message.UserMessage)]
    steering = [body.message_id for body in bodies if body.delivery == "steering"]
    assert steering == sorted(steering, key=world.sent.index)


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 150))
def test_what_is_sent_at_one_step_is_the_beginning_of_what_is_sent_at_the_next(seed: int, moves: int) -> None:
    world = played(seed, moves)
    for before, after in zip(world.contexts, world.contexts[1:], strict=False):
        assert after.startswith(before)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 120))
def test_a_call_is_attempted_again_only_by_a_tool_that_may_repeat(seed: int, moves: int) -> None:
    world = played(seed, moves)
    names = {block.tool_call_id: block.name for block in calls_of(world.log)}
    for body in world.log:
        if isinstance(body, tool.ToolAttempted) and body.attempt > 1:
            assert names[body.tool_call_id] == "repeats"


class Stubborn(World):
    """Its model never stops calling tools, also when it is given none."""

    def _block(self) -> Block:
        return ToolCallBlock(tool_call_id=ToolCallId(self.new_id()), name="reports", arguments=f"{len(self.log)}")

    def _model_answers(self) -> None:
        self.shown = (self._block(),)
        super()._model_answers()


def test_a_model_that_never_stops_calling_tools_is_ended_after_the_last_round() -> None:
    world = Stubborn(Random(0))
    world.kind = True
    world.send()
    for _ in range(100):
        if world.turn_of_the_loop():
            break
    else:
        pytest.fail("the turn never ended")
    steps = [body for body in world.log if isinstance(body, turn.StepStarted)]
    assert len(steps) <= BOUNDS.max_rounds + 2
    check_ending(turns_of(world.log)[0])


def test_the_world_is_wide_enough_to_mean_something() -> None:
    log = [body for seed in range(60) for body in played(seed, 120).log]
    seen = {type(body) for body in log}
    assert set(PROGRESS) - seen == {session.Truncated}
    assert {body.reason for body in log if isinstance(body, turn.TurnEnded)} == {"completed", "stopped", "error"}
    assert {body.cause for body in log if isinstance(body, message.Sealed)} == {"crash", "provider error"}
    errors = {body.error_type for body in log if isinstance(body, session.SessionError)}
    assert {"poisoned", "model_cut"} <= errors
