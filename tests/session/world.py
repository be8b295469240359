"""Plays a random world around `decide`: people, a model, tools and crashes, and records what happens.

It follows the rules of the runtime and the store (a stop removes queued messages, an answer is refused after a stop, a
crash keeps what was committed, news of a task comes once for each kind), so that every log it makes can really occur.
"""

import itertools
from random import Random
from typing import Literal, NamedTuple

from holdfast.events import message, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.compaction import CompactionStarted
from holdfast.events.context import SystemText
from holdfast.events.ids import Fence, MessageId, RequestId, TaskId, ToolCallId
from holdfast.events.inbox import (
    Answer,
    CancelCompaction,
    Compact,
    InboxItem,
    Item,
    Message,
    PermissionAnswer,
    QuestionAnswer,
    Stop,
    TaskNews,
    ToBackground,
    ToolAnswer,
)
from holdfast.events.message import Block, ReasoningBlock, TextBlock, ToolCallBlock
from holdfast.events.request import Decision, PermissionAsk, RequestKind
from holdfast.events.session import ModelChanged, TitleChanged
from holdfast.events.task import NoticeKind, TaskNotice
from holdfast.models.chat_request import encode_messages
from holdfast.session.actions import (
    Append,
    CallModel,
    Deny,
    GoToBackground,
    Interrupt,
    Pause,
    Release,
    RunTools,
    Summarise,
)
from holdfast.session.bounds import Bounds
from holdfast.session.compaction import ended
from holdfast.session.decide import decide
from holdfast.session.fold import dump, fold, restore
from holdfast.session.history import context
from holdfast.session.inputs import COMPACTION, MODEL, CallFacts, Inputs
from holdfast.session.model_step import after_answer, after_answer_promotions
from holdfast.session.permissions import NOBODY_COULD
from holdfast.session.state import Compaction, State, next_phase
from tests.session.logs import STARTED, at

BOUNDS = Bounds(max_rounds=3, max_same_calls=2, max_model_attempts=3, max_claims_without_progress=3, max_woken_turns=2)

FACTS: dict[str, CallFacts] = {
    "reports": CallFacts(where="here"),
    "repeats": CallFacts(where="here", repeatable=True),
    "asks": CallFacts(where="here", ask=PermissionAsk(kind="write", subject="a.txt")),
    "denied": CallFacts(where="here", ask=PermissionAsk(kind="write", subject="/etc", inside=False)),
    "client": CallFacts(where="client", repeatable=True),
    "person": CallFacts(where="person", question="Which?", repeatable=True),
    "missing": CallFacts(where="nowhere", error="There is no such tool."),
    "command": CallFacts(where="here", repeatable=True),
}
"""The facts about calls of each tool, by name. A `command` starts a command that may continue in the background."""

ENDS: tuple[NoticeKind, ...] = ("completed", "failed", "killed", "lost")


class Sent(NamedTuple):
    """The request of a model call: the system text and the messages; and how often the context was compacted before,
    the tasks that ran by then, and the last position that a summary covered."""

    system: str
    messages: bytes
    compactions: int
    tasks: frozenset[TaskId]
    covered: int


DELIVERIES: tuple[Literal["steer", "enqueue"], ...] = ("steer", "enqueue")


