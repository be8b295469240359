"""A person who talks to the session, and goes on with the next process when one was killed."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from proof.long_talk.child import Setup
from proof.long_talk.process import Child, Died, Refused
from proof.long_talk.script import PUBLISH

Kill = Literal["", "sending", "accepted", "answering", "summarising"]
"""When the process is killed: before it acknowledged a message, right after, while it answers, or in the next
compaction."""

KILLS: Final[tuple[Kill, ...]] = ("sending", "accepted", "answering", "summarising")

SENDING_SECONDS: Final = 0.01
ANSWERING_SECONDS: Final = 0.03
"""A kill comes at a random moment within these."""


class Talk:
    """The person's side of the session: what was said, and what was violated."""

    def __init__(self, setup: Setup, environ: Mapping[str, str], chance: random.Random) -> None:
        self.setup = setup
        self.environ = environ
        self.folder = Path(setup.folder)
        self.said: list[str] = []
        """The ids of the messages, in order."""
        self.violations: list[str] = []
        self.kills = 0
        self.kills_at_summary = 0
        self._chance = chance
        self._child: Child | None = None
        self._head = 0
        self._summaries_to_kill = 0
        self._denied: set[str] = set()

    async def begin(self) -> None:
        await self._start()
        await self.ask("create")

    async def end(self) -> None:
        if self._child is not None:
            await self._child.kill()
            self._child = None

    def violate(self, text: str) -> None:
        self.violations.append(text)

    async def ask(self, command: str, **arguments: Any) -> Any:
        """A command of the child, given again if the process dies."""
        while True:
            try:
                return await self._running.ask(command, **arguments)
            except Died:
                await self._go_on()

    async def say(self, message_id: str, text: str, *, answer: str, kill: Kill = "") -> None:
        """Send a message, and see its turn to its end. An acknowledged message is never sent again."""
        self.said.append(message_id)
        if kill == "summarising":
            self._summaries_to_kill += 1
            self._arm()
        ended = await self._turn_of(message_id, text, kill)
        if ended["reason"] != "completed" or not ended["text"].startswith(answer):
            self.violate(f"the turn of {message_id} ended as {ended['reason']}: {ended['text'][:80]!r}")

    def was_denied(self, message_id: str) -> bool:
        """Whether a permission was asked for in the message's turn, and denied."""
        return message_id in self._denied

    @property
    def _running(self) -> Child:
        assert self._child is not None
        return self._child

    async def _turn_of(self, message_id: str, text: str, kill: Kill) -> Any:
        after, is_accepted = self._head, False
        while True:
            try:
                if not is_accepted:
                    await self._send(message_id, text, kill)
                    is_accepted = True
                return await self._ended(message_id, after, kill)
            except Died:
                await self._go_on()
                kill = ""
                is_accepted = is_accepted and await self._is_there(message_id)

    async def _send(self, message_id: str, text: str, kill: Kill) -> None:
        sending = self._running.begin("send", message_id=message_id, text=text)
        if kill == "sending":
            await asyncio.sleep(self._chance.uniform(0, SENDING_SECONDS))
            await self._running.kill()
            raise Died
        sent = await self._running.reply(sending)
        if sent["head"] is not None and not sent["duplicate"]:
            self._head = max(self._head, sent["head"])

    async def _ended(self, message_id: str, after: int, kill: Kill) -> Any:
        """The end of the message's turn. What asks on the way is denied."""
        if kill in ("accepted", "answering"):
            if kill == "answering":
                await asyncio.sleep(self._chance.uniform(0, ANSWERING_SECONDS))
            await self._running.kill()
            raise Died
        while True:
            ended = await self._running.ask("result", message_id=message_id, after=after)
            if ended["reason"] != "waiting":
                return ended
            for request in ended["requests"]:
                await self._answer(message_id, request)

    async def _answer(self, message_id: str, request: Mapping[str, Any]) -> None:
        if request["kind"] == "permission":
            self._denied.add(message_id)
            await self._running.ask("deny", request_id=request["id"])
        else:
            self.violate(f"{PUBLISH.name} was called without a permission, in the turn of {message_id}")
            await self._running.ask("give_result", request_id=request["id"])

    async def _is_there(self, message_id: str) -> bool:
        try:
            await self.ask("receipt", message_id=message_id)
        except Refused as refused:
            self.violate(f"the accepted message {message_id} is lost: {refused}")
            return False
        return True

    async def _go_on(self) -> None:
        """Start the next process."""
        if self._running.was_killed_at_summary:
            self._summaries_to_kill -= 1
            self.kills_at_summary += 1
        self.kills += 1
        await self._running.kill()
        await self._start()

    async def _start(self) -> None:
        self._child = await Child.start(self.setup, self.environ)
        self._arm()

    def _arm(self) -> None:
        if self._child is not None:
            self._child.kills_at_summary = self._summaries_to_kill > 0


def plan_kills(turns: int, kills: int, chance: random.Random) -> dict[int, Kill]:
    """Turns in which the process is killed. None of the last, so that a compaction follows each."""
    chosen = sorted(chance.sample(range(1, max(kills + 1, turns - 20)), kills))
    return {turn: KILLS[(number + 3) % len(KILLS)] for number, turn in enumerate(chosen)}


def setting_of(database: str, folder: Path) -> dict[str, str]:
    """The environment of the processes."""
    settings: dict[str, Any] = {
        "database": database,
        "data_dir": folder,
        "claim_every_seconds": 0.1,
        "tails_every_seconds": 0.05,
        "linger_seconds": 0,
        "backoff_seconds": 0,
        "max_backoff_seconds": 0,
        "lease_ttl_seconds": 2,
        "renew_every_seconds": 0.4,
        "lease_margin_seconds": 0.4,
    }
    return {f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()}
