"""Fault 59: bodies, heads, JSON, ids and rates are bounded, and whoever goes beyond is told so."""

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.http.world import Client, Model, Place, Server, code_of, patience


async def test_fault_59_a_body_that_is_too_large_is_refused_before_it_is_read(client: Client) -> None:
    response = await client.post("/v1/sessions", content=b'{"title": "' + b"x" * 1_000_000 + b'"}')
    assert (response.status_code, code_of(response)) == (413, "body_too_large")


async def test_fault_59_a_body_that_does_not_say_how_large_it_is_is_cut_off_too(client: Client) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100_000):
            yield b" " * 10_000

    try:
        response = await client.post("/v1/sessions", content=endless())
        assert (response.status_code, code_of(response)) == (413, "body_too_large")
    except (httpx.WriteError, httpx.ReadError):
        pass  # It was hung up on while it was still sending.
    assert (await client.get("/v1/sessions")).status_code == 200


@pytest.mark.parametrize("depth", [65, 1_000, 400_000])
async def test_fault_59_json_is_not_nested_without_end(client: Client, depth: int) -> None:
    nested = b'{"metadata": ' + b"[" * depth + b"]" * depth + b"}"
    response = await client.post("/v1/sessions", content=nested)
    assert (response.status_code, code_of(response)) == (422, "json_too_deep")


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata": [' + b"[]," * 100_000 + b"0]}",
        b'{"allow": [' + b'"",' * 100_000 + b'""]}',
        b'{"metadata": {' + b",".join(b'"%d":0' % number for number in range(60_000)) + b"}}",
    ],
    ids=["values", "texts", "keys"],
)
async def test_fault_59_json_with_very_many_things_in_it_is_refused_unread(client: Client, body: bytes) -> None:
    assert len(body) < 1_000_000
    response = await client.post("/v1/sessions", content=body)
    assert (response.status_code, code_of(response)) == (422, "json_too_costly")


async def test_brackets_in_text_are_only_text(client: Client) -> None:
    title = '[{"\\' * 40
    assert (await client.get(f"/v1/sessions/{await client.make(title=title)}")).json()["session"]["title"] == title


@pytest.mark.parametrize(
    "body",
    [b"{", b"nothing", b'{"id": "a"', b'{"id": "a"}}', b"\xff", b'{"title": "\xff"}', b'{"a": 1e999999}', b"NaN"],
)
async def test_a_body_that_is_not_json_is_refused_with_a_sentence(client: Client, body: bytes) -> None:
    response = await client.post("/v1/sessions", content=body)
    assert response.status_code == 422
    assert code_of(response) in ("json_invalid", "invalid")


@pytest.mark.parametrize("title", [rb"a\u0000b", rb"a\u2028b", rb"\ud83d\ude00", rb"a\ud800b", "é\U0001f600".encode()])
async def test_any_text_is_taken_or_refused_and_breaks_nothing(client: Client, title: bytes) -> None:
    response = await client.post("/v1/sessions", content=b'{"title": "%s"}' % title)
    assert response.status_code in (201, 422), response.text
    assert (await client.get("/v1/sessions")).status_code == 200


async def test_fault_59_a_head_that_is_too_large_is_refused(client: Client) -> None:
    response = await client.get("/v1/sessions", headers={"x-large": "x" * 40_000})
    assert (response.status_code, code_of(response)) == (431, "head_too_large")
    response = await client.get("/v1/sessions?q=" + "x" * 40_000)
    assert (response.status_code, code_of(response)) == (431, "head_too_large")


@pytest.mark.parametrize("line", [b"X-%d: y\r\n", b"x"], ids=["many headers", "one without an end"])
async def test_fault_59_a_head_that_never_ends_is_hung_up_on(server: Server, line: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + (b"" if b"\r" in line else b"X-Long: "))
        async with patience():
            for number in range(100_000):
                writer.write((line % number if b"%" in line else line) * 100)
                await writer.drain()
            raise AssertionError("it was never hung up on")
    except ConnectionError:
        pass
    finally:
        writer.close()


