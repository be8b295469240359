"""The output of a task as clients see it: as text, and without known secrets."""

import asyncio
from contextlib import aclosing

from holdfast.commands.output import OutputChunk
from holdfast.events.ids import Key
from holdfast.protocol.task import TaskOutput
from holdfast.server.operations.tasks import TaskOperations


async def read_output(
    tasks: TaskOperations, key: Key, task_id: str, *, offset: int, length: int, wait_seconds: float = 0
) -> TaskOutput:
    """At most `length` bytes of the output, from `offset` on. If there is none, wait for it; the end of the task ends
    the wait."""
    chunk = await tasks.read(key, task_id, offset, length)
    if not chunk.data and wait_seconds:
        await _until_more(tasks, key, task_id, offset, wait_seconds)
        chunk = await tasks.read(key, task_id, offset, length)
    return await _redacted(tasks, key, task_id, chunk)


async def _until_more(tasks: TaskOperations, key: Key, task_id: str, offset: int, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds), aclosing(tasks.follow(key, task_id, offset)) as chunks:
            await anext(chunks, None)
    except TimeoutError:
        pass


async def _redacted(tasks: TaskOperations, key: Key, task_id: str, chunk: OutputChunk) -> TaskOutput:
    """The chunk without known secrets, also without secrets that begin before it or end after it."""
    redaction, whole = tasks.desk.redaction, _without_cut_character(chunk.data)
    before, after = await _around(tasks, key, task_id, chunk, redaction.margin_bytes)
    shown, start = whole.decode("utf-8", "replace"), len(before)
    text = before + shown + (chunk.data[len(whole) :] + after).decode("utf-8", "replace")
    end = start + len(shown)
    if not after and (await tasks.find(key, task_id)).status == "running":
        end = min(end, max(start, redaction.settled(text)))  # A possible beginning of a secret waits for the rest.
    withheld = len(text[end : start + len(shown)].encode())
    return TaskOutput(
        offset=chunk.offset,
        text=redaction.part(text, start, end),
        next_offset=chunk.offset + len(whole) - withheld,
    )


async def _around(tasks: TaskOperations, key: Key, task_id: str, chunk: OutputChunk, margin: int) -> tuple[str, bytes]:
    """The output right before and right after a chunk, as far as it exists."""
    if not margin or not chunk.data:
        return "", b""
    first = max(0, chunk.offset - margin)
    before = await tasks.read(key, task_id, first, chunk.offset - first)
    after = await tasks.read(key, task_id, chunk.end, margin)
    return (
        before.data.decode("utf-8", "replace") if before.end == chunk.offset else "",
        after.data if after.offset == chunk.end else b"",
    )


def _without_cut_character(data: bytes) -> bytes:
    """The data without a character at its end whose rest is in the next chunk; unless there is nothing else."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < needed and back < len(data) else data
        if byte & 0x80 == 0:
            break
    return data
