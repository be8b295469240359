"""The audit log, for admins: page by page, or as one document with an entry to a line."""

from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from holdfast.protocol.audit import AuditLog
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response
from holdfast.server.views.audit import audit_view
from holdfast.store.store import Store

PAGE: Final = 1_000


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=0, le=1 << 62)] = 0
    """Only entries with higher numbers."""
    last: Annotated[int, Meta(ge=1, le=PAGE)] | None = None
    """Only the latest so many entries."""
    limit: Annotated[int, Meta(ge=1, le=PAGE)] = 200
    """Of a page; a document has all entries."""
    format: Literal["json", "jsonl"] = "json"


@endpoint(
    "GET", "/v1/audit", summary="The audit log; for admins", query=AuditQuery, result=AuditLog, also="application/jsonl"
)
async def show(call: HttpCall) -> Response:
    await call.check_admin("The audit log is for admins.")
    query, store = call.query(AuditQuery), call.operations.store
    after = query.after
    if query.last is not None:
        after = max(after, (await store.audit_log(limit=1)).head - query.last)
    if query.format == "jsonl":
        headers = {"content-disposition": 'attachment; filename="audit.jsonl"'}
        return StreamingResponse(_lines(store, after), 200, headers, media_type="application/jsonl")
    page = await store.audit_log(after=after, limit=query.limit)
    last = page.records[-1].number if page.records else after
    return json_response(AuditLog(entries=tuple(map(audit_view, page.records)), next=last, head=page.head))


async def _lines(store: Store, after: int) -> AsyncIterator[bytes]:
    """Every entry up to now."""
    head: int | None = None
    while head is None or after < head:
        page = await store.audit_log(after=after, limit=PAGE)
        head = page.head if head is None else head
        found = [record for record in page.records if record.number <= head]
        if not found:
            return
        yield b"".join(msgspec.json.encode(audit_view(record)) + b"\n" for record in found)
        after = found[-1].number
