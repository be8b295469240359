"""Permission rules that people granted beyond one session, as rows."""

from collections.abc import Sequence

from holdfast.events.ids import Owner
from holdfast.store.grants import Grant, GrantOrigin, TooManyGrants, admit_grants
from holdfast.store.postgres.connections import Link


async def grant(
    db: Link, owner: Owner, place: str, rules: Sequence[str], origin: GrantOrigin
) -> tuple[TooManyGrants | None, str | None]:
    await db.rows("lock_owners", [owner])
    new = admit_grants(await grants(db, owner), place, rules, origin)
    if isinstance(new, TooManyGrants):
        return new, None
    await add(db, owner, new)
    return None, "rules" if new else None


async def add(db: Link, owner: Owner, new: Sequence[Grant]) -> None:
    """Store grants of one place and one origin."""
    if new:
        await db.run("grant", owner, new[0].place, [added.rule for added in new], *new[0].origin)


async def granted(db: Link, owner: Owner, place: str) -> tuple[str, ...]:
    return tuple(rule for (rule,) in await db.rows("granted", owner, place))


async def grants(db: Link, owner: Owner) -> tuple[Grant, ...]:
    rows = await db.rows("grants", owner)
    return tuple(Grant(place=place, rule=rule, origin=GrantOrigin(*origin)) for place, rule, *origin in rows)


async def revoke(db: Link, owner: Owner, place: str, rule: str) -> tuple[bool, str | None]:
    is_gone = await db.run("revoke_grant", owner, place, rule) > 0
    return is_gone, "rule" if is_gone else None
