"""`holdfast whoami`: the caller as a server or a database knows them, and what they use."""

import msgspec

from holdfast.cli.escapes import visible
from holdfast.cli.session_lines import when
from holdfast.cli.target import Target, open_home
from holdfast.protocol.identity import IdentityView, Quota


async def show_identity(target: Target, *, as_json: bool) -> None:
    async with open_home(target) as home:
        found = await home.identity()
    print(msgspec.json.encode(found).decode() if as_json else "\n".join(_lines(found)))


def _lines(found: IdentityView) -> list[str]:
    key = f", key {visible(found.key_id)}" if found.key_id else ""
    end = f", until {when(found.expires_at)}" if found.expires_at is not None else ""
    usage = found.usage
    return [
        f"{visible(found.owner)} ({found.role}{key}{end})",
        f"sessions         {_shown(usage.sessions)}",
        f"bytes stored     {_shown(usage.stored_bytes)}",
        f"turns running    {_shown(usage.running_turns)}",
        f"turns in flight  {_shown(usage.turns_in_flight)}",
        f"streams open     {_shown(usage.streams)}",
    ]


def _shown(quota: Quota) -> str:
    return f"{quota.used:,} of {quota.limit:,}" if quota.limit is not None else f"{quota.used:,}"
