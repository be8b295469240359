"""The database file: copied while it is in use, on a disk that is full, and with logs of any size and any text."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.app import Runtime
from holdfast.events.event import Event
from holdfast.events.message import UserMessage
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import TurnEnded
from holdfast.models.scripted import Reply
from holdfast.tools.tool import tool
from tests.faults.processes import Child, Failed, child_on
from tests.faults.world import (
    bodies_of,
    call,
    endings_of,
    log_of,
    model_said,
    patience,
    people_said,
    runtime_on,
    says,
    scripted,
    until,
    whole,
)

pytestmark = pytest.mark.anyio


# 53


class Writing:
    """Messages that are sent without a pause, to several sessions, and the ones that were acknowledged so far."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.acknowledged: list[tuple[str, str]] = []
        self._more = asyncio.Condition()

    async def run(self, session_id: str) -> None:
        session = await self._runtime.session(session_id)
        number = 0
        while True:
            number += 1
            await session.run(f"{session_id}-{number}")
            async with self._more:
                self.acknowledged.append((session_id, f"{session_id}-{number}"))
                self._more.notify_all()

    async def until_acknowledged(self, count: int) -> None:
        async with self._more:
            await self._more.wait_for(lambda: len(self.acknowledged) >= count)


@asynccontextmanager
async def writing_to(database: Path) -> AsyncIterator[tuple[Runtime, Writing]]:
    async with runtime_on(database, scripted(Reply(text="one two three " * 20))) as runtime, patience():
        writing = Writing(runtime)
        tasks = [asyncio.create_task(writing.run(f"s{number}")) for number in range(3)]
        try:
            yield runtime, writing
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def check_copy(copy: Path, acknowledged: list[tuple[str, str]]) -> None:
    """It opens, nothing acknowledged is missing, every log is sound, and its sessions work."""
    async with runtime_on(copy) as runtime, patience():
        for session_id in {session_id for session_id, _ in acknowledged}:
            session = runtime.open(session_id)
            said = set(await people_said(session))
            missing = {text for owner, text in acknowledged if owner == session_id} - said
            assert missing == set()
            assert (await session.run("And now?")).reason == "completed"


async def test_fault_53_a_backup_of_a_live_database_opens_and_has_all_that_was_acknowledged(
    database: Path, tmp_path: Path
) -> None:
    async with writing_to(database) as (runtime, writing):
        for number in range(3):
            await writing.until_acknowledged(10 * (number + 1))
            before = list(writing.acknowledged)
            await runtime.store.backup(tmp_path / f"copy{number}.db")
            await check_copy(tmp_path / f"copy{number}.db", before)
        with pytest.raises(FileExistsError):
            await runtime.store.backup(tmp_path / "copy0.db")


async def test_fault_53_a_file_system_snapshot_taken_between_two_writes_has_all_that_was_acknowledged(
    database: Path, tmp_path: Path
) -> None:
    """A snapshot shows all files at one moment. Here the writer is stopped at any moment outside a commit, while it is
    copied; a copy of a moment inside one is what a crash leaves, and the crash campaign does that."""
    async with child_on(database, script=says(Reply(text="one two three"))) as child:
        for number in range(20):
            await child.ask("create", session=f"s{number}")
            await child.ask("send", session=f"s{number}", text=f"m{number}", message_id="m")
        acknowledged = [(f"s{number}", f"m{number}") for number in range(20)]
        await child.kill()
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{database}{suffix}", folder / f"holdfast.db{suffix}")
    async with child_on(folder / "holdfast.db", script=says(Reply(text="Done."))) as heir:
        for session_id, text in acknowledged:
            assert (await heir.ask("result", session=session_id, message_id="m"))["reason"] == "completed", text
    async with runtime_on(folder / "holdfast.db", work=False) as reader:
        for session_id, text in acknowledged:
            assert await people_said(reader.open(session_id)) == [text]


async def test_fault_53_a_file_system_copy_taken_during_writes_opens_with_nothing_acknowledged_missing(
    database: Path, tmp_path: Path
) -> None:
    """The log is copied after the database, as `cp` would in that order, and no checkpoint comes between them."""
    async with writing_to(database) as (_, writing):
        for number in range(3):
            await writing.until_acknowledged(10 * (number + 1))
            folder = tmp_path / f"copy{number}"
            folder.mkdir()
            before = list(writing.acknowledged)
            for suffix in ("", "-wal"):
                await asyncio.to_thread(copy_apart, f"{database}{suffix}", folder / f"holdfast.db{suffix}")
            await check_copy(folder / "holdfast.db", before)


