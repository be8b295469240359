"""Command lines to tell people, with the options that they need to reach the same sessions and the same model. A key is
never repeated: it is left for them to fill in."""

import shlex
from collections.abc import Mapping
from typing import Final

from holdfast.config import is_postgres, without_password

RUNS_TURNS: Final = frozenset({"chat", "run", "approve", "deny", "answer"})


class Hints:
    """Knows which options this command was given, and repeats those that the next one needs too."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = options

    def command(self, *words: str) -> str:
        # The session knows its model, but not where that is. Nor what its commands are to run inside of.
        runs = words[0] in RUNS_TURNS
        if self._options.get("url"):
            key = ("--key", "KEY") if self._options.get("key") else ()
            return shlex.join(["holdfast", *words, "--url", str(self._options["url"]), *key])
        needed = ("database", "data_dir", *(("model_base_url", "sandbox_network") if runs else ()))
        given = [(f"--{name.replace('_', '-')}", _shown(self._options.get(name))) for name in needed]
        flags = ("--sandbox",) if runs and self._options.get("sandbox") == "bubblewrap" else ()
        return shlex.join(["holdfast", *words, *flags, *(part for pair in given if pair[1] for part in map(str, pair))])


def _shown(value: object) -> object:
    """A password in a URL is left for them to fill in, as a key is."""
    return without_password(value) if isinstance(value, str) and is_postgres(value) else value
