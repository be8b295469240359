"""The settings of a command, from its options and the environment. Every warning about them goes to stderr."""

import logging
import os
import sys
from collections.abc import Mapping
from typing import Final

from holdfast.app import exposures, wants_redis
from holdfast.config import Config, load

DEBUG: Final = "HOLDFAST_DEBUG"
"""Set to 1, errors come with a traceback and the log is written at its most detailed level."""

WITHOUT_REDIS: Final = (
    "There is no Redis (HOLDFAST_REDIS): processes hear of each other through the database, which takes them longer."
)

log = logging.getLogger(__name__)


def load_settings(options: Mapping[str, object]) -> Config:
    """Validate the settings of this process and print the warnings about them."""
    environ = {name: value for name, value in os.environ.items() if name != DEBUG}
    config = load(options, environ)
    for warning in (*config.warnings, *exposures(config)):
        print(f"holdfast: {warning}", file=sys.stderr)
    return config


def announce_keyed_model(config: Config) -> None:
    """Say which model a key has chosen, because its calls cost money."""
    if config.keyed_model is not None:
        print(f"holdfast: {config.keyed_model.explain()}", file=sys.stderr)


def warn_without_redis(config: Config) -> None:
    """Warn that a cluster without Redis works, but passes hints more slowly."""
    if wants_redis(config):
        log.warning("%s", WITHOUT_REDIS)
        print(f"holdfast: {WITHOUT_REDIS}", file=sys.stderr)
