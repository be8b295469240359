"""Recognises variables that hold secrets by their names. No result may show such values: they could answer for a
person, or spend money on a model. Commands get none of them, whatever their names: only a few harmless variables and
those configured for commands."""

from typing import Final

NAMES: Final = frozenset(
    {
        "ANTHROPIC_AUTH_TOKEN",
        "GH_ENTERPRISE_TOKEN",
        "GH_TOKEN",
        "GITHUB_ENTERPRISE_TOKEN",
        "GITHUB_TOKEN",
        # URLs that may contain a password.
        "HOLDFAST_DATABASE",
        "HOLDFAST_REDIS",
    }
)

OURS: Final = ("HOLDFAST_", "COPILOT_")

ENDINGS: Final = ("_KEY", "_PASSWORD", "_SECRET", "_TOKEN")


def is_secret(name: str) -> bool:
    """Whether a variable is a key or token. Other settings are not: a data directory, for example, occurs in the paths
    that results name."""
    return (
        name in NAMES or name.endswith(("_API_KEY", "_API_TOKEN")) or (name.startswith(OURS) and name.endswith(ENDINGS))
    )
