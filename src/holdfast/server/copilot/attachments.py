"""Attachments of a client's message: images, files, folders, selections and references, prepared for the model."""

import asyncio
import base64
import binascii
import mimetypes
import stat
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.events.message import PICTURES, Image
from holdfast.server.errors import Invalid

MAX_FILE_BYTES: Final = 50_000
"""A larger file is only named; the model can view the parts that it needs."""

MAX_PICTURE_BYTES: Final = 10_000_000

NOWHERE: Final = {"line": 0, "character": 0}
"""Default position of a selection: clients may omit it, but can't parse an event without it."""


class Gathered(msgspec.Struct, kw_only=True):
    """The text and images for the model, and the descriptions that the log keeps."""

    texts: list[str] = []
    images: tuple[Image, ...] = ()
    described: tuple[dict[str, Any], ...] = ()


async def gathered(attachments: list[dict[str, Any]], directory: str | None) -> Gathered:
    """Read the attachments in a thread. Raises `Invalid` for one that can't be read."""
    if not attachments:
        return Gathered()
    return await asyncio.to_thread(_gathered, attachments, directory)


def _gathered(attachments: list[dict[str, Any]], directory: str | None) -> Gathered:
    result = Gathered()
    for attachment in attachments:
        match attachment.get("type"):
            case "file":
                _file(result, attachment, directory)
            case "directory":
                path = _path(attachment, "path", directory)
                result.texts.append(f'<attached_directory path="{path}"/>')
            case "selection":
                _selection(result, attachment)
            case "blob":
                _blob(result, attachment)
            case _:
                result.texts.append(f"<attached_reference>{_text_of(attachment)}</attached_reference>")
        result.described = (*result.described, _described(attachment))
    return result


def _described(attachment: dict[str, Any]) -> dict[str, Any]:
    """The description that the log keeps and clients receive: everything but the bytes, with a display name."""
    about = {name: value for name, value in attachment.items() if name != "data"}
    path = attachment.get("path") or attachment.get("filePath")
    if isinstance(path, str):
        about.setdefault("displayName", Path(path).name)
    if about.get("type") == "selection":
        about.setdefault("selection", {"start": NOWHERE, "end": NOWHERE})
    return about


def _path(attachment: dict[str, Any], name: str, directory: str | None) -> Path:
    path = attachment.get(name)
    if not isinstance(path, str) or not path or "\0" in path:
        raise Invalid("attachment_invalid", f"An attachment of type {attachment.get('type')} needs a {name}.")
    return Path(directory or ".", Path(path).expanduser())


def _file(result: Gathered, attachment: dict[str, Any], directory: str | None) -> None:
    path = _path(attachment, "path", directory)
    media_type = mimetypes.guess_type(path.name)[0] or ""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise Invalid("attachment_invalid", f"{path} is not a file.")
        if media_type in PICTURES and about.st_size <= MAX_PICTURE_BYTES:
            result.images = (*result.images, Image(media_type=media_type, data=path.read_bytes()))
            result.texts.append(f'<attached_image path="{path}"/>')
            return
        text = path.read_text("utf-8") if about.st_size <= MAX_FILE_BYTES else None
    except UnicodeDecodeError:
        text = None
    except OSError as error:
        raise Invalid("attachment_unreadable", f"{path} can't be read: {error.strerror}.") from error
    result.texts.append(
        f'<attached_file path="{path}"/>'
        if text is None
        else f'<attached_file path="{path}">\n{text}\n</attached_file>'
    )


def _selection(result: Gathered, attachment: dict[str, Any]) -> None:
    text = attachment.get("text")
    if not isinstance(text, str):
        raise Invalid("attachment_invalid", "A selection needs its text.")
    path = attachment.get("filePath") or attachment.get("displayName") or ""
    result.texts.append(f'<selection path="{path}"{_lines(attachment)}>\n{text}\n</selection>')


def _lines(attachment: dict[str, Any]) -> str:
    try:
        first = attachment["selection"]["start"]["line"]
        last = attachment["selection"]["end"]["line"]
    except (KeyError, TypeError):
        return ""
    return f' lines="{first}-{last}"'


def _blob(result: Gathered, attachment: dict[str, Any]) -> None:
    media_type = str(attachment.get("mimeType") or "")
    data = decoded(attachment.get("data"))
    name = attachment.get("displayName") or "attachment"
    if media_type in PICTURES:
        result.images = (*result.images, Image(media_type=media_type, data=data))
        result.texts.append(f'<attached_image name="{name}"/>')
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Invalid("attachment_invalid", f"{media_type or 'This kind of data'} can't be shown to a model.") from None
    result.texts.append(f'<attached_file name="{name}">\n{text}\n</attached_file>')


def _text_of(attachment: dict[str, Any]) -> str:
    return msgspec.json.encode(attachment).decode()


def decoded(data: Any) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise Invalid("data_invalid", "The data of a binary result or attachment must be base64.") from error
