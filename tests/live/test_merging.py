"""However hints are put together on their way, a reader makes the same of them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.event import Event
from holdfast.events.ids import EventId, Key, MessageId, Owner, Position, SessionId
from holdfast.events.session import TitleChanged
from holdfast.live.live import Advanced, Changed, Delta, Grown, Hint, Lost, Progress
from holdfast.live.merging import joined
from holdfast.live.outgoing import MAX_BYTES, MAX_HINTS, MAX_SESSIONS, MAX_TOTAL_BYTES, Outgoing
from holdfast.live.wire import Told, Woken, decode, hints_of
from tests.live.hinting import KEY, Life, lives, read


def heard(outgoing: Outgoing) -> list[Hint]:
    """What those who follow the session hear of one tick."""
    found: list[Hint] = []
    for key, data in outgoing.take().for_sessions("sender"):
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
    outgoing, arrived = Outgoing(), list[Hint]()
    for number, hint in enumerate(hints):
        if number in ticks:
            arrived += heard(outgoing)
        outgoing.add(KEY, hint)
    arrived += heard(outgoing)
    assert read(arrived) == read(hints)
    assert [hint for hint in arrived if isinstance(hint, Progress)] == [
        hint for hint in hints if isinstance(hint, Progress)
    ]


@given(lives)
def test_a_tick_of_nothing_but_text_is_one_hint(steps: Sequence[tuple[str, Sequence[object]]]) -> None:
    growing = [step for step in steps if step[0] == "grow"]
    outgoing = Outgoing()
    for hint in Life().lead(growing)[:-1]:
        outgoing.add(KEY, hint)
    assert len(heard(outgoing)) == bool(growing)


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
    outgoing = Outgoing()
    for number in range(MAX_HINTS + 1):
        outgoing.add(KEY, grown("x", head=number))
    outgoing.add(KEY, grown("y", head=1_000))
    assert heard(outgoing) == [Lost()]
    assert not outgoing


def test_too_much_text_of_a_session_becomes_one_that_sends_readers_to_the_store() -> None:
    outgoing, half = Outgoing(), "x" * (MAX_BYTES // 2)
    outgoing.add(KEY, grown(half))
    outgoing.add(KEY, grown(half, len(half)))
    assert outgoing.take().told == {KEY: [Lost()]}, "it is not even kept until then"


def test_a_large_event_is_not_sent_but_read_from_the_store() -> None:
    outgoing = Outgoing()
    large = Event(Position(1), EventId("e"), 1, TitleChanged(title="x" * MAX_BYTES))
    outgoing.add(KEY, Advanced((large,)))
    assert heard(outgoing) == [Lost()]


def test_what_can_not_be_written_down_is_not_sent_and_breaks_nothing() -> None:
    outgoing = Outgoing()
    outgoing.add(KEY, Progress(tool_call_id="c", text="half a character: \ud800"))  # type: ignore[arg-type]
    assert heard(outgoing) == [Lost()]


def test_all_sessions_together_are_bounded_too() -> None:
    outgoing, sessions = Outgoing(), 2 * MAX_TOTAL_BYTES // (MAX_BYTES // 2)
    for number in range(sessions):
        outgoing.add(Key(Owner("o"), SessionId(str(number))), grown("x" * (MAX_BYTES // 2)))
    messages = outgoing.take().for_sessions("sender")
    assert len(messages) == sessions
    assert sum(len(data) for _, data in messages) < 1.1 * MAX_TOTAL_BYTES


def test_more_sessions_than_can_be_named_are_all_told_to_look() -> None:
    outgoing = Outgoing()
    for number in range(MAX_SESSIONS + 1):
        key = Key(Owner("o"), SessionId(str(number)))
        outgoing.wake(key, 1)
        outgoing.lose(key)
    batch = outgoing.take()
    assert batch.lost_all
    assert len(batch.told) <= 1
    assert len(batch.woken) <= 1


def test_what_was_not_sent_is_told_as_lost_and_its_wake_ups_again() -> None:
    outgoing = Outgoing()
    outgoing.add(KEY, grown("abc"))
    outgoing.wake(KEY, 3)
    outgoing.take_back(outgoing.take())
    outgoing.wake(KEY, 2)
    batch = outgoing.take()
    assert batch.told == {KEY: [Lost()]}
    (wakes,) = batch.for_all("sender")
    assert decode(wakes) == ("sender", Woken(((KEY, 3),)))


def test_a_change_of_any_kind_is_not_forgotten_for_a_later_tail() -> None:
    outgoing = Outgoing()
    outgoing.wake(KEY, None)
    outgoing.wake(KEY, 7)
    assert outgoing.take().woken == {KEY: None}
