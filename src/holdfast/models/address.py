"""Checks the base URL of an API, gives its host for messages, and says whether it is a private one."""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from holdfast.models.errors import BadBaseUrl

_PRIVATE_ENDINGS: Final = (".local", ".localhost", ".internal")


def host_of(base_url: str) -> str:
    """The host (and port) of a base URL. Raises `BadBaseUrl`, which does not repeat the URL: it may hold a password."""
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host or not base_url.isprintable() or " " in base_url:
        raise BadBaseUrl("it must look like http://127.0.0.1:11434/v1 or https://api.openai.com/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadBaseUrl("it must have no user name, password, query or fragment")
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def is_private(base_url: str) -> bool:
    """Whether a checked base URL is on this machine or in a private network, where no public provider is."""
    host = urlsplit(base_url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith(_PRIVATE_ENDINGS)