def copy_apart(source: str, target: Path) -> None:
    """With a program of its own: closing a database file drops the locks of the process that closes it."""
    subprocess.run(["cp", source, str(target)], check=True)


def a_small_disk(tmp_path: Path) -> tuple[Path, list[str]]:
    """A folder and the words before a command that give it a disk of 2 MB there, gone when the command ends."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size=2m none "{folder}" && exec "$0" "$@"'
    before = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount]
    if os.geteuid() == 0:
        before = ["unshare", "--mount", "sh", "-c", mount]
    return folder, before


def disks_can_be_made() -> bool:
    program = shutil.which("unshare")
    words = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    mount = "mount -t tmpfs -o size=1m none /tmp"
    return program is not None and subprocess.run([program, *words, "sh", "-c", mount], check=False).returncode == 0


async def send_until_full(child: Child) -> tuple[list[str], str]:
    """The acknowledged messages, and the code of the first refusal."""
    acknowledged: list[str] = []

    async def send_on() -> None:
        for number in range(1000):
            message_id = f"m{number}"
            text = message_id + "x" * 2000
            await child.ask("send", session=f"s{number % 20}", text=text, message_id=message_id)
            acknowledged.append(message_id)

    with pytest.raises(Failed) as refused:
        await send_on()
    assert refused.value.message.endswith("."), "a sentence"
    return acknowledged, refused.value.code


@pytest.mark.skipif("not disks_can_be_made()", reason="this user can't mount a small disk")
async def test_fault_53_a_full_disk_is_said_clearly_loses_nothing_and_works_again_with_space(tmp_path: Path) -> None:
    folder, before = a_small_disk(tmp_path)
    script = says(Reply(text="one two three"))
    database = folder / "holdfast.db"
    async with child_on(database, script=script, before=before, holds=["model:1"], renew_every_seconds=0.2) as child:
        await child.ask("create", session="running")
        await child.ask("send", session="running", text="Hello", message_id="hello")
        await child.comes_to("model:1")
        for number in range(20):
            await child.ask("create", session=f"s{number}")
        await child.ask("fill", path=str(folder / "ballast"))
        acknowledged, code = await send_until_full(child)
        assert code == "store_disk_full"
        await child.ask("open", gate="model:1")
        await child.logged("session running was dropped")
        # Letting go of it fails too, while the process itself lives on and keeps its lease.
        await child.logs("could not renew: The disk is full", times=3)
        await child.ask("free", path=str(folder / "ballast"))
        assert (await child.ask("result", session="running", message_id="hello"))["reason"] == "completed"
        for message_id in acknowledged:
            session = f"s{int(message_id[1:]) % 20}"
            assert (await child.ask("result", session=session, message_id=message_id))["reason"] == "completed"
        await child.ask("send", session="running", text="And now?", message_id="now")
        assert (await child.ask("result", session="running", message_id="now"))["reason"] == "completed"


async def test_fault_53_files_that_may_not_grow_lose_nothing_and_work_again(database: Path) -> None:
    """Where no disk can be made, a limit on the size of files does nearly the same."""
    async with child_on(database, script=says(Reply(text="one two three")), work=False) as child:
        for number in range(20):
            await child.ask("create", session=f"s{number}")
        await child.ask("limit_files", size=600_000)
        acknowledged, code = await send_until_full(child)
        assert code in ("store_disk_full", "store_failed")
        await child.ask("limit_files", size=None)
        await child.ask("send", session="s0", text="And now?", message_id="now")
        await child.kill()
    async with child_on(database, script=says(Reply(text="Done."))) as heir:
        for message_id in [*acknowledged, "now"]:
            session = "s0" if message_id == "now" else f"s{int(message_id[1:]) % 20}"
            assert (await heir.ask("result", session=session, message_id=message_id))["reason"] == "completed"


# 54

ODD_TEXT = (
    "line\u2028separator \u2029 NUL\0 half \ud83d of one, bell\a, bom\ufeff, rtl \u202e, 👩‍👩‍👧‍👦, \r\n\t\x7f\x85 end"
)
CLEAN = ODD_TEXT.replace("\ud83d", "\ufffd")


async def test_fault_54_odd_text_comes_back_as_it_went_in_everywhere(database: Path) -> None:
    @tool(permission="allow")
    async def odd(text: str) -> str:
        return text + ODD_TEXT

    model = scripted(call("odd", text=CLEAN), Reply(text=CLEAN, reasoning=CLEAN, chunk_size=1))
    async with runtime_on(database, model, tools=[odd]) as runtime, patience():
        session = await runtime.session(title=ODD_TEXT)
        live: list[object] = []
        await session.send(ODD_TEXT)
        async for reading in session.events():
            live.append(reading)
            if isinstance(reading, Event) and isinstance(reading.body, TurnEnded):
                break
        assert whole(live) == whole([reading async for reading in session.events(follow=False)])
        assert await people_said(session) == [CLEAN]
        assert (await model_said(session))[-1] == CLEAN
        (result,) = await bodies_of(session, ToolCompleted)
        assert result.content == CLEAN + CLEAN
        assert (await session.look()).title == CLEAN
        found = [one async for one in runtime.sessions(text="line\u2028separator \u2029")]
        assert [one.id for one in found] == [session.id]


def long_log(*, turns: int, size: int) -> bytes:
    """An exported session of `turns` turns, ten events each, with about `size` bytes in all."""
    text = "0123456789" * (size // turns // 20)
    events: list[dict[str, Any]] = [event("session.start", sessionId="old", producer="test", startTime=0)]
    for number in range(turns):
        turn, first, second, made = f"t{number}", f"a{number}", f"b{number}", f"call_{number}"
        called = {"type": "tool_call", "toolCallId": made, "name": "look", "arguments": "{}"}
        events += [
            event("holdfast.turn_started", turnId=turn),
            event("user.message", messageId=f"u{number}", turnId=turn, content=text, delivery="idle"),
            event("assistant.turn_start", turnId=turn, step=1, messageId=first),
            event("assistant.message", messageId=first, blocks=[called]),
            event("tool.execution_start", toolCallId=made, toolName="look", arguments="{}"),
            event("tool.execution_complete", toolCallId=made, success=True, content=text),
            event("assistant.turn_end", turnId=turn, step=1),
            event("assistant.turn_start", turnId=turn, step=2, messageId=second),
            event("assistant.message", messageId=second, blocks=[{"type": "text", "text": f"Answer {number}"}]),
            event("assistant.turn_end", turnId=turn, step=2),
            event("holdfast.turn_ended", turnId=turn, reason="completed"),
        ]
    return msgspec.json.encode({"format": "holdfast-session-1", "session_id": "old", "title": "Long", "events": events})


def event(name: str, **data: Any) -> dict[str, Any]:
    return {"type": name, "version": 1, "time": 1_700_000_000_000, "data": {"type": name, **data}}


async def test_fault_54_a_log_of_20_mb_and_10_000_events_is_read_forked_and_gone_on_with(database: Path) -> None:
    async with runtime_on(database) as runtime, patience():
        session = runtime.open(
            await runtime.operations.import_session(runtime.owner, long_log(turns=910, size=20_000_000))
        )
        events = await log_of(session)
        assert len(events) > 10_000
        exported = await runtime.operations.export_session(session.key)
        assert len(exported) > 20_000_000
        for number in range(3):
            assert (await session.run(f"And now? {number}")).reason == "completed"
        assert len(await bodies_of(session, UserMessage)) == 913
    async with runtime_on(database) as restarted, patience():
        again = restarted.open(session.id)
        assert (await again.run("After a restart?")).reason == "completed"
        assert (await log_of(again))[: len(events)] == events
        assert set(await endings_of(again)) == {"completed"}


async def test_fault_54_a_tool_output_of_5_mb_is_kept_whole_and_shown_in_part(database: Path) -> None:
    output = "".join(f"{number:07}\n" for number in range(625_000))

    @tool(permission="allow")
    async def huge() -> str:
        return output

    model = scripted(call("huge"), Reply(text="Read."))
    async with runtime_on(database, model, tools=[huge]) as runtime, patience():
        session = await runtime.session()
        await session.send("Hello")
        await until(session, lambda body: isinstance(body, TurnEnded))
        (result,) = await bodies_of(session, ToolCompleted)
        assert result.content == output
        assert result.preview is not None
        assert len(result.preview) < 81_000
        assert result.preview.startswith(output[:1000])
        assert result.preview.endswith(output[-1000:])
        assert await endings_of(session) == ["completed"]
