"""Which sessions a command is about: those in a database of this machine, or those on a server."""

import math
import os
import platform
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from holdfast.cli.embedded import EmbeddedHome
from holdfast.cli.errors import Refusal
from holdfast.cli.home import Folder, Home
from holdfast.cli.opening import checked_folder, opened, settings
from holdfast.client.address import parse_url
from holdfast.config import Config, Secret

URL_VARIABLE: Final = "HOLDFAST_URL"
KEY_VARIABLE: Final = "HOLDFAST_KEY"

ONLY_HERE: Final = ("database", "data_dir", "model_base_url", "sandbox", "sandbox_network")
"""Options about a runtime in this process: a server has its own."""

AWAY_SECONDS: Final = 300.0
"""For how long a server may be away from a command that nobody watches: it may be starting again."""

SOON_SECONDS: Final = 15.0

MAX_MARK_CHARACTERS: Final = 500


class ServerAt(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and what is shown to it."""

    url: str
    key: Secret | None
    is_own: bool
    """A server that this user started on this machine for themselves, as far as its address and the lack of a key
    tell: then folders here are folders there."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    config: Config
    server: ServerAt | None = None


def find_where(
    options: dict[str, object], url: str | None, key: str | None, environ: Mapping[str, str] = os.environ
) -> Where:
    """By the options, and by the environment where they say nothing. What does not go together is refused."""
    named = url or environ.get(URL_VARIABLE, "").strip()
    if not named:
        if key:
            raise Refusal("option_not_usable", f"--key is for a server: name it with --url or {URL_VARIABLE}.")
        return Where(config=settings(options))
    _refuse_what_is_only_here(options, "--url" if url else URL_VARIABLE)
    address, token = parse_url(named)
    given = key or environ.get(KEY_VARIABLE, "").strip()
    shown = Secret(given) if given else token
    server = ServerAt(url=address.url, key=shown, is_own=address.is_local and not given)
    return Where(config=settings({}), server=server)


def _refuse_what_is_only_here(options: Mapping[str, object], source: str) -> None:
    given = [f"--{name.replace('_', '-')}" for name in ONLY_HERE if options.get(name) is not None]
    if given:
        raise Refusal(
            "option_not_usable",
            f"{' and '.join(given)} can't be used with {source}: the server has its own settings. Leave one of them "
            "out.",
        )


@asynccontextmanager
async def at_home(
    where: Where, *, work: bool = False, grace_seconds: float = 0, is_watched: bool = False
) -> AsyncIterator[Home]:
    """The sessions that a command is about. With `work`, those of a database are run here meanwhile. Who watches waits
    for a server that is away as long as they like; but what they type is refused soon, and given back."""
    if where.server is None:
        async with opened(where.config, work=work, grace_seconds=grace_seconds) as runtime:
            yield EmbeddedHome(runtime)
        return
    from holdfast.cli.remote import RemoteHome  # deferred: HTTP takes a while to import
    from holdfast.client.server import PATIENCE_SECONDS, connect

    patience_seconds = SOON_SECONDS if is_watched else PATIENCE_SECONDS
    async with connect(where.server.url, where.server.key, patience_seconds=patience_seconds) as server:
        yield RemoteHome(server, away_seconds=math.inf if is_watched else AWAY_SECONDS)


def find_folder(where: Where, given: str | None) -> Folder:
    """The working directory of new sessions, and how to know again those that were made here."""
    server = where.server
    if server is None or server.is_own:
        return Folder(directory=str(checked_folder(given or ".")))
    if given is None:
        return Folder(directory=None, mark=f"{platform.node()}:{Path.cwd()}"[-MAX_MARK_CHARACTERS:])
    if not os.path.isabs(given):
        message = f"--dir names a folder of the server at {server.url}: give its whole path, which begins with a slash."
        raise Refusal("folder_not_absolute", message)
    return Folder(directory=given)
