"""Command lines to suggest to people, with the options that reach the same sessions and the same model. Keys and
passwords are left out, for people to fill in."""

import shlex
from collections.abc import Mapping
from typing import Final

from holdfast.config import is_postgres, without_password

RUNS_TURNS: Final = frozenset({"chat", "run", "approve", "deny", "answer"})


class Hints:
    """Suggests commands that repeat the options of this one where they are needed."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = options

    def command(self, *words: str) -> str:
        # A session knows the name of its model, but neither the URL of the model's API nor the sandbox of its commands.
        runs = words[0] in RUNS_TURNS
        if self._options.get("url"):
            key = ("--key", "KEY") if self._options.get("key") else ()
            return shlex.join(["holdfast", *words, "--url", str(self._options["url"]), *key])
        model = ("model",) if self._needs_model() else ()
        needed = ("database", "data_dir", *((*model, "model_base_url", "sandbox_network") if runs else ()))
        given = [(f"--{name.replace('_', '-')}", _shown(self._options.get(name))) for name in needed]
        flags = ("--sandbox",) if runs and self._options.get("sandbox") == "bubblewrap" else ()
        return shlex.join(["holdfast", *words, *flags, *(part for pair in given if pair[1] for part in map(str, pair))])

    def _needs_model(self) -> bool:
        """Whether the URL is for a provider that it would not be used for without the model's name."""
        model = str(self._options.get("model") or "openai/")
        return bool(self._options.get("model_base_url")) and not model.startswith("openai/")


def _shown(value: object) -> object:
    """The value of an option, without the password of a URL."""
    return without_password(value) if isinstance(value, str) and is_postgres(value) else value
