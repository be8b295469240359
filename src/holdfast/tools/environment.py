"""Which variables hold secrets, by their names: what no result may show, since it could answer for a person, or spend
on a model. Commands are given none of them, whatever they are called: they get a few harmless variables, and those that
were named for them.
"""

from typing import Final

NAMES: Final = frozenset(
    {
        "ANTHROPIC_AUTH_TOKEN",
        "GH_ENTERPRISE_TOKEN",
        "GH_TOKEN",
        "GITHUB_ENTERPRISE_TOKEN",
        "GITHUB_TOKEN",
        # URLs, which may hold a password.
        "HOLDFAST_DATABASE",
        "HOLDFAST_REDIS",
    }
)

OURS: Final = ("HOLDFAST_", "COPILOT_")

ENDINGS: Final = ("_KEY", "_PASSWORD", "_SECRET", "_TOKEN")


def is_secret(name: str) -> bool:
    """Keys and tokens. Other settings are none: a data directory, say, stands in the paths that results name."""
    return (
        name in NAMES or name.endswith(("_API_KEY", "_API_TOKEN")) or (name.startswith(OURS) and name.endswith(ENDINGS))
    )
