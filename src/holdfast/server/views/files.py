"""Files as clients see them."""

from collections.abc import Iterable

from holdfast.events.message import AttachedFile
from holdfast.protocol.file import FileList, FileView, MessageFile
from holdfast.store.files import FilePage, FileRow


def file_view(row: FileRow) -> FileView:
    return FileView(
        id=row.file_id,
        name=row.name,
        media_type=row.media_type,
        size=row.size,
        digest=row.digest,
        created_at=row.created_at,
        kept=row.is_kept,
        made_by=row.made_by or None,
    )


def message_files(files: Iterable[AttachedFile]) -> tuple[MessageFile, ...]:
    """The files of a message."""
    return tuple(
        MessageFile(id=file.file_id, name=file.name, media_type=file.media_type, size=file.size) for file in files
    )


def file_list(page: FilePage) -> FileList:
    return FileList(files=tuple(map(file_view, page.rows)), next=page.next)
