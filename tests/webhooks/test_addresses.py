"""The receivers that a server reaches: public ones, and those that its operator names; whatever a name says later."""

import asyncio
import socket
from typing import Any

import pytest

from holdfast.webhooks.addresses import ReceiverRefused, ReceiverRules, address_of, is_public, is_receiver
from holdfast.webhooks.receivers import HttpReceivers
from tests.client.way import http
from tests.webhooks.receiver import Receiver

NOT_PUBLIC = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "0.1.2.3",
    "10.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "2001:db8::1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2001:0:0:0:0:0:80ff:fffe",
]

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "172.32.0.1",
    "93.184.216.34",
    "2606:4700:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not is_public(address_of(address))
    bracketed = f"[{address.partition('%')[0]}]" if ":" in address else address
    with pytest.raises(ReceiverRefused):
        ReceiverRules().check_url(f"https://{bracketed}/hook")


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_public(address_of(address))
    ReceiverRules().check_url(f"https://{f'[{address}]' if ':' in address else address}:8443/hook?a=b")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "//example.org/a",
        "ftp://example.org/",
        "file:///etc/passwd",
        "http://example.org/",
        "https://",
        "https://:443/",
        "https://example.org:0/",
        "https://example.org:99999/",
        "https://user@example.org/",
        "https://user:secret@example.org/",
        "https://example.org/#part",
        "https://example.org\\@127.0.0.1/",
        "https://exa mple.org/",
        "https://example.org/\r\nx: y",
        "https://example.org/é",
        "https://[::1",
        "https://example.org/" + "a" * 2_000,
    ],
)
def test_urls_that_are_no_receivers_are_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ReceiverRefused) as refused:
        ReceiverRules(["127.0.0.1"]).check_url(url)
    assert "secret" not in str(refused.value)


def test_an_operator_allows_private_names_addresses_and_networks_also_without_https() -> None:
    rules = ReceiverRules(["hooks.Internal", "10.0.0.7", "192.168.0.0/16", "fd00::/8"])
    for url in (
        "http://HOOKS.internal./x",
        "https://hooks.internal/x",
        "http://10.0.0.7:81/",
        "http://192.168.3.4",
        "http://[fd00::1]/",
    ):
        rules.check_url(url)
    for url in ("http://other.internal/", "http://10.0.0.8/", "https://10.0.0.8/", "http://8.8.8.8/"):
        with pytest.raises(ReceiverRefused):
            rules.check_url(url)
    assert rules.allows("hooks.internal", address_of("10.9.9.9"))
    assert not rules.allows("other.internal", address_of("10.9.9.9"))
    assert rules.allows("other.internal", address_of("10.0.0.7"))


@pytest.mark.parametrize(
    "text", ["hooks.internal", "localhost", "a_b-c.d", "10.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"]
)
def test_a_setting_may_name_hosts_addresses_and_networks(text: str) -> None:
    assert is_receiver(text)


@pytest.mark.parametrize("text", ["", "http://a", "a b", "a..b", "10.0.0.0/99", "*", "a/b", "x" * 64])
def test_a_setting_that_names_no_host_is_refused(text: str) -> None:
    assert not is_receiver(text)


# Connections


async def test_a_name_is_checked_by_the_addresses_that_it_has() -> None:
    async with Receiver() as receiver:
        url = f"https://localhost:{receiver.port}/"
        ReceiverRules().check_url(url)
        answer = await HttpReceivers(ReceiverRules()).post(url, {}, b"{}")
        assert (answer.status, answer.fault) == (None, "address_refused")
        assert receiver.connections == 0


async def test_the_connection_goes_to_the_checked_address_and_the_name_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name is a public address first, and this machine's ever after: a rebinding of the name."""
    asked: list[Any] = []
    answers = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]

    def look_up(host: Any, port: Any, *more: Any, **named: Any) -> list[Any]:
        asked.append(host)
        address = (answers[min(len(asked), len(answers)) - 1], port)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)]

    async with Receiver() as receiver:
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        receivers = HttpReceivers(ReceiverRules(["rebound.example"]))
        answer = await receivers.post(f"http://rebound.example:{receiver.port}/x", {"webhook-id": "1"}, b"{}")
        assert (answer.status, answer.fault) == (204, None)
        assert asked == ["rebound.example"]
        assert receiver.received[0].headers["host"] == f"rebound.example:{receiver.port}"


async def test_of_several_addresses_only_allowed_ones_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: Any, port: Any, *more: Any, **named: Any) -> list[Any]:
        found = ("127.0.0.2", "169.254.169.254", "127.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)) for address in found]

    async with Receiver() as receiver:
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        found = await HttpReceivers(ReceiverRules(["127.0.0.1"]))._addresses("mixed.example", receiver.port)
        assert [each["host"] for each in found] == ["127.0.0.1"]


async def test_what_a_receiver_may_do_wrong_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    receivers = HttpReceivers(ReceiverRules(["127.0.0.1"]))

    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http("200 OK", b""))
        writer.close()

    async with await asyncio.start_server(tell, "127.0.0.1", 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        assert (await receivers.post(f"https://127.0.0.1:{port}/", {}, b"{}")).fault == "tls_failed"
    async with Receiver() as receiver:
        pass
    assert (await receivers.post(receiver.url, {}, b"{}")).fault == "unreachable"
    async with Receiver(more="x: " + "y" * 100_000 + "\r\n") as receiver:
        assert (await receivers.post(receiver.url, {}, b"{}")).fault == "unreachable"

    def unknown(*given: Any, **named: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "no")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert (await receivers.post("https://nowhere.example/", {}, b"{}")).fault == "no_such_host"


async def test_neither_a_proxy_nor_a_netrc_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Receiver() as proxy, Receiver() as receiver:
        monkeypatch.setenv("http_proxy", proxy.url)
        answer = await HttpReceivers(ReceiverRules(["127.0.0.1"])).post(receiver.url, {}, b"{}")
        assert answer.fault is None
        assert (proxy.connections, receiver.connections) == (0, 1)
