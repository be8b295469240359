"""File parts of messages of the AI SDK: bytes in a `data:` URL, or the URL of a file that was uploaded before."""

import base64
import binascii
import hashlib
import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

from holdfast.server.errors import Invalid

_CONTENT: Final = re.compile(r"(?:https?://[^/]+)?/v1/files/([^/?#]+)/content")


class FilePart(NamedTuple):
    """A file part as a client sends it."""

    url: str
    media_type: str = ""
    filename: str = ""


def content_url(file_id: str) -> str:
    """The path of a file's content on this server."""
    return f"/v1/files/{quote(file_id, safe='')}/content"


def file_id_in(part: FilePart) -> str | None:
    """The id of the uploaded file that the part names; None if it brings its own bytes. No URL is ever fetched."""
    if part.url.startswith("data:"):
        return None
    found = _CONTENT.fullmatch(part.url)
    if found is None:
        raise Invalid(
            "file_url_unsupported",
            "The URL of a file is a data: URL, or that of a file of this server (/v1/files/…/content).",
        )
    return unquote(found[1])


def bytes_in(part: FilePart) -> bytes:
    """The bytes of a part with a `data:` URL."""
    head, comma, data = part.url.partition(",")
    if not comma:
        raise Invalid("file_url_invalid", "A data: URL has a comma before its data.")
    if not head.endswith(";base64"):
        return unquote_to_bytes(data)
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid("file_url_invalid", "The data of a data: URL must be base64.") from error


def made_id(session_id: str, message_id: str, data: bytes) -> str:
    """The id of the file that a part becomes: the same request again makes the same file."""
    known = hashlib.sha256(f"{session_id}/{message_id}/".encode())
    known.update(data)
    return f"part-{known.hexdigest()[:48]}"


def name_of(part: FilePart, number: int) -> str:
    """A name for the file: its own, or one made of its type."""
    return part.filename or f"file-{number}{_EXTENSIONS.get(part.media_type, '')}"


_EXTENSIONS: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "application/pdf": ".pdf",
    "text/plain": ".txt",
}
