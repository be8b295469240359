"""The result of one check of `holdfast doctor`."""

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check. `advice` says what to do if it failed."""

    name: str
    ok: bool
    found: str
    advice: str = ""
