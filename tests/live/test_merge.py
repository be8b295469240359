"""However hints are put together on their way, a reader makes the same of them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.event import Event
from holdfast.events.ids import EventId, Key, MessageId, Owner, Position, SessionId
from holdfast.events.session import TitleChanged
from holdfast.live.live import Advanced, Changed, Delta, Grown, Hint, Lost, Progress
from holdfast.live.merge import joined
from holdfast.live.outbox import MAX_BYTES, MAX_HINTS, MAX_SESSIONS, MAX_TOTAL_BYTES, Outbox
from holdfast.live.wire import Told, Woken, decode, hints_of
from tests.live.hinting import KEY, Life, lives, read


def heard(outbox: Outbox) -> list[Hint]:
    """What those who follow the session hear of one tick."""
    found: list[Hint] = []
    for key, data in outbox.take().for_sessions("sender"):
        sender, told = decode(data)
        assert (sender, key) == ("sender", KEY)
        assert isinstance(told, Told)
        found += hints_of(told)
    return found


@given(lives, st.data())
def test_any_hints_in_any_ticks_give_the_same_reading(
    steps: Sequence[tuple[str, Sequence[object]]], data: st.DataObject
) -> None:
    hints = Life().lead(steps)
    ticks = data.draw(st.sets(st.integers(0, len(hints))))
    outbox, arrived = Outbox(), list[Hint]()
    for number, hint in enumerate(hints):
        if number in ticks:
            arrived += heard(outbox)
        outbox.add(KEY, hint)
    arrived += heard(outbox)
    assert read(arrived) == read(hints)
    assert [hint for hint in arrived if isinstance(hint, Progress)] == [
        hint for hint in hints if isinstance(hint, Progress)
    ]


@given(lives)
def test_a_tick_of_nothing_but_text_is_one_hint(steps: Sequence[tuple[str, Sequence[object]]]) -> None:
    growing = [step for step in steps if step[0] == "grow"]
    outbox = Outbox()
    for hint in Life().lead(growing)[:-1]:
        outbox.add(KEY, hint)
    assert len(heard(outbox)) == bool(growing)


def grown(
    text: str, offset: int = 0, *, head: int = 1, message: str = "m", follows: tuple[int, int] | None = None
) -> Grown:
    delta = Delta(message_id=MessageId(message), block=0, kind="text", offset=offset, text=text)
    return Grown(Position(head), follows if follows is not None else (0, offset), (delta,))


def title(position: int) -> Event:
    return Event(Position(position), EventId(f"e{position}"), 1, TitleChanged(title="T"))


def test_text_that_does_not_follow_on_stays_apart() -> None:
    first = grown("ab")
    assert joined(first, grown("cd", 2)) == grown("abcd")
    assert joined(first, grown("cd", 3)) is None, "a piece is missing"
    assert joined(first, grown("cd", 2, head=2)) is None, "an event is between them"
    assert joined(first, grown("cd", 0, message="n", follows=(0, 2))) is None, "it is another message"


def test_events_that_do_not_follow_on_stay_apart() -> None:
    assert joined(Advanced((title(1),)), Advanced((title(2),))) == Advanced((title(1), title(2)))
    assert joined(Advanced((title(1),)), Advanced((title(3),))) is None
    assert joined(Advanced((title(2),)), Advanced((title(1),))) is None


def test_of_changes_of_one_kind_the_furthest_tail_is_kept() -> None:
    assert joined(Changed(tail=3), Changed(tail=2)) == Changed(tail=3)
    assert joined(Changed(tail=3), Changed()) == Changed(tail=3)
    assert joined(Changed(tail=3), Changed(promoted=True)) is None


# Bounds


def test_too_many_hints_of_a_session_become_one_that_sends_readers_to_the_store() -> None:
    outbox = Outbox()
    for number in range(MAX_HINTS + 1):
        outbox.add(KEY, grown("x", head=number))
    outbox.add(KEY, grown("y", head=1_000))
    assert heard(outbox) == [Lost()]
    assert not outbox


def test_too_much_text_of_a_session_becomes_one_that_sends_readers_to_the_store() -> None:
    outbox, half = Outbox(), "x" * (MAX_BYTES // 2)
    outbox.add(KEY, grown(half))
    outbox.add(KEY, grown(half, len(half)))
    assert outbox.take().told == {KEY: [Lost()]}, "it is not even kept until then"


def test_a_large_event_is_not_sent_but_read_from_the_store() -> None:
    outbox = Outbox()
    large = Event(Position(1), EventId("e"), 1, TitleChanged(title="x" * MAX_BYTES))
    outbox.add(KEY, Advanced((large,)))
    assert heard(outbox) == [Lost()]


def test_what_can_not_be_written_down_is_not_sent_and_breaks_nothing() -> None:
    outbox = Outbox()
    outbox.add(KEY, Progress(tool_call_id="c", text="half a character: \ud800"))  # type: ignore[arg-type]
    assert heard(outbox) == [Lost()]


def test_all_sessions_together_are_bounded_too() -> None:
    outbox, sessions = Outbox(), 2 * MAX_TOTAL_BYTES // (MAX_BYTES // 2)
    for number in range(sessions):
        outbox.add(Key(Owner("o"), SessionId(str(number))), grown("x" * (MAX_BYTES // 2)))
    messages = outbox.take().for_sessions("sender")
    assert len(messages) == sessions
    assert sum(len(data) for _, data in messages) < 1.1 * MAX_TOTAL_BYTES


def test_more_sessions_than_can_be_named_are_all_told_to_look() -> None:
    outbox = Outbox()
    for number in range(MAX_SESSIONS + 1):
        key = Key(Owner("o"), SessionId(str(number)))
        outbox.wake(key, 1)
        outbox.lose(key)
    batch = outbox.take()
    assert batch.lost_all
    assert len(batch.told) <= 1
    assert len(batch.woken) <= 1


def test_what_was_not_sent_is_told_as_lost_and_its_wake_ups_again() -> None:
    outbox = Outbox()
    outbox.add(KEY, grown("abc"))
    outbox.wake(KEY, 3)
    outbox.take_back(outbox.take())
    outbox.wake(KEY, 2)
    batch = outbox.take()
    assert batch.told == {KEY: [Lost()]}
    (wakes,) = batch.for_all("sender")
    assert decode(wakes) == ("sender", Woken(((KEY, 3),)))


def test_a_change_of_any_kind_is_not_forgotten_for_a_later_tail() -> None:
    outbox = Outbox()
    outbox.wake(KEY, None)
    outbox.wake(KEY, 7)
    assert outbox.take().woken == {KEY: None}
