"""Messages that stay whatever is compacted may fill most of a window: compactions still free a stated share of what
they leave, so that a session does not compact again and again."""

from random import Random
from typing import Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded, CompactionSettings, CompactionStarted, MessagePinned
from holdfast.events.ids import MessageId, Position
from holdfast.events.session import SettingsChanged
from holdfast.session.actions import Append, CallModel
from holdfast.session.compaction import (
    MIN_GAIN_SHARE,
    MIN_REST_SHARE,
    ended,
    rest,
    room_for_conversation,
    summary_tokens,
)
from holdfast.session.decide import decide
from holdfast.session.fold import fold
from holdfast.session.inputs import Inputs
from holdfast.session.state import ModelReply, State, people_in
from tests.session.logs import (
    STARTED,
    after,
    at,
    begun,
    call,
    deciding,
    result,
    said,
    state_of,
    step,
    step_ended,
    text,
    turn_ended,
    user,
)

TOKEN: Final = "word"
"""One token, as they are estimated."""

STEPS: Final = 60
SLACK: Final = 40
"""Tokens that estimates add around a summary, and its notes."""


class Made(NamedTuple):
    """A compaction that took effect: with a summary or without, and what it left free of the rest."""

    has_summary: bool
    rest: int
    room: int
    free: int


class Talk:
    """A session in a long turn: one message is pinned, the other is the turn's own."""

    def __init__(self, *, window: int, prompt: int, pinned: int, asked: int, wait_percent: int) -> None:
        self.inputs: Inputs = deciding(window=window, prompt_tokens=prompt)
        self.wall = window * wait_percent // 100
        self.appended = 0
        self.made: list[Made] = []
        chosen = CompactionSettings(wait_percent=wait_percent, start_percent=wait_percent * 8 // 10)
        first = [STARTED, SettingsChanged(compaction_settings=chosen), *begun(TOKEN * pinned)[1:]]
        first += [said(text("Yes.")), step_ended(1), turn_ended()]
        pin = MessagePinned(message_id=MessageId("u1"), pinned=True, position=Position(4), content=TOKEN * pinned)
        self.state: State = state_of(*first, pin, begun()[1], user(TOKEN * asked, id="u2"), step(1))

    def play(self, chance: Random, largest: int) -> None:
        for number in range(1, STEPS + 1):
            tokens = chance.randrange(1, largest)
            self.appended += tokens
            id = f"c{number}"
            self._write(
                said(call(id), id=f"m{number}"), result(id, TOKEN * tokens), step_ended(number), step(number + 1)
            )
            self._compact()

    def _write(self, *bodies: Body) -> None:
        fold(at(bodies, after=self.state.head), self.state)

    def _compact(self) -> None:
        """Carry out the compactions that are due, with the longest summaries that are asked for."""
        while isinstance(written := decide(self.state, self.inputs), Append):
            assert isinstance(written.events[0], CompactionStarted)
            self._write(*written.events)
            if (current := self.state.compaction) is not None:
                words = TOKEN * summary_tokens(self.state, self.inputs, self.inputs.window or 0)
                self._write(ended(self.state, self.inputs, current, words, model="m"))
                has_summary = True
            else:
                assert isinstance(written.events[-1], CompactionEnded)
                has_summary = False
            free = self.wall - self.state.context_tokens(self.inputs.prompt_tokens)
            room = room_for_conversation(self.state, self.inputs)
            self.made.append(Made(has_summary, rest(self.state, self.inputs), room, free))
            assert {"u1", "u2"} <= {person.message_id for person in people_in(self.state.history)}


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    window=st.sampled_from([4_000, 32_000, 200_000]),
    prompt=st.floats(0, 0.5),
    staying=st.floats(0, 0.97),
    pinned=st.floats(0, 1),
    wait_percent=st.sampled_from([50, 95]),
)
def test_a_compaction_frees_a_third_of_what_the_messages_that_stay_leave(
    seed: int, window: int, prompt: float, staying: float, pinned: float, wait_percent: int
) -> None:
    stays = int(window * (1 - prompt) * staying)
    talk = Talk(
        window=window,
        prompt=int(window * prompt),
        pinned=int(stays * pinned),
        asked=stays - int(stays * pinned),
        wait_percent=wait_percent,
    )
    talk.play(Random(seed), largest=max(2, window // 20))
    for made in talk.made:
        if made.has_summary:
            assert made.rest >= made.room * MIN_REST_SHARE
            assert made.free >= made.rest // 3 - SLACK
    # Each message is left out once, and each summary stands for as many new ones.
    gained = sum(min(made.room * MIN_GAIN_SHARE, made.rest / 3 - SLACK) for made in talk.made if made.has_summary)
    assert gained <= talk.appended + STEPS * SLACK


@pytest.mark.parametrize(("share", "summaries"), [(0.0, 3), (0.5, 12), (0.75, 14), (0.85, 20), (0.95, 0)])
def test_a_session_whose_window_is_filled_by_messages_that_stay_is_not_summarised_at_each_step(
    share: float, summaries: int
) -> None:
    window = 100_000
    talk = Talk(window=window, prompt=0, pinned=0, asked=int(window * share), wait_percent=95)
    talk.play(Random(1), largest=window // 20)
    assert talk.made
    assert sum(made.has_summary for made in talk.made) <= summaries


def test_without_room_for_a_summary_all_but_the_newest_result_is_left_out_and_no_model_called() -> None:
    log = begun(TOKEN * 9_300)
    for number in (1, 2):
        id = f"c{number}"
        log += [
            said(call(id), id=f"m{number}"),
            result(id, f"{number} {TOKEN * 100}"),
            step_ended(number),
            step(number + 1),
        ]
    state = state_of(*log)
    written = decide(state, deciding(window=10_000))
    assert isinstance(written, Append)
    began, cut = written.events
    assert isinstance(began, CompactionStarted)
    assert isinstance(cut, CompactionEnded)
    assert (began.trigger, cut.success, cut.method, cut.error, cut.is_called) == ("full", True, "cut", "", False)
    (kept,) = [item for item in after(state, written).history if isinstance(item, ModelReply)]
    assert kept.calls[0].tool_call_id == "c2"
    assert state.compaction_failed_at is None
    assert isinstance(decide(state, deciding(window=9_500)), CallModel), "its results are for the model to read"
