"""The audit log: what admins, keys and tokens did, and what they were refused.

It is append-only. An entry is written in the transaction of the act that it tells of: an act without an entry, or an
entry without its act, is never on disk. Only a trim, which tells of itself, removes entries: the oldest ones.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from holdfast.events import codec

ActorKind = Literal["key", "token", "start_token", "operator", "program"]
"""How the actor was identified.

- key: an API key; the id is the key's.
- token: a JWT; the id is its subject.
- start_token: the token of a local server.
- operator: a command at the database; the id is the user of the operating system.
- program: a program that embeds the runtime, or a Copilot client; the id is the user of the operating system.
"""

AuditAction = Literal[
    "key.created",
    "key.revoked",
    "session.deleted",
    "session.exported",
    "permission.granted",
    "permission.revoked",
    "budget.set",
    "budget.reset",
    "server.started",
    "admin.denied",
    "audit.trimmed",
]

AuditResult = Literal["done", "denied"]

MAX_DETAIL_CHARACTERS: Final = 2_000

TRIM_ENTRIES: Final = 10_000
"""The most entries that one transaction removes."""


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who acted. Never holds a secret."""

    kind: ActorKind
    id: str = ""
    owner: str = ""
    """The owner whose sessions the actor sees."""
    role: str = ""
    address: str = ""
    """The address of the connection: with a proxy in between, the proxy's."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One act."""

    at: int
    """Milliseconds since 1970."""
    actor: Actor
    action: AuditAction
    owner: str = ""
    """The owner of the target."""
    target: str = ""
    """What the act was about: the id of a key or a session, a directory, a route."""
    result: AuditResult = "done"
    detail: str = ""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An entry with its number. Later acts have higher numbers; a number may be missing."""

    number: int
    entry: AuditEntry


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some entries in the order of their numbers."""

    records: tuple[AuditRecord, ...]
    head: int
    """The highest number so far. No entry up to it will appear later: a reader that has read up to a number has missed
    none below it."""


def audit_entry(
    at: int,
    actor: Actor,
    action: AuditAction,
    *,
    owner: str = "",
    target: str = "",
    result: AuditResult = "done",
    detail: str = "",
) -> AuditEntry:
    """An entry that every store can keep: its texts are bounded, and can be encoded."""
    if len(detail) > MAX_DETAIL_CHARACTERS:
        detail = f"{detail[: MAX_DETAIL_CHARACTERS - 1]}…"
    clean = codec.without_surrogates
    return AuditEntry(
        at=at, actor=actor, action=action, owner=owner, target=clean(target), result=result, detail=clean(detail)
    )


def columns(entry: AuditEntry) -> tuple[int | str, ...]:
    """The columns of an entry's row, after its number."""
    actor = entry.actor
    who = (actor.kind, actor.id, actor.owner, actor.role, actor.address)
    return (entry.at, *who, entry.action, entry.owner, entry.target, entry.result, entry.detail)


def record_of(row: Sequence[object]) -> AuditRecord:
    """The record of a row: its number, and the columns of its entry."""
    number, at, kind, id, actor_owner, role, address, action, owner, target, result, detail = row
    return msgspec.convert(
        {
            "number": number,
            "entry": {
                "at": at,
                "actor": {"kind": kind, "id": id, "owner": actor_owner, "role": role, "address": address},
                "action": action,
                "owner": owner,
                "target": target,
                "result": result,
                "detail": detail,
            },
        },
        AuditRecord,
    )
