"""The audit of the cluster tests: it must detect a trespass."""

from datetime import UTC, datetime

from proof.chaos.audit import Noted, claims, named, trespasses

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def event(number: int, writer: str, position: int, type: str = "assistant.message") -> Noted:
    return Noted(number, NOW, writer, "s", position, type, None, None)


def holder(number: int, writer: str, fence: int, *, is_held: bool = True) -> Noted:
    return Noted(number, NOW, writer, "s", None, None, fence, is_held)


def test_writes_of_the_holder_and_records_of_any_process_are_no_trespass() -> None:
    noted = [
        event(1, "front", 1, "session.start"),
        holder(2, "one", 1),
        event(3, "one", 2),
        event(4, "front", 3, "session.title_changed"),
        holder(5, "two", 1, is_held=False),
        holder(6, "two", 2),
        event(7, "two", 4),
    ]
    assert list(trespasses(noted)) == []
    assert claims(noted, "two")["s"].number == 6


def test_progress_of_anybody_else_is_one() -> None:
    taken = [holder(1, "one", 1), holder(2, "two", 2), event(3, "one", 1)]
    assert list(trespasses(taken)) == ["one wrote assistant.message at 1 of s, which two held"]
    free = [holder(1, "one", 1), holder(2, "one", 1, is_held=False), event(3, "one", 1)]
    assert list(trespasses(free)) == ["one wrote assistant.message at 1 of s, which None held"]


def test_a_fence_that_does_not_rise_is_one() -> None:
    assert list(trespasses([holder(1, "one", 1), holder(2, "two", 1)])) == [
        "s was claimed by two with the fence 1 again"
    ]


def test_a_connection_is_named_in_the_url_of_its_database() -> None:
    assert named("postgresql://h/d", "a b") == "postgresql://h/d?node.writer=a%20b"
    assert named("postgresql:///d?host=/x", "a") == "postgresql:///d?host=/x&node.writer=a"
