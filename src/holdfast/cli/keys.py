"""`holdfast keys`: the API keys of the HTTP server. A key is shown once, when it is made."""

import sys
from typing import cast, get_args

import msgspec

from holdfast.app import Runtime, local_actor
from holdfast.cli.errors import Refusal
from holdfast.cli.escapes import visible
from holdfast.cli.runtime import open_runtime
from holdfast.cli.session_lines import when
from holdfast.config import Config
from holdfast.protocol.identity import Role
from holdfast.server.http.keys import KeyRing
from holdfast.store.keys import KeyRow


async def create_key(config: Config, *, name: str, role: Role, owner: str | None, as_json: bool) -> None:
    """Make a key. It goes to stdout alone, so that a script can capture it; the sentence about it goes to stderr."""
    async with open_runtime(config, work=False) as runtime:
        made = await _ring(runtime).create(name=name, role=role, owner=owner if owner is not None else config.owner)
    if as_json:
        print(msgspec.json.encode({**_shown(made.row), "key": made.key}).decode())
        return
    print(made.key)
    about = f"Key {made.row.key_id} for the {made.row.role} {visible(made.row.owner)}."
    print(f"{about} It is stored nowhere and not shown again: keep it.", file=sys.stderr)


def checked_role(given: str) -> Role:
    for role in get_args(Role):
        if given == role:
            return cast(Role, role)
    raise Refusal("role_invalid", f"{given!r} is not a role. Allowed: user or admin.")


async def list_keys(config: Config, *, as_json: bool) -> None:
    async with open_runtime(config, work=False) as runtime:
        rows = await _ring(runtime).all()
    for row in rows:
        if as_json:
            print(msgspec.json.encode(_shown(row)).decode())
        else:
            print(_line(row))
    if not rows and not as_json:
        print("There are no keys. Make one with `holdfast keys create --name NAME`.")


async def revoke_key(config: Config, key_id: str) -> None:
    async with open_runtime(config, work=False) as runtime:
        await _ring(runtime).revoke(key_id)
    print(f"Key {key_id} is revoked. Servers refuse it within a second.")


def _ring(runtime: Runtime) -> KeyRing:
    return KeyRing(runtime.store, runtime.clock, local_actor(runtime.config, "command"))


def _line(row: KeyRow) -> str:
    state = "revoked" if row.revoked_at is not None else "valid"
    return f"{row.key_id}  {row.role:5}  {state:7}  {when(row.created_at)}  {visible(row.owner)}  {visible(row.name)}"


def _shown(row: KeyRow) -> dict[str, object]:
    return {
        "id": row.key_id,
        "name": row.name,
        "owner": row.owner,
        "role": row.role,
        "created_at": row.created_at,
        "revoked_at": row.revoked_at,
    }
