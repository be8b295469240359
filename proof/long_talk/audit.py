"""Checks the session from outside: by its log, by what the model was sent, and by what `recall` finds."""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.app import Runtime
from holdfast.events.compaction import CompactionEnded
from holdfast.events.event import Event
from holdfast.events.message import UserMessage
from holdfast.events.tool import ToolCompleted, ToolStarted
from holdfast.events.turn import TurnEnded
from proof.long_talk.child import CALLS, EFFECTS, LAST_CALL, RecordedCall
from proof.long_talk.script import FOUND, NOTED, SESSION, groups, is_planted, key_word, look_for, planted
from proof.long_talk.talk import Talk


class Seen(msgspec.Struct):
    """The sentences of the last check, and all lookups."""

    compactions: int = 0
    in_context: int = 0
    covered: int = 0
    recalled: int = 0


class Audit:
    """The checks of one talk. They add to its violations."""

    def __init__(self, talk: Talk, reader: Runtime, chance: random.Random) -> None:
        """`reader` is a runtime on the same database that runs no sessions."""
        self.seen = Seen()
        self._talk = talk
        self._reader = reader
        self._chance = chance
        self._settings: Mapping[str, Any] = {}
        self._calls_read = 0
        self._number = 0
        self._covers = 0
        self._known: list[Event] = []

    async def begin(self) -> None:
        """Note what must hold to the end."""
        self._settings = await self._talk.ask("settings")

    async def after_turn(self, turns: int) -> None:
        """A look at the last call: after each compaction, before the next one covers what this one may have lost."""
        call, texts = self._last_call()
        if call.covers != self._covers:
            self._covers = call.covers
            self._check_sentences(turns, await self._log(), call, texts)

    async def check(self, turns: int, *, lookups: int | None) -> None:
        """After so many turns: every sentence is sent word for word or covered, every gate holds, and `recall` finds
        the sentences of some groups, or of all."""
        self._number += 1
        await self._talk.say(f"audit-{self._number}", f"Audit {self._number}. Please note it.", answer=NOTED)
        log = await self._log()
        self._check_sentences(turns, log, *self._last_call())
        await self._check_gates()
        found = groups(turns)
        chosen = found if lookups is None else self._chance.sample(found, min(lookups, len(found)))
        await self._recall(chosen, log)

    async def finish(self, *, min_compactions: int) -> None:
        """The whole log, once more: messages, turns, compactions."""
        log = await self._log()
        accepted = Counter(str(event.body.message_id) for event in log if isinstance(event.body, UserMessage))
        if accepted != Counter(self._talk.said):
            wrong = [name for name in {*accepted, *self._talk.said} if accepted[name] != 1]
            self._talk.violate(f"messages are not in the log exactly once: {wrong[:5]}")
        ends = Counter(event.body.reason for event in log if isinstance(event.body, TurnEnded))
        if ends != {"completed": len(self._talk.said)}:
            self._talk.violate(f"{len(self._talk.said)} messages have these turns: {dict(ends)}")
        if self.seen.compactions < min_compactions:
            self._talk.violate(f"only {self.seen.compactions} compactions, and not {min_compactions}")

    def _last_call(self) -> tuple[RecordedCall, tuple[str, ...]]:
        content = (self._talk.folder / LAST_CALL).read_bytes()
        return msgspec.json.decode(content, type=tuple[RecordedCall, tuple[str, ...]])

    def _check_sentences(self, turns: int, log: list[Event], call: RecordedCall, texts: tuple[str, ...]) -> None:
        context = "\n".join(texts)
        places = {str(event.body.message_id): event.position for event in log if isinstance(event.body, UserMessage)}
        ended = [event.body for event in log if isinstance(event.body, CompactionEnded) and event.body.success]
        self.seen.compactions = sum(body.method == "summary" for body in ended)
        self.seen.in_context = self.seen.covered = 0
        if call.covers not in {0, *(body.up_to for body in ended[-2:])}:
            self._talk.violate(f"the model is told of a summary up to {call.covers}, which no compaction made")
        for turn in filter(is_planted, range(turns)):
            if planted(turn) in context:
                self.seen.in_context += 1
            elif places.get(f"turn-{turn}", call.covers + 1) <= call.covers:
                self.seen.covered += 1
            else:
                self._talk.violate(f"sentence {turn} is neither in the context nor covered up to {call.covers}")

    async def _check_gates(self) -> None:
        lines = (self._talk.folder / CALLS).read_bytes().splitlines()
        for line in lines[self._calls_read :]:
            try:
                call = msgspec.json.decode(line, type=RecordedCall)
            except msgspec.DecodeError:
                continue  # The process was killed while it wrote it.
            if call.covers and not call.states_mode:
                self._talk.violate(f"a call after the compaction up to {call.covers} does not state the mode")
                break
        self._calls_read = len(lines)
        now = await self._talk.ask("settings")
        changed = [name for name in self._settings if now[name] != self._settings[name]]
        if changed:
            self._talk.violate(f"these are not as they were at the start: {', '.join(changed)}")
        if (self._talk.folder / EFFECTS).exists():
            self._talk.violate("a tool took effect in a dry run")

    async def _recall(self, chosen: list[list[int]], log: list[Event]) -> None:
        for group in chosen:
            message_id = f"look-{self._number}-{group[0]}"
            await self._talk.say(message_id, look_for(group[0]), answer=FOUND)
        after = log[-1].position
        places = {str(event.body.message_id): event.position for event in log if isinstance(event.body, UserMessage)}
        results = _lookups([event for event in await self._log() if event.position > after])
        for turn in (turn for group in chosen for turn in group):
            place = places.get(f"turn-{turn}")
            if any(planted(turn) in content and f"[{place}] User," in content for content in results.get(turn, ())):
                self.seen.recalled += 1
            else:
                self._talk.violate(f"recall does not find sentence {turn}, at position {place}")

    async def _log(self) -> list[Event]:
        """The whole log. What was read before is kept."""
        after = self._known[-1].position if self._known else 0
        readings = self._reader.open(SESSION).events(str(after), follow=False)
        self._known += [reading async for reading in readings if isinstance(reading, Event)]
        return list(self._known)


def _lookups(events: list[Event]) -> dict[int, list[str]]:
    """The results of `recall`, by the turn whose sentence was looked for."""
    calls = {event.body.tool_call_id: event.body for event in events if isinstance(event.body, ToolStarted)}
    found: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event.body, ToolCompleted) and event.body.tool_call_id in calls:
            words = str(calls[event.body.tool_call_id].arguments)
            turn = _turn_in(words)
            if turn is not None:
                found.setdefault(turn, []).append(event.body.content)
    return found


def _turn_in(arguments: str) -> int | None:
    """The turn whose key word is in the arguments."""
    _, marker, after = arguments.partition(key_word(0)[:-5])
    return int(after[:5]) if marker and after[:5].isdigit() else None
