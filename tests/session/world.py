"""Plays the world around `decide`: people, a model, tools and crashes, all by chance, and writes down what happens.

It keeps to what the runtime and the store do (a stop takes queued messages out, an answer is refused once a stop is
in, a crash keeps what was committed), so that every log it makes is one that can really come about.
"""

import itertools
from random import Random
from typing import Literal

from holdfast.events import message, tool, turn
from holdfast.events.body import Body
from holdfast.events.ids import Fence, MessageId, ToolCallId
from holdfast.events.inbox import Answer, InboxItem, Item, Message, PermissionAnswer, QuestionAnswer, Stop, ToolAnswer
from holdfast.events.message import Block, ReasoningBlock, TextBlock, ToolCallBlock
from holdfast.events.request import Decision, PermissionAsk, RequestKind
from holdfast.events.session import ModelChanged, TitleChanged
from holdfast.models.chat_request import encode_messages
from holdfast.session.bounds import Bounds
from holdfast.session.decide import (
    MODEL,
    Append,
    CallFacts,
    CallModel,
    Inputs,
    Interrupt,
    Pause,
    Release,
    RunTools,
    after_answer,
    decide,
    steering_promotions,
)
from holdfast.session.fold import dump, fold, restore
from holdfast.session.history import context
from holdfast.session.state import State, next_phase
from tests.session.logs import STARTED, at

BOUNDS = Bounds(max_rounds=3, max_same_calls=2, max_model_attempts=3, max_claims_without_progress=3)

FACTS: dict[str, CallFacts] = {
    "reports": CallFacts(where="here"),
    "repeats": CallFacts(where="here", repeatable=True),
    "asks": CallFacts(where="here", ask=PermissionAsk(kind="write", subject="a.txt")),
    "denied": CallFacts(where="here", ask=PermissionAsk(kind="write", subject="/etc", inside=False)),
    "client": CallFacts(where="client", repeatable=True),
    "person": CallFacts(where="person", question="Which?", repeatable=True),
    "missing": CallFacts(where="nowhere", error="There is no such tool."),
}


DELIVERIES: tuple[Literal["steer", "enqueue"], ...] = ("steer", "enqueue")


