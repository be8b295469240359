"""The bounds of a role: how much of a session a caller with that role may use."""

import msgspec


class RoleBounds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The folders, tools, models, rules and providers that one role may use. None allows any.

    A message keeps the bounds of its sender: the session may have more by the time that the message is promoted."""

    folders: tuple[str, ...] | None = None
    """Real paths in which, and below which, the session may work."""
    tools: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    """Names, or patterns such as `openrouter/*`."""
    default_model: str = ""
    """Used in place of a model that the role may not choose. Every role may use it."""
    rules: tuple[str, ...] | None = None
    """Permission rules that the role may grant. A rule without a pattern covers the rules of its name that stay inside
    the working directory."""
    providers: bool = True
    """Whether the session may have its own provider: a URL that the server then calls."""
