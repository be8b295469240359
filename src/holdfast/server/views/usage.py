"""What an owner uses of each quota, as clients see it."""

from holdfast.events.ids import Owner
from holdfast.protocol.identity import OwnerUsage, Quota
from holdfast.store.store import Store

NO_STREAMS = Quota(used=0, limit=None)
"""In a process that serves none."""


async def usage_view(store: Store, owner: Owner, *, streams: Quota = NO_STREAMS) -> OwnerUsage:
    limits = store.limits
    stored, turns = await store.stored(owner), await store.turns(owner)
    has_quota = owner not in limits.unlimited
    return OwnerUsage(
        sessions=Quota(used=stored.sessions, limit=limits.sessions if has_quota else None),
        stored_bytes=Quota(used=stored.stored_bytes, limit=limits.stored_bytes if has_quota else None),
        running_turns=Quota(used=turns.running, limit=limits.running_of(owner)),
        turns_in_flight=Quota(used=turns.in_flight, limit=limits.in_flight_of(owner)),
        streams=streams,
    )
