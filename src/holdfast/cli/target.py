"""The target of a command: the sessions of a database on this machine, or those of a server."""

import math
import os
import platform
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from holdfast.cli.errors import Refusal
from holdfast.cli.hints import Hints
from holdfast.cli.runtime import open_runtime
from holdfast.cli.settings import load_settings
from holdfast.cli.setup import Folder
from holdfast.client.address import parse_url
from holdfast.config import Config, Secret
from holdfast.protocol.home import Home

URL_VARIABLE: Final = "HOLDFAST_URL"
KEY_VARIABLE: Final = "HOLDFAST_KEY"

LOCAL_OPTIONS: Final = ("database", "data_dir", "model_base_url", "sandbox", "sandbox_network")
"""Options for a runtime in this process. A server has settings of its own."""

AWAY_SECONDS: Final = 300.0
"""How long a command that no one watches waits for a server that is away: it may be restarting."""

WATCHED_PATIENCE_SECONDS: Final = 15.0
"""How long a request may be repeated before a person at a terminal gets an error, and their text back."""

MAX_MARK_CHARACTERS: Final = 500


class TargetServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and the key for it."""

    url: str
    key: Secret | None
    is_own: bool
    """This user started it on this machine, as far as a local address and the lack of a key can tell. Then a folder
    here is the same folder there."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions that a command is about, and the hints that lead to them again."""

    config: Config
    hints: Hints
    server: TargetServer | None = None
    """None: the sessions are in the configured database."""


def find_target(
    options: Mapping[str, object], *, url: str | None, key: str | None, environ: Mapping[str, str] = os.environ
) -> Target:
    """The target that the options name, or else the environment. Options that exclude each other are refused."""
    named = url or environ.get(URL_VARIABLE, "").strip()
    if not named:
        if key:
            raise Refusal("option_not_usable", f"--key is for a server: name it with --url or {URL_VARIABLE}.")
        return Target(config=load_settings(options), hints=Hints(options))
    _refuse_local_options(options, "--url" if url else URL_VARIABLE)
    address, token = parse_url(named)
    given_key = key or environ.get(KEY_VARIABLE, "").strip()
    server = TargetServer(
        url=address.url,
        key=Secret(given_key) if given_key else token,
        is_own=address.is_local and not given_key,
    )
    hints = Hints({**options, "url": server.url if url else None, "key": key is not None})
    return Target(config=load_settings({}), hints=hints, server=server)


def _refuse_local_options(options: Mapping[str, object], source: str) -> None:
    given = [f"--{name.replace('_', '-')}" for name in LOCAL_OPTIONS if options.get(name) is not None]
    if given:
        raise Refusal(
            "option_not_usable",
            f"{' and '.join(given)} can't be used with {source}: the server has its own settings. Leave one of them "
            "out.",
        )


@asynccontextmanager
async def open_home(
    target: Target, *, work: bool = False, grace_seconds: float = 0, is_watched: bool = False
) -> AsyncIterator[Home]:
    """Open the home of the target's sessions. With `work`, the sessions of a database also run in this process.

    `is_watched`: a person at a terminal reads for as long as they like while a server is away, but a line that they
    type is soon refused and given back.
    """
    if target.server is None:
        async with open_runtime(target.config, work=work, grace_seconds=grace_seconds) as runtime:
            yield runtime
        return
    from holdfast.client.server import PATIENCE_SECONDS, connect  # deferred: HTTP takes a while to import

    patience_seconds = WATCHED_PATIENCE_SECONDS if is_watched else PATIENCE_SECONDS
    async with connect(
        target.server.url,
        target.server.key,
        patience_seconds=patience_seconds,
        stream_patience_seconds=math.inf if is_watched else AWAY_SECONDS,
    ) as server:
        yield server


def find_folder(target: Target, given: str | None) -> Folder:
    """The working directory for new sessions, and the mark by which sessions started from here are found again."""
    server = target.server
    if server is None or server.is_own:
        return Folder(directory=_existing_folder(given or "."))
    if given is None:
        return Folder(directory=None, mark=f"{platform.node()}:{Path.cwd()}"[-MAX_MARK_CHARACTERS:])
    if not os.path.isabs(given):
        message = f"--dir names a folder of the server at {server.url}: give its whole path, which begins with a slash."
        raise Refusal("folder_not_absolute", message)
    return Folder(directory=given)


def _existing_folder(given: str) -> str:
    """The resolved path of a folder, so that one folder always has the same name."""
    folder = Path(given).expanduser().resolve()
    if not folder.is_dir():
        raise Refusal("folder_not_found", f"{folder} is not a folder. Name one that exists with --dir.")
    return str(folder)
