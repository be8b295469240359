"""Entries of the audit log as admins read them."""

import msgspec

from holdfast.protocol.audit import AuditEntryView
from holdfast.store.audit import AuditRecord


def audit_view(record: AuditRecord) -> AuditEntryView:
    entry = msgspec.structs.asdict(record.entry)
    return msgspec.convert({"number": record.number, **entry}, AuditEntryView, from_attributes=True)
