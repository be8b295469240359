"""The addresses that webhooks may reach: public ones over https, and those that the operator names.

An owner chooses a URL, and this server sends the request: without these rules an owner could reach what only the
server can, such as its own ports, its network, or the metadata service of its cloud. A name is checked when it is used,
by the addresses that it has then; the connection is made to a checked address and not to the name.
"""

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_URL_CHARACTERS: Final = 2_000

_NOT_FOR_WEBHOOKS: Final = (
    ipaddress.ip_network("168.63.129.16/32"),  # Azure's own service in every virtual machine, at a public address.
    ipaddress.ip_network("192.88.99.0/24"),  # Relays of 6to4: they lead elsewhere.
)

_EMBEDDING: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
"""Networks whose last 32 bits are an IPv4 address that a gateway connects to."""


class ReceiverRefused(Exception):
    """A webhook may not have this URL. The message does not repeat it, because it may hold a secret."""


class ReceiverRules:
    """Which receivers are allowed. `private` lists names, addresses and networks that are allowed beside public ones,
    and without https."""

    def __init__(self, private: Sequence[str] = ()) -> None:
        self._names = frozenset(name for name in map(_host_name, private) if _network(name) is None)
        self._networks = [network for network in map(_network, private) if network is not None]

    def check_url(self, url: str) -> None:
        """Raise `ReceiverRefused` unless the URL looks like one of an allowed receiver. Names are not looked up."""
        if len(url) > MAX_URL_CHARACTERS:
            raise ReceiverRefused(f"The URL has more than {MAX_URL_CHARACTERS:,} characters.")
        if not url.isascii() or not url.isprintable() or any(character in url for character in ' "<>\\^`{|}'):
            raise ReceiverRefused(
                "The URL has a character that URLs don't have. Encode it as in https://example.org/a%20b."
            )
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ReceiverRefused("The URL can't be read.") from None
        if parts.scheme not in ("http", "https") or not host or port == 0:
            raise ReceiverRefused("The URL must look like https://example.org/hook.")
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise ReceiverRefused("The URL must have no user name, password or fragment.")
        self.check(parts.scheme, host)

    def check(self, scheme: str, host: str) -> None:
        """Raise `ReceiverRefused` if no address of the host would be allowed with this scheme."""
        address = _address(host)
        if address is not None and not self.allows(host, address):
            raise ReceiverRefused("The address is private or reserved, and the server does not allow it.")
        if scheme != "https" and not self._is_private_and_allowed(host, address):
            raise ReceiverRefused("The URL must begin with https://: the host is not one of HOLDFAST_WEBHOOK_HOSTS.")

    def allows(self, host: str, address: Address) -> bool:
        """Whether a connection to this address of the host is allowed."""
        return self._is_private_and_allowed(host, address) or is_public(address)

    def _is_private_and_allowed(self, host: str, address: Address | None) -> bool:
        if _host_name(host) in self._names:
            return True
        return address is not None and any(address in network for network in self._networks)


def is_public(address: Address) -> bool:
    """Whether the address, and any address that it embeds, is one of the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        embedded = _embedded(address)
        if embedded is not None:
            return is_public(embedded)
    if not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified:
        return False
    return not any(address in network for network in _NOT_FOR_WEBHOOKS)


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _EMBEDDING) or int(address) < 1 << 32:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def is_receiver(text: str) -> bool:
    """Whether a setting names a host, an address or a network."""
    if _network(text) is not None:
        return True
    labels = _host_name(text).split(".")
    return len(text) <= 253 and all(
        label and len(label) <= 63 and label.isascii() and label.replace("-", "").replace("_", "").isalnum()
        for label in labels
    )


def address_of(text: str) -> Address:
    """An address as the resolver returns it, possibly with a zone."""
    return ipaddress.ip_address(text.partition("%")[0])


def _address(host: str) -> Address | None:
    try:
        return address_of(host)
    except ValueError:
        return None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _host_name(text: str) -> str:
    return text.lower().rstrip(".")
