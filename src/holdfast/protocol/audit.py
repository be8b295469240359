"""The audit log as admins read it."""

import msgspec


class AuditActor(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    """`key`, `token` (a JWT), `start_token`, `operator` (a command at the database) or `program`."""
    id: str
    """The id of the key, the subject of the JWT, or the user of the operating system; never a secret."""
    owner: str
    role: str
    address: str
    """The address of the connection: with a proxy in between, the proxy's."""


class AuditEntryView(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """Later acts have higher numbers. A number may be missing."""
    at: int
    """Milliseconds since 1970."""
    actor: AuditActor
    action: str
    owner: str
    """The owner of the target."""
    target: str
    result: str
    """`done` or `denied`."""
    detail: str


class AuditLog(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the audit log, in the order of the acts."""

    entries: tuple[AuditEntryView, ...]
    next: int
    """Pass it as `after` to go on: later, and for ever, too. No entry is missed."""
    head: int
    """The highest number so far."""
