"""`holdfast permissions`: the permissions granted for always or for one session, listed and revoked."""

import msgspec

from holdfast.cli.errors import Refusal
from holdfast.cli.escapes import visible
from holdfast.cli.lookup import check_prefix, find_session, only_match
from holdfast.cli.request_lines import short
from holdfast.cli.session_lines import when
from holdfast.cli.target import Target, open_home
from holdfast.protocol.home import AnySession, Home
from holdfast.protocol.permission import Permission, PermissionOrigin


async def list_permissions(target: Target, session: str | None, *, as_json: bool) -> None:
    async with open_home(target) as home:
        found = await (await _place_of(home, session)).permissions()
    for permission in found:
        print(msgspec.json.encode(permission).decode() if as_json else "\n".join(_lines(permission)))
    if not found and not as_json:
        print("This session may do nothing without asking." if session else "Nothing is allowed for always.")


async def revoke_permission(target: Target, wanted: str, session: str | None) -> None:
    async with open_home(target) as home:
        place = await _place_of(home, session)
        found = await _find(place, wanted, in_session=session is not None)
        revoked = await place.revoke_permission(found.id)
    print(f"Revoked: {visible(revoked.rule)} {_place(revoked)}. The next such call asks again.")


async def _place_of(home: Home, wanted: str | None) -> Home | AnySession:
    """The session whose permissions are meant, or the home for those that are granted for always."""
    return home if wanted is None else home.open((await find_session(home, wanted)).id)


async def _find(place: Home | AnySession, wanted: str, *, in_session: bool) -> Permission:
    """The only permission whose id begins with this."""
    check_prefix("permission", wanted)
    known = [permission for permission in await place.permissions() if permission.id.startswith(wanted)]
    advice = "`holdfast permissions list` shows them, and with --session those of a session."
    found = only_match("permission", wanted, known, advice=advice)
    if in_session and found.scope != "session":
        raise Refusal(
            "permission_not_of_session",
            f"{wanted} holds {_place(found)}, not only in this session. Leave out --session to revoke it.",
        )
    return found


def _lines(permission: Permission) -> list[str]:
    first = f"{permission.id}  {visible(permission.rule)}  {_place(permission)}"
    return [first, *(f"  granted {_origin(origin)}" for origin in permission.origins)]


def _place(permission: Permission) -> str:
    if permission.scope == "everywhere":
        return "everywhere"
    if permission.scope == "session":
        return f"in session {short(permission.session_id or '')}"
    return f"in {visible(permission.directory or '', keep='')}"


def _origin(origin: PermissionOrigin) -> str:
    at = when(origin.granted_at) if origin.granted_at is not None else "at an unknown time"
    by = f" by {visible(origin.granted_by, keep='')}" if origin.granted_by else ""
    session = f" in session {short(origin.session_id)}" if origin.session_id else ""
    return f"{at}{by}{session}"