class World:
    """One session and everything around it."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.log: list[Body] = []
        self.state = State()
        self.inbox: list[InboxItem] = []
        self.sent: list[MessageId] = []
        self.returned: set[MessageId] = set()
        self.contexts: list[bytes] = []
        self.running: set[str] = set()
        self.shown: tuple[Block, ...] = ()
        self.kind = False
        """From now on everybody means well: the model answers, tools succeed, nothing dies."""
        self._call: CallModel | None = None
        self._ids = itertools.count(1)
        self._sequences = itertools.count(1)
        self._claims = 1
        self._claims_now = 1
        self._fence = 1
        self._eligible = True
        self._takeover: tuple[Fence, str] | None = (Fence(1), "node")
        self._write([STARTED])

    def new_id(self) -> str:
        return f"id{next(self._ids)}"

    def happens(self, percent: int) -> bool:
        return not self.kind and self.chance.randrange(100) < percent

    # What people do

    def interfere(self) -> None:
        """Something comes from outside, or nothing does."""
        if self.happens(25) and len(self.inbox) < 4:
            self.send()
        if self.happens(8) and self.state.turn:
            self.stop()
        if self.happens(30):
            self.answer()
        if self.happens(8):
            self.crash()
        if self.happens(5):
            self._write([self.chance.choice([TitleChanged(title="T"), ModelChanged(new_model="other")])])

    def send(self) -> None:
        sent = MessageId(self.new_id())
        self.sent.append(sent)
        delivery = self.chance.choice(DELIVERIES)
        words = self.chance.choice(["Hi", "<user_follow_up>", "<task-notification>", "é\0\u2028"])
        self._put(Message(message_id=sent, text=words, delivery=delivery))

    def stop(self) -> None:
        if not self.chance.randrange(3):
            waiting = [item for item in self.inbox if isinstance(item.item, Message)]
            self.returned |= {item.item.message_id for item in waiting if isinstance(item.item, Message)}
            self.inbox = [item for item in self.inbox if item not in waiting]
        assert self.state.turn
        self._put(Stop(stop_id=self.new_id(), turn_id=self.state.turn.turn_id))

    def answer(self) -> None:
        answered = {item.item.request_id for item in self.inbox if isinstance(item.item, Answer)}
        open_now = [request for request in self.state.requests.values() if request.request_id not in answered]
        if not open_now or any(isinstance(item.item, Stop) for item in self.inbox):
            return
        found = self.chance.choice(open_now)
        contents: dict[RequestKind, PermissionAnswer | ToolAnswer | QuestionAnswer] = {
            "permission": PermissionAnswer(decision=self._decision()),
            "client_tool": ToolAnswer(content="from the client", success=self.chance.random() < 0.8),
            "question": QuestionAnswer(answer="this one"),
        }
        self._put(Answer(request_id=found.request_id, answer_id="a", content=contents[found.kind]))

    def _decision(self) -> Decision:
        return self.chance.choice(["approved", "approved-for-session", "denied-interactively-by-user"])

    def _put(self, item: Item) -> None:
        self.inbox.append(
            InboxItem(
                sequence=next(self._sequences),
                key="",
                state="accepted",
                outcome="",
                accepted_at=0,
                while_running=self.state.turn is not None,
                item=item,
            )
        )

    # What the holder does

    def crash(self) -> None:
        """All that is in memory is gone. Another holder folds the log, from a snapshot if there was one."""
        self.running.clear()
        events = at(self.log)
        kept = self.chance.randrange(len(events) + 1)
        refolded = fold(events, restore(dump(fold(events[:kept]))))
        assert dump(refolded) == dump(self.state), "state ran ahead of the log"
        self.state = refolded
        self._fence += 1
        self._claims += 1
        self._claims_now = self._claims
        self._eligible = not self.happens(10)
        self._takeover = (Fence(self._fence), "node")

    def inputs(self) -> Inputs:
        reply = self.state.reply()
        calls = reply.unfinished() if reply else []
        return Inputs(
            new_id=self.new_id,
            now=len(self.log) * 1000,
            bounds=BOUNDS,
            inbox=tuple(self.inbox),
            shown=() if MODEL in self.running else self.shown,
            running=frozenset(self.running),
            facts={call.tool_call_id: FACTS[call.name] for call in calls},
            claims_without_progress=self._claims_now,
            eligible=self._eligible,
            takeover=self._takeover,
        )

    def turn_of_the_loop(self) -> bool:
        """Decide and do it. True: nothing is left to do until somebody puts something."""
        inputs = self.inputs()
        match decide(self.state, inputs):
            case Append() as written:
                self.commit(written)
                self._takeover = None
            case CallModel() as call:
                self._start_model(call)
            case RunTools(calls=calls):
                for found in calls:
                    self._started(found.tool_call_id)
                    attempt = tool.ToolAttempted(tool_call_id=found.tool_call_id, attempt=found.attempts + 1)
                    self._write([attempt])
            case Interrupt():
                assert self.running, "there is nothing to interrupt"
                self.running.clear()
            case Pause():
                assert self.running, "nothing would ever end this pause"
                self._something_ends()
            case Release(for_another=for_another):
                assert not self.running, "let go of while something runs"
                self._eligible = True
                return not for_another
        return False

    def commit(self, written: Append) -> None:
        promoted = {found.sequence for found in written.promotes}
        assert promoted <= {item.sequence for item in self.inbox}
        assert {opened.request_id for opened in written.opens}.isdisjoint(self.state.requests)
        assert set(written.closes) <= set(self.state.requests)
        self.inbox = [item for item in self.inbox if item.sequence not in promoted]
        if written.drops_segments:
            self.shown = ()
        self._write(written.events)

    def _write(self, bodies: list[Body]) -> None:
        phase = self.state.phase
        for body in bodies:
            phase = next_phase(phase, body)
        fold(at(bodies, after=len(self.log)), self.state)
        self.log += bodies
        assert self.state.phase is phase
        ended = any(isinstance(body, (turn.StepEnded, tool.ToolCompleted)) for body in bodies)
        if ended and not any(isinstance(body, message.Sealed) for body in bodies):
            self._claims = 0

    def _started(self, name: str) -> None:
        assert name not in self.running, "started twice"
        self.running.add(name)
        self._claims_now = 0

    def _start_model(self, call: CallModel) -> None:
        assert not self.shown, "what was shown must be sealed before the call is made again"
        self._started(MODEL)
        self._call = call
        self.contexts.append(encode_messages(context(self.state))[:-1])

    # What the model and the tools do

    def _something_ends(self) -> None:
        name = self.chance.choice(sorted(self.running))
        if name != MODEL:
            self.running.discard(name)
            content = f"result of {name}"
            self._write([tool.ToolCompleted(tool_call_id=ToolCallId(name), success=True, content=content)])
        elif self.happens(30) and len(self.shown) < 3:
            self.shown = (*self.shown, self._block())
        elif self.happens(20):
            self.running.discard(MODEL)
            self._model_fails()
        else:
            self.running.discard(MODEL)
            self._model_answers()

    def _model_fails(self) -> None:
        assert self._call
        failure = message.CallFailed(
            message_id=self._call.message_id,
            attempt=self._call.attempt,
            error_code="model_cut",
            message="Cut.",
            retryable=self.chance.random() < 0.9,
        )
        self._write([failure])

    def _model_answers(self) -> None:
        assert self._call
        assert self.state.turn
        blocks = self.shown if self.kind else (*self.shown, *(self._block() for _ in range(self.chance.randrange(3))))
        if self.kind:
            blocks = (*blocks, TextBlock(text="All done."))
        calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
        words = "".join(block.text for block in blocks if isinstance(block, TextBlock))
        said: list[Body] = [
            message.AssistantMessage(message_id=self._call.message_id, blocks=blocks),
            message.Usage(message_id=self._call.message_id, model="m"),
            *(tool.ToolStarted(tool_call_id=c.tool_call_id, tool_name=c.name, arguments=c.arguments) for c in calls),
        ]
        inputs = self.inputs()
        stopping = any(isinstance(item.item, Stop) for item in self.inbox)
        following = [] if calls or stopping else after_answer(self.state, inputs, self.state.turn, words)
        promotes = steering_promotions(following, inputs)
        self.commit(Append(events=[*said, *following], promotes=promotes, drops_segments=True))

    def _block(self) -> Block:
        match self.chance.randrange(4):
            case 0:
                return ReasoningBlock(text="Hm.")
            case 1:
                return TextBlock(text=self.chance.choice(["Some words. ", " ", "𝄞"]))
            case _:
                name = self.chance.choice(list(FACTS))
                arguments = self.chance.choice(["{}", '{"a": 1}', "not json"])
                return ToolCallBlock(tool_call_id=ToolCallId(f"call-{self.new_id()}"), name=name, arguments=arguments)

    # From beginning to end

    def play(self, moves: int) -> None:
        """So many moves by chance, and then on, with good will, until the session is idle."""
        for _ in range(moves):
            self.interfere()
            if self.turn_of_the_loop():
                self.send()
        self.kind = True
        for _ in range(400):
            if self.turn_of_the_loop():
                if not self.state.requests and not self.inbox:
                    return
                self.answer()
        raise AssertionError("the session never came to rest")
