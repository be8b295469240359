"""`holdfast audit`: what admins, keys and tokens did."""

from typing import Final

import msgspec

from holdfast.cli.escapes import visible
from holdfast.cli.runtime import open_runtime
from holdfast.cli.session_lines import when
from holdfast.config import Config
from holdfast.protocol.audit import AuditEntryView
from holdfast.server.views.audit import audit_view

PAGE: Final = 1_000


async def show_audit(config: Config, *, after: int | None, last: int, as_json: bool) -> None:
    """Print the latest entries; or, with `after`, all with higher numbers."""
    async with open_runtime(config, work=False) as runtime:
        head = (await runtime.store.audit_log(limit=1)).head
        position = max(0, head - last) if after is None else after
        is_empty = True
        while page := (await runtime.store.audit_log(after=position, limit=PAGE)).records:
            for record in page:
                view = audit_view(record)
                print(msgspec.json.encode(view).decode() if as_json else _line(view))
            position, is_empty = page[-1].number, False
    if is_empty and not as_json:
        print("The audit log has no such entries.")


def _line(entry: AuditEntryView) -> str:
    actor = entry.actor
    start = f"{entry.number:6}  {when(entry.at)}  {entry.action:18}  {entry.result:6}  "
    who = f"{actor.kind} {visible(actor.id, keep='')}".strip()
    place = f" from {actor.address}" if actor.address else ""
    target = f"  {visible(entry.target, keep='')}" if entry.target else ""
    owner = f" of {visible(entry.owner, keep='')}" if entry.owner else ""
    detail = f"  ({visible(entry.detail, keep='')})" if entry.detail else ""
    return f"{start}{who}{place}{target}{owner}{detail}"
