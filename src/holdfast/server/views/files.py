"""Files as clients see them."""

from holdfast.protocol.file import FileList, FileView
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


def file_list(page: FilePage) -> FileList:
    return FileList(files=tuple(map(file_view, page.rows)), next=page.next)
