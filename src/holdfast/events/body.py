"""The base of every durable event: frozen, with JSON in camel case that carries a type tag.

Events hold no reference cycles and there are many of them, so the garbage collector does not track them.
"""

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
