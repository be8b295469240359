"""The public operations in any order, with the process killed at any moment, against what must hold."""

import itertools
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.events import message, request, session, turn
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import MessageId
from tests.machine.victim import WORDS, Refusal, Victim

PICK = st.integers(0, 20)
DELIVERIES = st.sampled_from(["steer", "steer", "enqueue", "interrupt", "reject"])
REQUESTED = (request.PermissionRequested, request.UserInputRequested)
COMPLETED = (request.PermissionCompleted, request.UserInputCompleted)


class Sending(msgspec.Struct):
    """A message that was accepted."""

    session: str
    delivery: str
    texts: list[str]
    """The text that it may have: the last one that was acknowledged."""
    removed: bool = False


class PublicOperations(RuleBasedStateMachine):
    """Drives a runtime that dies, and remembers what was acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name)
        self._numbers = itertools.count(1)
        self.sessions: list[str] = []
        self.deleted: list[str] = []
        self.sent: dict[str, Sending] = {}
        self.answers: dict[str, str] = {}
        self.cleared: set[str] = set()
        self.reordered: set[str] = set()
        self.logs: dict[str, list[Event]] = {}
        self._start()

    def _start(self) -> None:
        self.victim = Victim(self._database(), self._path / "marks")

    def _database(self) -> str:
        """Its URL; there is one for each example."""
        return f"sqlite:///{self._path / 'machine.db'}"

    def _new(self, kind: str) -> str:
        return f"{kind}{next(self._numbers)}"

    def _some(self, pick: int) -> str:
        return self.sessions[pick % len(self.sessions)]

    # What people do

    @initialize()
    def first_session(self) -> None:
        self.create()

    @precondition(lambda self: len(self.sessions) < 3)
    @rule()
    def create(self) -> None:
        made = self._new("session")
        assert self.victim.ask("create", made) == made
        assert self.victim.ask("create", made) == made
        self.sessions.append(made)
        self.logs[made] = []

    @rule(
        pick=PICK, word=st.sampled_from(WORDS), delivery=DELIVERIES, dies=st.sampled_from([False, False, False, True])
    )
    def send(self, pick: int, word: str, delivery: str, dies: bool) -> None:
        found, id = self._some(pick), self._new("m")
        given = (found, id, f"{word} {id}", delivery)
        if dies:
            self.victim.ask_and_die("send", *given)
            self._start()
        sent, refused = self.victim.attempt("send", *given)
        if refused:
            assert refused in ("queue_full", "too_many_turns") or (refused == "busy" and delivery == "reject")
            self._check_no_trace(found, id)
            return
        assert dies or not sent.duplicate
        if delivery == "interrupt":
            self.cleared.add(found)
        self.sent[id] = Sending(found, delivery, [given[2]])

    def _check_no_trace(self, found: str, id: str) -> None:
        with pytest.raises(Refusal, match="message_not_found"):
            self.victim.ask("receipt", found, id)

    @precondition(lambda self: self.sent)
    @rule(pick=PICK, other=st.booleans())
    def send_again(self, pick: int, other: bool) -> None:
        id = sorted(self.sent)[pick % len(self.sent)]
        first = self.sent[id]
        word = first.texts[0]
        delivery = "enqueue" if first.delivery == "enqueue" else "steer"
        if other:
            with pytest.raises(Refusal, match="id_reused"):
                self.victim.ask("send", first.session, id, word + "!", delivery)
        else:
            assert self.victim.ask("send", first.session, id, word, delivery).duplicate

    @rule(pick=PICK, keep=st.booleans(), dies=st.booleans())
    def stop(self, pick: int, keep: bool, dies: bool) -> None:
        found, id = self._some(pick), self._new("stop")
        if dies:
            self.victim.ask_and_die("stop", found, id, keep)
            self._start()
        first = self.victim.ask("stop", found, id, keep)
        again = self.victim.ask("stop", found, id, keep)
        assert first.outcome in ("stopping", "stopped", "dequeued", "nothing_running", "turn_ended_before")
        assert first.outcome in ("stopping", again.outcome)
        assert not (keep and first.returned)
        if not keep:
            self.cleared.add(found)

    @rule(pick=PICK, yes=st.booleans(), dies=st.booleans())
    def answer(self, pick: int, yes: bool, dies: bool) -> None:
        found = self._some(pick)
        for asked in self.victim.ask("requests", found):
            self._answer(found, asked, yes=yes, dies=dies)
            dies = False

    def _answer(self, found: str, asked: Any, *, yes: bool, dies: bool = False) -> None:
        said = ("approved" if yes else "denied-interactively-by-user") if asked.kind == "permission" else f"{yes}"
        verb = "permit" if asked.kind == "permission" else "answer"
        id = self._new("answer")
        given = (found, asked.request_id, said, id)
        if dies:
            self.victim.ask_and_die(verb, *given)
            self._start()
        _, refused = self.victim.attempt(verb, *given)
        if refused:
            assert refused in ("answered_already", "request_closed", "stopping")
            return
        assert asked.request_id not in self.answers, "two answers were accepted"
        self.answers[asked.request_id] = said
        assert self.victim.ask(verb, *given).duplicate
        with pytest.raises(Refusal, match=r"answered_already"):
            self.victim.ask(verb, *given[:3], self._new("answer"))

    # The queue

    @rule(pick=PICK, what=st.sampled_from(["edit", "edit", "remove", "reorder", "stop", "stop and keep", "die"]))
    def fill_the_queue(self, pick: int, what: str) -> None:
        """While a turn waits for a person, messages pile up: now something is done about them."""
        self.send(pick, "ask", "steer", dies=False)
        for _ in range(3):
            self.send(pick, "say", "enqueue", dies=False)
        match what:
            case "stop" | "stop and keep":
                self.stop(pick, keep=what != "stop", dies=False)
            case "die":
                self.die()
            case _:
                self.change_the_queue(pick, what)

    @rule(pick=PICK, what=st.sampled_from(["edit", "remove", "reorder"]))
    def change_the_queue(self, pick: int, what: str) -> None:
        found = self._some(pick)
        waiting = [item.item.message_id for item in self.victim.ask("queue", found)]
        if not waiting:
            return
        id = waiting[pick % len(waiting)]
        if what == "edit":
            text = f"{self.sent[id].texts[-1]} edited"
            _, refused = self.victim.attempt("edit", found, id, text)
            self.sent[id].texts += [] if refused else [text]
        elif what == "remove":
            _, refused = self.victim.attempt("remove", found, id)
            self.sent[id].removed |= refused is None
        else:
            _, refused = self.victim.attempt("reorder", found, waiting[::-1])
            self.reordered.add(found)
        assert refused in (None, "message_not_queued", "queue_changed")

    # Reading, deleting, dying

    @rule(pick=PICK, back=st.integers(0, 30))
    def read(self, pick: int, back: int) -> None:
        """From any position, what follows is what it was, and perhaps more."""
        found = self._some(pick)
        self._read(found, max(0, len(self.logs[found]) - back))

    def _read(self, found: str, after: int) -> None:
        known = self.logs[found]
        read = list(self.victim.ask("log", found, after))
        assert [event.position for event in read] == list(range(after + 1, after + len(read) + 1))
        assert read[: len(known) - after] == known[after:], "the log is not what it was"
        known += read[len(known) - after :]

    @precondition(lambda self: len(self.sessions) > 1)
    @rule(pick=PICK)
    def delete(self, pick: int) -> None:
        found = self._some(pick)
        self.victim.ask("delete", found)
        self.sessions.remove(found)
        self.deleted.append(found)
        self.sent = {id: sending for id, sending in self.sent.items() if sending.session != found}
        for verb, given in (("send", ("m", "x", "steer")), ("stop", ("x", False)), ("delete", ()), ("row", ())):
            with pytest.raises(Refusal, match="session_not_found"):
                self.victim.ask(verb, found, *given)
        with pytest.raises(Refusal, match="session_deleted"):
            self.victim.ask("create", found)

    @rule()
    def die(self) -> None:
        self.victim.kill()
        self._start()

    # What must hold

    def teardown(self) -> None:
        try:
            for found in self.sessions:
                self._come_to_rest(found)
                self._read(found, 0)
                self._check(found, [event.body for event in self.logs[found]])
            self._check_marks()
        finally:
            self.victim.kill()
            self._folder.cleanup()

    def _come_to_rest(self, found: str) -> None:
        """Answer everything that is asked, until nothing is left to do."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            row = self.victim.ask("row", found)
            if row.status == "idle" and row.waiting_messages == 0:
                return
            for asked in self.victim.ask("requests", found):
                self._answer(found, asked, yes=True)
            time.sleep(0.005)
        raise AssertionError(f"{found} never came to rest")

    def _check(self, found: str, log: list[Body]) -> None:
        self._check_turns(log)
        self._check_messages(found, [body for body in log if isinstance(body, message.UserMessage)])
        self._check_answers(log)

    def _check_turns(self, log: list[Body]) -> None:
        """Turns follow one another, each with its end and its cause."""
        current: turn.TurnStarted | None = None
        cause = ""
        for body in log:
            match body:
                case turn.TurnStarted():
                    assert current is None
                    current, cause = body, ""
                case session.SessionError() | turn.Aborted():
                    cause = type(body).__name__
                case turn.TurnEnded(turn_id=turn_id, reason=reason):
                    assert current is not None
                    assert current.turn_id == turn_id
                    assert {"error": "SessionError", "stopped": "Aborted"}.get(reason, "") == cause
                    current = None
                case _:
                    pass
        assert current is None

    def _check_messages(self, found: str, said: list[message.UserMessage]) -> None:
        """Every accepted message is in the log once, with its last text, in order, unless it was removed."""
        count = Counter(body.message_id for body in said)
        contents = {body.message_id: body.content for body in said}
        order: dict[str, list[str]] = {"steer": [], "enqueue": []}
        for id, sending in self.sent.items():
            if sending.session != found:
                continue
            receipt = self.victim.ask("receipt", found, id)
            assert receipt.state in ("promoted", "removed")
            assert count.pop(MessageId(id), 0) == (receipt.state == "promoted")
            if receipt.state == "promoted":
                assert not sending.removed
                assert contents[MessageId(id)] == sending.texts[-1]
                order["enqueue" if sending.delivery == "enqueue" else "steer"].append(id)
            else:
                assert sending.removed or found in self.cleared
        assert not count, "messages that nobody sent"
        for ids in order.values():
            taken = [body.message_id for body in said if body.message_id in ids]
            assert found in self.reordered or taken == ids

    def _check_answers(self, log: list[Body]) -> None:
        """Every request is closed once, by the answer that was accepted, if there was one."""
        asked = [body.request_id for body in log if isinstance(body, REQUESTED)]
        closed = [body for body in log if isinstance(body, COMPLETED)]
        assert Counter(asked) == Counter(body.request_id for body in closed)
        for body in closed:
            if (said := self.answers.get(body.request_id)) is not None:
                assert said == (body.answer if isinstance(body, request.UserInputCompleted) else body.decision)

    def _check_marks(self) -> None:
        """No side effect took place twice: the tool says that it must not be repeated."""
        marks = self._path / "marks"
        lines = marks.read_text().splitlines() if marks.exists() else []
        assert len(lines) == len(set(lines))


TestPublicOperations = PublicOperations.TestCase
TestPublicOperations.settings = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
