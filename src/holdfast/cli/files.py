"""`holdfast files`: uploaded, listed, downloaded, kept and deleted."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

import msgspec

from holdfast.cli.errors import Refusal
from holdfast.cli.escapes import visible
from holdfast.cli.lookup import check_prefix, find_session, only_match
from holdfast.cli.request_lines import short
from holdfast.cli.session_lines import when
from holdfast.cli.target import Target, open_home
from holdfast.protocol.file import FileView
from holdfast.protocol.home import Home


async def add_files(target: Target, paths: Sequence[Path], *, keep: bool, as_json: bool) -> None:
    for path in paths:
        if not path.is_file():
            raise Refusal("file_unreadable", f"{path} is not a file.")
    async with open_home(target) as home:
        for path in paths:
            _show(await home.upload(path, keep=keep), as_json=as_json)


async def list_files(target: Target, session: str | None, *, as_json: bool) -> None:
    is_empty = True
    async with open_home(target) as home:
        session_id = None if session is None else (await find_session(home, session)).id
        async for found in home.files(session_id=session_id):
            _show(found, as_json=as_json)
            is_empty = False
    if is_empty and not as_json:
        print("There are no files.")


async def get_file(target: Target, wanted: str, output: Path | None) -> None:
    async with open_home(target) as home:
        found = await _find(home, wanted)
        if output is None:
            await _write(home, found, sys.stdout.buffer)
            return
        partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
        try:
            with open(partial, "xb") as file:  # noqa: ASYNC230 - nothing else runs in this program
                await _write(home, found, file)
            os.link(partial, output)
        except FileExistsError:
            raise Refusal("file_exists", f"{output} exists already. Name a file that does not exist.") from None
        finally:
            partial.unlink(missing_ok=True)
    print(f"{visible(found.name)}: {found.size:,} bytes in {output}.")


async def keep_file(target: Target, wanted: str) -> None:
    async with open_home(target) as home:
        found = await home.keep_file((await _find(home, wanted)).id)
    print(f"Kept: {visible(found.name)}.")


async def delete_file(target: Target, wanted: str) -> None:
    async with open_home(target) as home:
        found = await _find(home, wanted)
        await home.delete_file(found.id)
    print(f"Deleted: {visible(found.name)}.")


async def _write(home: Home, found: FileView, file: BinaryIO) -> None:
    async with aclosing(home.read_file(found.id)) as pieces:
        async for piece in pieces:
            await asyncio.to_thread(file.write, piece)
    file.flush()


async def _find(home: Home, wanted: str) -> FileView:
    """The only file whose id begins with this."""
    check_prefix("file", wanted)
    known = [found async for found in home.files() if found.id.startswith(wanted)]
    exact = [found for found in known if found.id == wanted]
    return only_match("file", wanted, exact or known, advice="`holdfast files list` shows them.")


def _show(found: FileView, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    about = ", ".join(
        part for part in ("kept" if found.kept else "", "made by a tool" if found.made_by else "") if part
    )
    line = f"{short(found.id):8}  {when(found.created_at)}  {found.size:>13,}  {visible(found.media_type)}"
    print(f"{line}  {visible(found.name)}" + (f"  ({about})" if about else ""))
