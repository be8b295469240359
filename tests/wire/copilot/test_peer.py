"""One connection over real sockets: its answers, their order, and its end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast.server.copilot import peer as peer_module
from holdfast.server.copilot.peer import MAX_AT_WORK, MAX_UNSENT_BYTES, Handler, Peer, PeerGone
from tests.wire.copilot.parrot import Parrot, ParrotHandler, Served, serving
from tests.wire.copilot.raw_client import SECONDS, RawClient, Refused, framed, request


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run on both loops: embedding programs bring their own, and the runtime's processes use uvloop."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as running:
        yield running


@pytest.fixture
async def raw(served: Served) -> AsyncIterator[RawClient]:
    async with await RawClient.tcp(served.port) as client:
        yield client


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that holds within a few iterations of the loop."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


# Being asked


async def test_a_request_is_answered_under_its_id(raw: RawClient) -> None:
    for request_id in ("a-uuid", 7, 1.5, None):
        raw.send(request(request_id, "echo", {"x": "ü"}))
        assert await raw.next() == {"jsonrpc": "2.0", "id": request_id, "result": {"x": "ü"}}


async def test_encoded_result_is_sent_unchanged(raw: RawClient) -> None:
    assert await raw.call("raw") == {"encoded": "already"}


async def test_params_are_optional(raw: RawClient) -> None:
    raw.send(
        {"jsonrpc": "2.0", "id": 1, "method": "echo"}, {"jsonrpc": "2.0", "id": 2, "method": "echo", "params": None}
    )
    assert [(await raw.next())["result"], (await raw.next())["result"]] == [{}, {}]


async def test_a_quick_request_overtakes_a_slow_one(raw: RawClient) -> None:
    raw.send(request(1, "hold"), request(2, "echo"), request(3, "go"))
    assert [(await raw.next())["id"] for _ in range(3)] == [2, 3, 1]


async def test_requests_start_in_order_of_arrival(raw: RawClient, served: Served) -> None:
    raw.send(*(request(n, "echo" if n % 2 else "raw") for n in range(100)), request("last", "echo"))
    await raw.answer_to("last")
    assert served.handler().seen == [*(["raw", "echo"] * 50), "echo"]


async def test_follow_up_of_an_answer_comes_right_after_it(raw: RawClient) -> None:
    raw.send(request(1, "answer"), request(2, "tell", {"times": 2}))
    kinds = [(message.get("id"), message.get("method")) for message in [await raw.next() for _ in range(5)]]
    assert kinds == [(1, None), (None, "then"), (None, "told"), (None, "told"), (2, None)]


async def test_failing_follow_up_does_not_affect_the_answer(raw: RawClient) -> None:
    assert await raw.call("badly-followed") is None
    assert await raw.call("echo") == {}


async def test_notification_is_handled_and_not_answered(raw: RawClient, served: Served) -> None:
    raw.notify("echo", {})
    raw.notify("nobody-knows-this", {})
    raw.notify("bug", {})
    raw.notify("echo", [1, 2])
    assert await raw.call("echo", {"x": 1}) == {"x": 1}
    assert raw.set_aside == []
    assert served.handler().seen == ["echo", "nobody-knows-this", "bug", "echo"]


# Refusing


@pytest.mark.parametrize(
    ("method", "code", "message", "data"),
    [
        ("nothing", -32601, "Unhandled method nothing", None),
        ("refuse", -32099, "Refused", {"because": "so"}),
        (
            "not-found",
            -32603,
            "Request not-found failed with message: There is no such session.",
            {"code": "session_not_found"},
        ),
        (
            "disk-full",
            -32603,
            "Request disk-full failed with message: The disk is full.",
            {"code": "store_disk_full"},
        ),
    ],
)
async def test_error_has_a_code_and_a_message_for_the_caller(
    raw: RawClient, method: str, code: int, message: str, data: Any
) -> None:
    with pytest.raises(Refused) as refused:
        await raw.call(method)
    assert (refused.value.code, refused.value.message, refused.value.data) == (code, message, data)


@pytest.mark.parametrize("method", ["bug", "unencodable"])
async def test_details_of_an_internal_error_go_only_to_the_log(
    raw: RawClient, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Refused) as refused:
        await raw.call(method)
    assert refused.value.code == -32603
    assert refused.value.message.startswith(f"Request {method} failed with message: Internal error.")
    assert "secret" not in refused.value.message
    (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert told.exc_info is not None


@pytest.mark.parametrize(
    ("message", "request_id", "code"),
    [
        (b"{not json", None, -32700),
        (b"", None, -32700),
        (b"[" * 50_000, None, -32700),
        ([request(1, "echo")], None, -32600),
        ([], None, -32600),
        ("echo", None, -32600),
        (None, None, -32600),
        (5, None, -32600),
        ({}, None, -32600),
        ({"jsonrpc": "2.0", "params": {}}, None, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 5}, 1, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": ""}, 1, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "m" * 257}, 1, -32600),
        ({"jsonrpc": "2.0", "method": 5}, None, -32600),
        ({"jsonrpc": "2.0", "id": [1], "method": "echo"}, None, -32600),
        ({"jsonrpc": "2.0", "id": True, "method": "echo"}, None, -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "echo"}, 1, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": [1]}, 1, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": "x"}, 1, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": 0}, 1, -32602),
    ],
)
async def test_a_message_that_is_wrong_is_refused_and_the_next_is_served(
    raw: RawClient, message: Any, request_id: Any, code: int
) -> None:
    raw.send(message)
    answer = await raw.next()
    assert (answer["id"], answer["error"]["code"]) == (request_id, code)
    assert await raw.call("echo", {"still": "here"}) == {"still": "here"}


# Asking the client


async def test_requests_to_the_client_have_integer_ids_and_return_its_answer(raw: RawClient) -> None:
    raw.send(request("a", "ask", {"n": 1}), request("b", "ask", {"n": 2}))
    first, second = await raw.next(), await raw.next()
    assert (first["id"], first["method"], first["params"]) == (1, "question", {"n": 1})
    assert second["id"] == 2
    raw.send({"jsonrpc": "2.0", "id": 2, "result": "two"}, {"jsonrpc": "2.0", "id": 1, "result": None})
    assert await raw.answer_to("b") == {"said": "two"}
    assert await raw.answer_to("a") == {"said": None}


async def test_error_of_the_client_reaches_the_caller(raw: RawClient) -> None:
    raw.send(request("a", "ask"))
    question = await raw.next()
    raw.send({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -5, "message": "No", "data": {"d": 1}}})
    with pytest.raises(Refused) as refused:
        await raw.answer_to("a")
    assert (refused.value.code, refused.value.message, refused.value.data) == (-5, "No", {"d": 1})


@pytest.mark.parametrize("garbled", [{}, {"error": "no"}, {"error": {"code": "x", "message": "y"}}, {"error": {}}])
async def test_malformed_answer_is_an_error_for_the_caller(raw: RawClient, garbled: dict[str, Any]) -> None:
    raw.send(request("a", "ask"))
    raw.send({"jsonrpc": "2.0", "id": (await raw.next())["id"], **garbled})
    with pytest.raises(Refused, match="neither a result nor an error"):
        await raw.answer_to("a")


async def test_answers_to_unknown_requests_change_nothing(raw: RawClient) -> None:
    raw.send(request("a", "ask"))
    question = await raw.next()
    for request_id in (99, "1", True, None, 1.0, [1]):
        raw.send({"jsonrpc": "2.0", "id": request_id, "result": "wrong"})
    raw.send({"jsonrpc": "2.0", "id": question["id"], "result": "right"})
    raw.send({"jsonrpc": "2.0", "id": question["id"], "result": "too late"})
    assert await raw.answer_to("a") == {"said": "right"}
    assert await raw.call("echo", {"still": "here"}) == {"still": "here"}


async def test_caller_gets_peer_gone_when_the_client_leaves(raw: RawClient, served: Served) -> None:
    await raw.call("echo")
    peer = served.handler().peer
    asking = asyncio.create_task(peer.request("question", {}))
    await raw.next()
    raw.drop()
    with pytest.raises(PeerGone):
        await asyncio.wait_for(asking, SECONDS)
    assert not peer.is_open
    with pytest.raises(PeerGone):
        await peer.request("question", {})
    peer.notify("nobody-hears", {})


async def test_cancelled_request_is_withdrawn_from_the_client(raw: RawClient, served: Served) -> None:
    await raw.call("echo")
    asking = asyncio.create_task(served.handler().peer.request("question", {}))
    question = await raw.next()
    asking.cancel()
    withdrawn = await raw.next()
    assert (withdrawn["method"], withdrawn["params"]) == ("$/cancelRequest", {"id": question["id"]})
    raw.send({"jsonrpc": "2.0", "id": question["id"], "result": "too late"})
    assert await raw.call("echo") == {}


# Cancelling


@pytest.mark.parametrize("method", ["hold", "wait", "ask"])
async def test_client_can_cancel_its_request(raw: RawClient, served: Served, method: str) -> None:
    raw.send(request("a", method))
    raw.notify("$/cancelRequest", {"id": "a"})
    with pytest.raises(Refused) as refused:
        await raw.answer_to("a")
    assert refused.value.code == -32800
    assert served.handler().cancelled == [method]


async def test_cancelling_an_unknown_request_changes_nothing(raw: RawClient) -> None:
    for params in ({"id": "a"}, {"id": [1]}, {}, None):
        raw.notify("$/cancelRequest", params)
    assert await raw.call("echo") == {}
    assert raw.set_aside == []


# Bounds


async def test_requests_beyond_the_concurrency_limit_wait_unread(
    raw: RawClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "STALLED_SECONDS", 1000.0)
    raw.send(*(request(n, "hold") for n in range(1000)))
    await until(lambda: bool(served.parrot.open))
    handler, answered = served.handler(), 0
    while answered < 1000:
        here = min(MAX_AT_WORK, 1000 - answered)
        await until(lambda: handler.at_work == here)  # noqa: B023
        await handler.handle("go", {})
        for _ in range(here):
            assert (await raw.next())["result"] == "held"
        answered += here
    assert handler.most_at_work == MAX_AT_WORK + 1  # the last one is the "go" of this test


async def test_waiting_requests_do_not_block_others(
    raw: RawClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "STALLED_SECONDS", 1000.0)
    raw.send(*(request(n, "wait") for n in range(1000)), request("go", "go"))
    assert {(await raw.next())["id"] for _ in range(1001)} == {"go", *range(1000)}


async def test_stalled_requests_do_not_block_the_unread_message_they_wait_for(
    raw: RawClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "STALLED_SECONDS", 0.02)
    raw.send(*(request(n, "hold") for n in range(1000)), request("go", "go"))
    assert {(await raw.next())["id"] for _ in range(1001)} == {"go", *range(1000)}


async def test_number_of_waiting_requests_is_bounded(
    raw: RawClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "MAX_WAITING", 10)
    raw.send(*(request(n, "wait") for n in range(10)))
    await until(lambda: bool(served.parrot.open) and served.handler().at_work == 10)
    raw.send(request("one-more", "echo"))
    with pytest.raises(Refused, match="10 requests of this connection wait already"):
        await raw.answer_to("one-more")


async def test_a_flood_of_pings_is_answered_in_order(raw: RawClient) -> None:
    raw.send(*(request(n, "ping", {"message": "x"}) for n in range(10_000)))
    for n in range(10_000):
        answer = await raw.next()
        assert (answer["id"], answer["result"]["message"]) == (n, "pong: x")


async def test_a_client_that_does_not_read_is_dropped_and_another_is_undisturbed(
    raw: RawClient, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async with await RawClient.tcp(served.port) as other:
        assert await other.call("echo") == {}
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        size = 1_000_000
        raw.send(request(1, "tell", {"times": 2 * MAX_UNSENT_BYTES // size, "size": size}))
        await served.parrot.until_closed(1)
        assert await other.call("connections") == {"open": 1, "closed": 1}
    assert "bytes unread and is dropped" in caplog.text


async def test_a_large_answer_reaches_a_client_that_reads(raw: RawClient) -> None:
    text = "x" * 13_000_000
    assert await raw.call("echo", {"text": text}) == {"text": text}


# What is written together leaves together


class Recorded:
    """A transport that records what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def unsent_bytes(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


async def test_messages_of_one_loop_iteration_are_one_write() -> None:
    wire = Recorded()
    peer = Peer(wire, Parrot().connected)
    for n in range(100):
        peer.notify("told", {"n": n})
    await asyncio.sleep(0)
    expected = [{"jsonrpc": "2.0", "method": "told", "params": {"n": n}} for n in range(100)]
    assert wire.written == [b"".join(framed_tightly(message) for message in expected)]
    peer.notify("told", {"n": 100})
    await asyncio.sleep(0)
    assert len(wire.written) == 2
    peer.lost()
    await peer.finished()


def framed_tightly(message: Any) -> bytes:
    text = repr(message).replace("'", '"').replace(": ", ":").replace(", ", ",")
    return framed(text.encode())


# The end


async def test_running_requests_finish_before_a_connection_closes(raw: RawClient, served: Served) -> None:
    raw.send(request(1, "hold"))
    await until(lambda: bool(served.parrot.open) and served.handler().at_work == 1)
    handler = served.handler()
    raw.drop()
    await until(lambda: not handler.peer.is_open)
    assert handler.times_closed == 0
    handler.go.set()
    await served.parrot.until_closed(1)
    assert (handler.cancelled, handler.times_closed, handler.at_work) == ([], 1, 0)


async def test_waiting_requests_are_cancelled_with_the_connection(raw: RawClient, served: Served) -> None:
    raw.send(request(1, "wait"))
    await until(lambda: bool(served.parrot.open) and served.handler().at_work == 1)
    handler = served.handler()
    raw.drop()
    await served.parrot.until_closed(1)
    assert (handler.cancelled, handler.times_closed, handler.at_work) == (["wait"], 1, 0)


async def test_unfinished_requests_are_cancelled_after_the_timeout(
    raw: RawClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "FINISHING_SECONDS", 0.02)
    raw.send(request(1, "hold"))
    await until(lambda: bool(served.parrot.open) and served.handler().at_work == 1)
    handler = served.handler()
    raw.drop()
    await served.parrot.until_closed(1)
    assert (handler.cancelled, handler.times_closed, handler.at_work) == (["hold"], 1, 0)


async def test_a_client_that_stops_writing_still_gets_its_answers(raw: RawClient) -> None:
    raw.send(request(1, "echo", {"x": 1}), request(2, "ping"))
    raw.writer.write_eof()
    assert (await raw.next())["result"] == {"x": 1}
    assert (await raw.next())["result"]["message"] == "pong"
    assert await raw.until_end() == b""


async def test_closed_connection_still_gets_its_queued_messages(raw: RawClient, served: Served) -> None:
    await raw.call("echo")
    handler = served.handler()
    handler.peer.notify("told", {"n": 1})
    handler.peer.close("the test wants it so")
    handler.peer.notify("told", {"n": 2})
    assert (await raw.next())["params"] == {"n": 1}
    assert await raw.until_end() == b""
    await handler.peer.finished()
    assert handler.times_closed == 1


async def test_handler_that_fails_to_close_does_not_keep_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(ParrotHandler):
        async def closed(self) -> None:
            raise LookupError("broken")

    def broken(peer: Peer) -> Handler:
        return Broken(Parrot(), peer)

    wire = Recorded()
    peer = Peer(wire, broken)
    peer.lost()
    await peer.finished()
    assert wire.is_closed
    assert "not put away cleanly" in caplog.text
