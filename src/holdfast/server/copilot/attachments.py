"""What a client attaches to a message: pictures for the model to see, files, folders and selections to know of."""

import asyncio
import base64
import binascii
import mimetypes
import stat
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.events.message import Image
from holdfast.server.errors import Invalid

PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

MAX_FILE_CHARACTERS: Final = 50_000
"""A longer file is named, and the model may look at the parts that it needs."""

MAX_PICTURE_BYTES: Final = 10_000_000

NOWHERE: Final = {"line": 0, "character": 0}
"""Clients may leave out where a selection stands, and can't read an event without it."""


class Gathered(msgspec.Struct, kw_only=True):
    """What the model is told and shown, and what is written down of it."""

    texts: list[str] = []
    images: tuple[Image, ...] = ()
    described: tuple[dict[str, Any], ...] = ()


async def gathered(given: list[dict[str, Any]], directory: str | None) -> Gathered:
    """Read what was attached. Raises `Invalid` for what can't be."""
    if not given:
        return Gathered()
    return await asyncio.to_thread(_gathered, given, directory)


def _gathered(given: list[dict[str, Any]], directory: str | None) -> Gathered:
    found = Gathered()
    for attachment in given:
        match attachment.get("type"):
            case "file":
                _file(found, attachment, directory)
            case "directory":
                path = _path(attachment, "path", directory)
                found.texts.append(f'<attached_directory path="{path}"/>')
            case "selection":
                _selection(found, attachment)
            case "blob":
                _blob(found, attachment)
            case _:
                found.texts.append(f"<attached_reference>{_text_of(attachment)}</attached_reference>")
        found.described = (*found.described, _described(attachment))
    return found


def _described(attachment: dict[str, Any]) -> dict[str, Any]:
    """What is written down, and told again: all but the bytes, and with the name that clients rely on."""
    about = {name: value for name, value in attachment.items() if name != "data"}
    path = attachment.get("path") or attachment.get("filePath")
    if isinstance(path, str):
        about.setdefault("displayName", Path(path).name)
    if about.get("type") == "selection":
        about.setdefault("selection", {"start": NOWHERE, "end": NOWHERE})
    return about


def _path(attachment: dict[str, Any], name: str, directory: str | None) -> Path:
    given = attachment.get(name)
    if not isinstance(given, str) or not given or "\0" in given:
        raise Invalid("attachment_invalid", f"An attachment of type {attachment.get('type')} needs a {name}.")
    return Path(directory or ".", Path(given).expanduser())


def _file(found: Gathered, attachment: dict[str, Any], directory: str | None) -> None:
    path = _path(attachment, "path", directory)
    media_type = mimetypes.guess_type(path.name)[0] or ""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise Invalid("attachment_invalid", f"{path} is not a file.")
        if media_type in PICTURES and about.st_size <= MAX_PICTURE_BYTES:
            found.images = (*found.images, Image(media_type=media_type, data=path.read_bytes()))
            found.texts.append(f'<attached_image path="{path}"/>')
            return
        text = path.read_text("utf-8") if about.st_size <= MAX_FILE_CHARACTERS else None
    except UnicodeDecodeError:
        text = None
    except OSError as error:
        raise Invalid("attachment_unreadable", f"{path} can't be read: {error.strerror}.") from error
    found.texts.append(
        f'<attached_file path="{path}"/>'
        if text is None
        else f'<attached_file path="{path}">\n{text}\n</attached_file>'
    )


def _selection(found: Gathered, attachment: dict[str, Any]) -> None:
    text = attachment.get("text")
    if not isinstance(text, str):
        raise Invalid("attachment_invalid", "A selection needs its text.")
    path = attachment.get("filePath") or attachment.get("displayName") or ""
    found.texts.append(f'<selection path="{path}"{_lines(attachment)}>\n{text}\n</selection>')


def _lines(attachment: dict[str, Any]) -> str:
    try:
        first = attachment["selection"]["start"]["line"]
        last = attachment["selection"]["end"]["line"]
    except (KeyError, TypeError):
        return ""
    return f' lines="{first}-{last}"'


def _blob(found: Gathered, attachment: dict[str, Any]) -> None:
    media_type = str(attachment.get("mimeType") or "")
    data = decoded(attachment.get("data"))
    name = attachment.get("displayName") or "attachment"
    if media_type in PICTURES:
        found.images = (*found.images, Image(media_type=media_type, data=data))
        found.texts.append(f'<attached_image name="{name}"/>')
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Invalid("attachment_invalid", f"{media_type or 'This kind of data'} can't be shown to a model.") from None
    found.texts.append(f'<attached_file name="{name}">\n{text}\n</attached_file>')


def _text_of(attachment: dict[str, Any]) -> str:
    return msgspec.json.encode(attachment).decode()


def decoded(data: Any) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise Invalid("data_invalid", "The data of a binary result or attachment is base64.") from error
