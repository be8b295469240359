"""What a program that a tool starts finds in its environment: all of ours but the secrets.

A command must not be able to answer for a person, or to spend on a model, with what it finds there. Left out are
Holdfast's own settings (`HOLDFAST_*`), every `*_API_KEY` and `*_API_TOKEN`, the tokens of the Copilot client
(`COPILOT_*_TOKEN`, `COPILOT_*_KEY`) and those for GitHub and for providers that are named otherwise (`NAMES`).
"""

from collections.abc import Mapping

NAMES = frozenset(
    {
        "ANTHROPIC_AUTH_TOKEN",
        "GH_ENTERPRISE_TOKEN",
        "GH_TOKEN",
        "GITHUB_ENTERPRISE_TOKEN",
        "GITHUB_TOKEN",
    }
)


def is_secret(name: str) -> bool:
    return (
        name in NAMES
        or name.startswith("HOLDFAST_")
        or name.endswith(("_API_KEY", "_API_TOKEN"))
        or (name.startswith("COPILOT_") and name.endswith(("_TOKEN", "_KEY")))
    )


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not is_secret(name)}
