"""However hints are merged on their way, a reader sees the same session."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.event import Event
from holdfast.events.ids import EventId, Key, MessageId, Owner, Position, SessionId
from holdfast.events.session import TitleChanged
from holdfast.live.live import Advanced, Changed, Delta, Grown, Hint, Lost, Progress, WaitStatus
from holdfast.live.merge import merged
from holdfast.live.outbox import MAX_BYTES, MAX_HINTS, MAX_SESSIONS, MAX_TOTAL_BYTES, Outbox
from holdfast.live.wire import SessionHints, WakeUps, decode, hints_of
from tests.live.hint_streams import KEY, Life, lives, read


def received(outbox: Outbox) -> list[Hint]:
    """The hints of one tick, as the subscribers of the session receive them."""
    hints: list[Hint] = []
    for key, data in outbox.take().for_sessions("sender"):
        sender, message = decode(data)
        assert (sender, key) == ("sender", KEY)
        assert isinstance(message, SessionHints)
        hints += hints_of(message)
    return hints


@given(lives, st.data())
def test_readers_see_the_same_however_hints_are_merged_into_ticks(
    steps: Sequence[tuple[str, Sequence[object]]], data: st.DataObject
) -> None:
    hints = Life().lead(steps)
    ticks = data.draw(st.sets(st.integers(0, len(hints))))
    outbox, arrived = Outbox(), list[Hint]()
    for number, hint in enumerate(hints):
        if number in ticks:
            arrived += received(outbox)
        outbox.add(KEY, hint)
    arrived += received(outbox)
    assert read(arrived) == read(hints)
    assert [hint for hint in arrived if isinstance(hint, Progress | WaitStatus)] == [
        hint for hint in hints if isinstance(hint, Progress | WaitStatus)
    ]


@given(lives)
def test_tick_of_text_only_is_one_hint(steps: Sequence[tuple[str, Sequence[object]]]) -> None:
    growing = [step for step in steps if step[0] == "grow"]
    outbox = Outbox()
    for hint in Life().lead(growing)[:-1]:
        outbox.add(KEY, hint)
    assert len(received(outbox)) == bool(growing)


def grown(
    text: str, offset: int = 0, *, head: int = 1, message: str = "m", follows: tuple[int, int] | None = None
) -> Grown:
    delta = Delta(message_id=MessageId(message), block=0, kind="text", offset=offset, text=text)
    return Grown(Position(head), follows if follows is not None else (0, offset), (delta,))


def title(position: int) -> Event:
    return Event(Position(position), EventId(f"e{position}"), 1, TitleChanged(title="T"))


def test_text_with_a_gap_is_not_merged() -> None:
    first = grown("ab")
    assert merged(first, grown("cd", 2)) == grown("abcd")
    assert merged(first, grown("cd", 3)) is None, "a piece is missing"
    assert merged(first, grown("cd", 2, head=2)) is None, "an event is between them"
    assert merged(first, grown("cd", 0, message="n", follows=(0, 2))) is None, "it is another message"


def test_events_with_a_gap_are_not_merged() -> None:
    assert merged(Advanced((title(1),)), Advanced((title(2),))) == Advanced((title(1), title(2)))
    assert merged(Advanced((title(1),)), Advanced((title(3),))) is None
    assert merged(Advanced((title(2),)), Advanced((title(1),))) is None


def test_merged_inbox_changes_keep_the_highest_tail() -> None:
    assert merged(Changed(tail=3), Changed(tail=2)) == Changed(tail=3)
    assert merged(Changed(tail=3), Changed()) == Changed(tail=3)
    assert merged(Changed(tail=3), Changed(promoted=True)) is None


# Bounds


def test_too_many_hints_of_a_session_become_lost() -> None:
    outbox = Outbox()
    for number in range(MAX_HINTS + 1):
        outbox.add(KEY, grown("x", head=number))
    outbox.add(KEY, grown("y", head=1_000))
    assert received(outbox) == [Lost()]
    assert not outbox


def test_too_much_text_of_a_session_becomes_lost() -> None:
    outbox, half = Outbox(), "x" * (MAX_BYTES // 2)
    outbox.add(KEY, grown(half))
    outbox.add(KEY, grown(half, len(half)))
    assert outbox.take().hints == {KEY: [Lost()]}, "the text is dropped before the tick"


def test_large_event_becomes_lost() -> None:
    outbox = Outbox()
    large = Event(Position(1), EventId("e"), 1, TitleChanged(title="x" * MAX_BYTES))
    outbox.add(KEY, Advanced((large,)))
    assert received(outbox) == [Lost()]


def test_hint_that_cannot_be_encoded_becomes_lost() -> None:
    outbox = Outbox()
    outbox.add(KEY, Progress(tool_call_id="c", text="half a character: \ud800"))  # type: ignore[arg-type]
    assert received(outbox) == [Lost()]


def test_bytes_of_all_sessions_together_are_bounded() -> None:
    outbox, sessions = Outbox(), 2 * MAX_TOTAL_BYTES // (MAX_BYTES // 2)
    for number in range(sessions):
        outbox.add(Key(Owner("o"), SessionId(str(number))), grown("x" * (MAX_BYTES // 2)))
    messages = outbox.take().for_sessions("sender")
    assert len(messages) == sessions
    assert sum(len(data) for _, data in messages) < 1.1 * MAX_TOTAL_BYTES


def test_too_many_sessions_become_lost_for_every_process() -> None:
    outbox = Outbox()
    for number in range(MAX_SESSIONS + 1):
        key = Key(Owner("o"), SessionId(str(number)))
        outbox.wake(key, 1)
        outbox.lose(key)
    batch = outbox.take()
    assert batch.lost_all
    assert len(batch.hints) <= 1
    assert len(batch.wake_ups) <= 1


def test_unsent_batch_becomes_lost_and_keeps_its_wake_ups() -> None:
    outbox = Outbox()
    outbox.add(KEY, grown("abc"))
    outbox.wake(KEY, 3)
    outbox.take_back(outbox.take())
    outbox.wake(KEY, 2)
    batch = outbox.take()
    assert batch.hints == {KEY: [Lost()]}
    (wakes,) = batch.for_all("sender")
    assert decode(wakes) == ("sender", WakeUps(((KEY, 3),)))


def test_wake_up_without_a_tail_survives_a_later_tail() -> None:
    outbox = Outbox()
    outbox.wake(KEY, None)
    outbox.wake(KEY, 7)
    assert outbox.take().wake_ups == {KEY: None}
