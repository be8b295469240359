"""The environment of commands and of the supervisor: a few harmless variables, plus those requested for a command.

The supervisor's is restricted too, because a command may read the environment of any process of its user.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

ALLOWED: Final = frozenset(
    {"PATH", "HOME", "LANG", "LANGUAGE", "TERM", "TMPDIR", "USER", "LOGNAME", "SHELL", "TZ", "XDG_RUNTIME_DIR"}
)


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name in ALLOWED or name.startswith("LC_")}


def for_supervisor(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the supervisor's environment. The supervisor must find the same packages as this process does, however it
    found them."""
    places = [os.path.abspath(place) for place in sys.path if place]
    return allowed(environment) | {"PYTHONPATH": os.pathsep.join(places)}