class World:
    """One session and everything around it."""

    def __init__(self, chance: Random, *, window: int | None = None) -> None:
        self.chance = chance
        self.window = window
        self.fallback = chance.choice([None, "other"])
        self.log: list[Body] = []
        self.state = State()
        self.inbox: list[InboxItem] = []
        self.sent: list[MessageId] = []
        self.returned: set[MessageId] = set()
        self.news: list[TaskNotice] = []
        """All that was put, in that order."""
        self.in_front: set[ToolCallId] = set()
        """Calls whose commands run while the turn waits for them."""
        self.behind: list[TaskId] = []
        """Tasks that run."""
        self.deciders: list[set[RequestId]] = [set() for _ in range(chance.randrange(1, 3))]
        """One or two clients, with what each declined."""
        self._denying: set[RequestId] = set()
        self.to_background: set[str] = set()
        """Running calls that were asked to end, and let their command go on."""
        self.contexts: list[Sent] = []
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
        self._owned: Compaction | None = None
        self._write([STARTED])

    def new_id(self) -> str:
        return f"id{next(self._ids)}"

    def happens(self, percent: int) -> bool:
        return not self.kind and self.chance.randrange(100) < percent

    # People

    def interfere(self) -> None:
        """Perform one random action from outside, or none."""
        if self.happens(25) and len(self.inbox) < 4:
            self.send()
        if self.happens(8) and self.state.turn:
            self.stop()
        if self.happens(30):
            self.answer()
        if self.state.requests and self.happens(20):
            self.chance.choice(self.deciders).add(self.chance.choice(list(self.state.requests)))
        if self.happens(15):
            self.become_of_a_task()
        if self.happens(20) and self.in_front:
            self.ask_for_background()
        if self.window is not None and self.happens(6):
            self._put(self.chance.choice([Compact, CancelCompaction])(self.new_id()))
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

    def become_of_a_task(self) -> None:
        """A running task ends or seems stuck, or a task that was given up as lost turns out to have ended."""
        told = {(notice.task_id, notice.kind) for notice in self.news}
        lost = [task_id for task_id, kind in told if kind == "lost" and (task_id, "completed") not in told]
        if not (candidates := sorted({*self.behind, *lost})):
            return
        task_id = self.chance.choice(candidates)
        kind: NoticeKind = self.chance.choice(["stalled", *ENDS]) if task_id in self.behind else "completed"
        if (task_id, kind) in told:
            return
        if kind != "stalled" and task_id in self.behind:
            self.behind.remove(task_id)
        silent = kind == "killed" and self.chance.random() < 0.5
        self._tell(TaskNotice(task_id=task_id, kind=kind, command="make", output_tail=task_id, silent=silent))

    def _tell(self, notice: TaskNotice) -> None:
        self.news.append(notice)
        self._put(TaskNews(notice=notice))

    def ask_for_background(self) -> None:
        call = self.chance.choice(sorted(self.in_front))
        if not any(isinstance(item.item, ToBackground) and item.item.tool_call_id == call for item in self.inbox):
            self._put(ToBackground(task_id=_task_of(call), tool_call_id=call))

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

    # The holder

    def crash(self) -> None:
        """Drop all memory. Another holder folds the log, from a snapshot if there was one."""
        self.running.clear()
        self.to_background.clear()
        self._denying.clear()
        self._owned = None
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
            backgrounded=frozenset(self.to_background),
            deciders=tuple(map(frozenset, self.deciders)),
            denying=frozenset(self._denying),
            takeover=self._takeover,
            prompt="digest",
            prompt_tokens=20,
            window=self.window,
            fallback=self.fallback,
            owns_compaction=self._owned is not None and self._owned == self.state.compaction,
        )

    def run_once(self) -> bool:
        """Decide once and carry the decision out. True: nothing is left to do until an item is put."""
        if self.state.compaction is None:
            self.running.discard(COMPACTION)
        inputs = self.inputs()
        match decide(self.state, inputs):
            case Append() as written:
                self.commit(written)
                self._takeover = None
                if any(isinstance(body, CompactionStarted) for body in written.events):
                    self._owned = self.state.compaction
                if self.state.turn is None:
                    self._claims_now = 0
            case CallModel() as call:
                self._start_model(call)
            case RunTools(calls=calls):
                for found in calls:
                    self._started(found.tool_call_id)
                    if found.name == "command":
                        self.in_front.add(found.tool_call_id)
                    attempt = tool.ToolAttempted(tool_call_id=found.tool_call_id, attempt=found.attempts + 1)
                    self._write([attempt])
            case Summarise(compaction=current):
                assert current == self.state.compaction
                self._started(COMPACTION)
                self._owned = None
            case Interrupt():
                assert self.running, "there is nothing to interrupt"
                self.running.clear()
                self.to_background.clear()
            case GoToBackground(tool_call_id=tool_call_id):
                assert tool_call_id in self.running - self.to_background, "asked twice, or not running"
                self.to_background.add(tool_call_id)
            case Deny(request_ids=request_ids):
                self._deny(request_ids)
            case Pause():
                assert self.running, "nothing would ever end this pause"
                self._something_ends()
            case Release(for_another=for_another):
                assert not self.running, "let go of while something runs"
                self._eligible = True
                return not for_another
        return False

    def _deny(self, request_ids: tuple[RequestId, ...]) -> None:
        answered = {item.item.request_id for item in self.inbox if isinstance(item.item, Answer)}
        for request_id in request_ids:
            assert request_id not in self._denying, "denied twice"
            assert request_id not in answered, "an answer that was accepted comes first"
            assert self.state.requests[request_id].kind == "permission"
            assert all(request_id in declined for declined in self.deciders)
            self._denying.add(request_id)
            self._put(Answer(request_id=request_id, answer_id="d", content=PermissionAnswer(decision=NOBODY_COULD)))

    def commit(self, written: Append) -> None:
        promoted = {found.sequence for found in written.promotes}
        assert promoted <= {item.sequence for item in self.inbox}
        assert {opened.request_id for opened in written.opens}.isdisjoint(self.state.requests)
        assert set(written.closes) <= set(self.state.requests)
        self.inbox = [item for item in self.inbox if item.sequence not in promoted]
        if written.drops_segments:
            self.shown = ()
        self._write(written.events)
        if self.state.turn is None and self.in_front:
            assert written.ends_commands, "a turn ended and nobody ends what it waited for"
            self.in_front.clear()

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
        system, *rest = context(self.state)
        assert isinstance(system, SystemText)
        state = self.state
        messages = encode_messages(rest)[:-1]
        self.contexts.append(Sent(system.text, messages, state.compactions, frozenset(state.tasks), state.covered))

    # The model and the tools

    def _something_ends(self) -> None:
        name = self.chance.choice(sorted(self.running))
        if name == COMPACTION:
            self._compaction_ends()
        elif name != MODEL:
            self._tool_ends(ToolCallId(name))
        elif self.happens(30) and len(self.shown) < 3:
            self.shown = (*self.shown, self._block())
        elif self.happens(20):
            self.running.discard(MODEL)
            self._model_fails()
        else:
            self.running.discard(MODEL)
            self._model_answers()

    def _compaction_ends(self) -> None:
        current = self.state.compaction
        assert current is not None
        self.running.discard(COMPACTION)
        summary = "" if self.happens(30) else "What was said."
        self._write([ended(self.state, self.inputs(), current, summary, error="" if summary else "failed", model="m")])

    def _tool_ends(self, name: ToolCallId) -> None:
        """End a tool call. Its command may continue: it was started so, took too long, or a client asked for it."""
        completed = tool.ToolCompleted(tool_call_id=name, success=True, content=f"result of {name}")
        bodies: list[Body] = [completed]
        if name in self.in_front and (name in self.to_background or self.happens(60)):
            bodies.append(task.TaskStarted(task_id=_task_of(name), tool_call_id=name, command="make"))
            self.behind.append(_task_of(name))
        self.running.discard(name)
        self.in_front.discard(name)
        self.to_background.discard(name)
        self._write(bodies)

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
        promotes = after_answer_promotions(following, self.state, inputs)
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

    # A whole run

    def play(self, moves: int) -> None:
        """Make random moves, and then only helpful ones until the session is idle."""
        for _ in range(moves):
            self.interfere()
            if self.run_once():
                self.send()
        self.kind = True
        for _ in range(400):
            if self.run_once():
                if not self.state.requests and not self.inbox:
                    return
                if not self.state.turn:
                    self.send()  # The limit of woken turns is reached: the remaining news waits for a person.
                self.answer()
        raise AssertionError("the session never came to rest")


def _task_of(call: ToolCallId) -> TaskId:
    return TaskId(f"task of {call}")
