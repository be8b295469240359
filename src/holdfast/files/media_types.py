"""The media type of a file, by its content: a name and a sender can say anything. Nothing is ever unpacked."""

import mimetypes
import re
from typing import Final

from holdfast.events.message import PDF, PICTURES
from holdfast.files.errors import FileRefused

HEAD_BYTES: Final = 4_096
TAIL_BYTES: Final = 64
"""What is looked at, from the beginning and the end of a file."""

UNKNOWN: Final = "application/octet-stream"

_SIGNATURES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}

_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,63}")

_BY_NAME: Final = mimetypes.MimeTypes(filenames=())
"""The same on every machine."""


def picture_type(head: bytes) -> str | None:
    """The media type of a picture that begins so; None if it is none."""
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in _SIGNATURES.items() if head.startswith(signature)), None)


def is_whole(media_type: str, head: bytes, tail: bytes, size: int) -> bool:
    """Whether a picture with this beginning and end has all of its parts: a provider refuses another one."""
    match media_type:
        case "image/png":
            return head[12:16] == b"IHDR" and b"IEND" in tail
        case "image/gif":
            return size > 13 and b"\x3b" in tail[-16:]
        case "image/jpeg":
            return b"\xff\xd9" in tail
        case _:
            return int.from_bytes(head[4:8], "little") + 8 <= size


def media_type_of(name: str, claimed: str, head: bytes, tail: bytes, size: int) -> str:
    """The media type to be recorded. Raises `FileRefused` if the sender says that it is a picture or a PDF, and it is
    not: a model would be sent what its provider refuses."""
    claimed = claimed.partition(";")[0].strip().lower()
    found = picture_type(head) or (PDF if head.startswith(b"%PDF-") else None)
    by_name = _BY_NAME.guess_type(name)[0] or ""
    said = claimed if claimed not in ("", UNKNOWN) else by_name
    if found is None and said in (*PICTURES, PDF) and size:
        raise FileRefused("file_type_wrong", f"{name} is said to be of the type {said}, but its content is not.")
    if found in PICTURES and not is_whole(found, head, tail, size):
        raise FileRefused("file_type_wrong", f"{name} is a picture that is damaged or cut off.")
    if found is not None:
        return found
    if _TYPE.fullmatch(said) and said not in (*PICTURES, PDF):
        return said
    return "text/plain" if _is_text(head) else UNKNOWN


def _is_text(head: bytes) -> bool:
    """Whether it may be the beginning of a text. A character may be cut at the end."""
    return b"\0" not in head and text_of(head) is not None


def text_of(data: bytes) -> str | None:
    """A part of a text in UTF-8, without the characters that are cut at its ends; None if it is no such text."""
    start = next((at for at in range(min(3, len(data))) if data[at] & 0xC0 != 0x80), min(3, len(data)))
    for cut in range(4):
        try:
            return data[start : len(data) - cut].decode()
        except UnicodeDecodeError:
            continue
    return None
