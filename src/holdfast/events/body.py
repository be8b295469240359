"""What every durable event has in common: it is frozen, and its JSON says its type and is in camel case. Events hold no
cycles, and there are many of them: the garbage collector passes them over."""

import msgspec


class Body(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    gc=False,
):
    """The part of an event that differs from type to type."""
