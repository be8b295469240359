"""Random streams of hints as the holder of a session publishes them, and what a reader makes of them."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from hypothesis import strategies as st

from holdfast.events import message, session
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Key, MessageId, Owner, Position, SessionId, ToolCallId
from holdfast.events.message import Block, ReasoningBlock, TextBlock, ToolCallBlock
from holdfast.live.live import Advanced, Changed, Delta, Grown, Hint, Progress, WaitStatus
from holdfast.live.local import LocalLive
from holdfast.server.reader import Reader
from holdfast.store.store import Store
from tests.turns.recording import Read

KEY = Key(Owner("me"), SessionId("s"))

texts = st.text(alphabet="ab é𝄞\u2028\x00漢", min_size=1, max_size=5)
pieces = st.tuples(st.booleans(), st.sampled_from(["text", "reasoning", "tool_call"]), texts)
"""Whether a new block begins, its kind, and the next piece of its text."""
steps: st.SearchStrategy[tuple[str, list[Any]]] = st.one_of(
    st.lists(pieces, min_size=1, max_size=3).map(lambda found: ("grow", found)),
    st.just(("record", [])),
    st.just(("finish", [])),
    st.just(("progress", [])),
    st.just(("silence", [])),
    st.integers(1, 9).map(lambda tail: ("change", [tail])),
)
lives = st.lists(steps, max_size=25)


class Life:
    """Publishes hints as a holder does: text continues where it stopped, and events have consecutive positions."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []
        self._head = 0
        self._messages = 0
        self._blocks: list[tuple[str, str]] = []

    def lead(self, steps: Iterable[tuple[str, Sequence[object]]]) -> list[Hint]:
        for kind, details in steps:
            match kind:
                case "grow":
                    self._grow(cast(Sequence[tuple[bool, str, str]], details))
                case "record":
                    self._append(session.TitleChanged(title=f"Title {self._head}"))
                case "finish":
                    self._finish()
                case "progress":
                    self.hints.append(Progress(ToolCallId("call"), f"at {self._head}"))
                case "silence":
                    self.hints.append(WaitStatus(awaits="model", seconds=10, since=self._head))
                case _:
                    self.hints.append(Changed(tail=cast(int, details[0])))
        self._finish()
        return self.hints

    def _grow(self, pieces: Sequence[tuple[bool, str, str]]) -> None:
        follows = (len(self._blocks) - 1, _size(self._blocks[-1][1])) if self._blocks else (0, 0)
        deltas = tuple(self._delta(*piece) for piece in pieces)
        self.hints.append(Grown(Position(self._head), follows, deltas))

    def _delta(self, begins: bool, kind: str, text: str) -> Delta:
        if begins or not self._blocks:
            self._blocks.append((kind, ""))
        number = len(self._blocks) - 1
        kind, before = self._blocks[number]
        self._blocks[number] = kind, before + text
        made = cast(message.BlockKind, kind)
        name = f"call{number}" if kind == "tool_call" else ""
        return Delta(
            message_id=self._message(), block=number, kind=made, offset=_size(before), text=text, tool_call_id=name
        )

    def _finish(self) -> None:
        blocks = tuple(_block(number, kind, text) for number, (kind, text) in enumerate(self._blocks))
        self._append(message.AssistantMessage(message_id=self._message(), blocks=blocks))
        self._blocks = []
        self._messages += 1

    def _append(self, body: Body) -> None:
        self._head += 1
        self.hints.append(Advanced((Event(Position(self._head), EventId(f"e{self._head}"), 1, body),)))

    def _message(self) -> MessageId:
        return MessageId(f"m{self._messages}")


def _size(text: str) -> int:
    return len(text.encode())


def _block(number: int, kind: str, text: str) -> Block:
    match kind:
        case "text":
            return TextBlock(text=text)
        case "reasoning":
            return ReasoningBlock(text=text)
        case _:
            return ToolCallBlock(tool_call_id=ToolCallId(f"call{number}"), name="", arguments=text)


def read(hints: Iterable[Hint]) -> Read:
    """The readings of a reader that receives these hints. It has no store to fall back on, so every hint must fit."""
    reader = Reader(cast(Store, None), LocalLive(), KEY)
    record = Read()
    for hint in hints:
        readings = reader._from_hint(hint)
        assert readings is not None, f"{hint} does not follow on"
        record.take(readings)
    return record