async def test_fault_59_what_is_no_http_gets_an_error_in_the_one_shape(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        answer = await asyncio.to_thread(lambda: b"".join(iter(lambda: connection.recv(4096), b"")))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"http_invalid"' in answer


async def test_fault_59_ids_are_short(client: Client) -> None:
    session = await client.make()
    long = "x" * 65
    for response in (
        await client.post("/v1/sessions", json={"id": long}),
        await client.post(f"/v1/sessions/{session}/cancel", json={"stop_id": long}),
        await client.say(session, "hello", message_id=long),
        await client.post(f"/v1/sessions/{session}/rewind", json={"to": 1, "rewind_id": long}),
    ):
        assert response.status_code == 422
    assert (await client.get(f"/v1/sessions/{long}")).status_code == 404


async def test_fault_59_only_so_many_messages_a_minute_go_into_running_turns(
    own_place: Place, own_model: Model
) -> None:
    async with own_place.serve(HOLDFAST_FOLLOW_UPS_PER_MINUTE="3") as server, server.client() as client:
        session = await client.make()
        own_model.hold(3)
        saying = asyncio.create_task(client.say(session, "a long answer", message_id="first"))
        await own_model.until_held()
        for number in range(3):
            assert (await client.add(session, "more", message_id=f"m{number}", delivery="enqueue")).status_code == 202
        refused = await client.add(session, "too much", message_id="m3")
        assert (refused.status_code, code_of(refused)) == (429, "too_many_messages")
        assert 0 < refused.json()["error"]["retry_after"] <= 60
        assert int(refused.headers["retry-after"]) >= refused.json()["error"]["retry_after"]
        again = await client.add(session, "more", message_id="m0", delivery="enqueue")
        assert again.status_code == 202, "a retry is never too much"
        waiting = (await client.get(f"/v1/sessions/{session}/queue")).json()["messages"]
        assert [message["message_id"] for message in waiting] == ["m0", "m1", "m2"]
        own_model.release()
        await saying


async def test_fault_59_at_once_they_are_no_more(own_place: Place, own_model: Model) -> None:
    async with own_place.serve(HOLDFAST_FOLLOW_UPS_PER_MINUTE="3") as server, server.client() as client:
        session = await client.make()
        own_model.hold(3)
        saying = asyncio.create_task(client.say(session, "a long answer", message_id="first"))
        await own_model.until_held()
        answers = await asyncio.gather(
            *(client.add(session, "more", message_id=f"m{number}", delivery="enqueue") for number in range(8))
        )
        assert sorted(found.status_code for found in answers) == [202] * 3 + [429] * 5
        assert {code_of(found) for found in answers if found.status_code == 429} == {"too_many_messages"}
        own_model.release()
        await saying


async def test_fault_59_who_has_used_them_up_may_start_turns_still(own_place: Place, own_model: Model) -> None:
    async with own_place.serve(HOLDFAST_FOLLOW_UPS_PER_MINUTE="1") as server, server.client() as client:
        session, other = await client.make(), await client.make()
        own_model.hold(3)
        saying = asyncio.create_task(client.say(session, "a long answer", message_id="first"))
        await own_model.until_held()
        assert (await client.add(session, "more", delivery="enqueue")).status_code == 202
        receipt = await client.post(f"/v1/sessions/{other}/messages", json={"text": "hello"})
        assert (receipt.status_code, receipt.json()["found_idle"]) == (200, True)
        rejected = await client.post(f"/v1/sessions/{session}/messages", json={"text": "x", "delivery": "reject"})
        assert (rejected.status_code, code_of(rejected)) == (409, "busy")
        own_model.release()
        await saying


async def test_fault_59_only_so_many_messages_wait_in_a_session(own_place: Place, own_model: Model) -> None:
    async with own_place.serve(HOLDFAST_MAX_WAITING_MESSAGES="2") as server, server.client() as client:
        session = await client.make()
        own_model.hold(3)
        saying = asyncio.create_task(client.say(session, "a long answer"))
        await own_model.until_held()
        answers = [await client.add(session, "more", delivery="enqueue") for _ in range(3)]
        assert [found.status_code for found in answers] == [202, 202, 429]
        assert code_of(answers[-1]) == "queue_full"
        own_model.release()
        await saying


async def test_fault_59_only_so_many_streams_are_open_for_one_owner(own_place: Place) -> None:
    async with own_place.serve(HOLDFAST_STREAMS_PER_OWNER="2") as server, server.client() as client:
        session = await client.make()
        async with patience(), client.follow(session) as one, client.follow(session) as two:
            await anext(one)
            await anext(two)
            third = await client.get(f"/v1/sessions/{session}/events", headers={"accept": "text/event-stream"})
            assert (third.status_code, code_of(third)) == (429, "too_many_streams")
