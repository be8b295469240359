"""The intervals and limits of a worker."""

import msgspec


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often a worker renews, claims and polls, how long its leases last, and how many sessions it holds."""

    lease_ttl_seconds: float = 15.0
    renew_every_seconds: float = 4.0
    lease_margin_seconds: float = 3.0
    claim_every_seconds: float = 1.0
    listen_every_seconds: float = 0.5
    max_sessions: int = 200
