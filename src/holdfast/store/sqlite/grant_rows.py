"""Permission rules that people granted beyond one session, as rows."""

import sqlite3
from collections.abc import Iterable, Sequence

from holdfast.events.ids import Owner
from holdfast.store.grants import Grant, GrantOrigin, TooManyGrants, admit_grants
from holdfast.store.sqlite.queries import SQL


def grant(
    db: sqlite3.Connection, owner: Owner, place: str, rules: Sequence[str], origin: GrantOrigin
) -> tuple[TooManyGrants | None, str | None]:
    new = admit_grants(grants(db, owner), place, rules, origin)
    if isinstance(new, TooManyGrants):
        return new, None
    add(db, owner, new)
    return None, "rules" if new else None


def add(db: sqlite3.Connection, owner: Owner, new: Iterable[Grant]) -> None:
    for added in new:
        db.execute(SQL["grant"], (owner, added.place, added.rule, *added.origin))


def granted(db: sqlite3.Connection, owner: Owner, place: str) -> tuple[str, ...]:
    return tuple(rule for (rule,) in db.execute(SQL["granted"], (owner, place)))


def grants(db: sqlite3.Connection, owner: Owner) -> tuple[Grant, ...]:
    rows = db.execute(SQL["grants"], (owner,))
    return tuple(Grant(place=place, rule=rule, origin=GrantOrigin(*origin)) for place, rule, *origin in rows)


def revoke(db: sqlite3.Connection, owner: Owner, place: str, rule: str) -> tuple[bool, str | None]:
    is_gone = db.execute(SQL["revoke_grant"], (owner, place, rule)).rowcount > 0
    return is_gone, "rule" if is_gone else None
