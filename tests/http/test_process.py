"""The life of `holdfast serve`: how it starts, how it refuses to, how it ends, and what is left when it is killed."""

import asyncio
import shutil
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.http.world import LONG, Client, Model, Place, Server, code_of, patience

REFUSED = [
    (("--host", "0.0.0.0"), {}, "--auth none is for this machine only"),
    (("--host", "203.0.113.7"), {}, "--auth none is for this machine only"),
    ((), {"HOLDFAST_HOST": "::"}, "--auth none is for this machine only"),
    (("--auth", "everybody"), {}, "Allowed: none or keys"),
    (("--port", "70000"), {}, "Allowed: 0 to 65535"),
    (("--redis", "http://:pa55word@there"), {}, "--redis is not the URL of a Redis"),
    ((), {"HOLDFAST_REDIS": "redis://:pa55word@there?wrong=1"}, "HOLDFAST_REDIS can't be used"),
    (("--concurrency", "0"), {}, "--concurrency"),
    (("--model", "nobody/knows"), {}, "There is no model"),
    (("--database", "postgresql://:pa55word@there"), {}, "PostgreSQL"),
    ((), {"HOLDFAST_ALLOWED_ORIGINS": "example.org"}, "origins"),
]


@pytest.mark.parametrize(("options", "environ", "why"), REFUSED)
async def test_invalid_options_of_serve_are_refused_with_one_sentence(
    place: Place, options: tuple[str, ...], environ: dict[str, str], why: str
) -> None:
    done = await place.run("serve", "--port", "0", *options, **environ)
    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert done.err.count("\n") == 1
    assert "pa55word" not in done.err


async def test_a_port_that_is_taken_is_said_to_be(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = await place.run("serve", "--port", str(port))
    assert (done.code, "[address_not_usable]" in done.err) == (1, True)
    assert not place.data.joinpath("holdfast.db").exists()


async def test_serve_prints_its_link_and_commands_to_try(place: Place) -> None:
    async with place.serve() as server:
        token = server.token
        assert await server.end() == 0
        assert server.process.stdout is not None
        said = (await server.process.stdout.read()).decode()
    assert f"{server.url}/#token={token}" in said
    assert f"TOKEN=$(cat {server.token_file})" in said
    assert f'curl -s -H "Authorization: Bearer $TOKEN" {server.url}/v1/sessions' in said


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_the_commands_that_serve_suggests_work(place: Place) -> None:
    """Line by line, as a person would type it."""
    async with place.serve() as server:
        assert server.process.stdout is not None
        lines: list[str] = []
        async with patience():
            while not lines or not lines[-1].startswith("End it"):
                lines.append((await server.process.stdout.readline()).decode())
        shown = [line.strip() for line in lines if line.startswith("  ")]
        script = "\n".join(shown).replace("requests/REQUEST", "requests/$REQUEST")
        script = script.replace(
            f"{server.url}/v1/sessions/first/requests\n", f"{server.url}/v1/sessions/first/requests >r\n"
        )
        script = script.replace(">r\n", '>r\nREQUEST=$(sed \'s/.*"id":"\\([^"]*\\)".*/\\1/\' r)\n')
        shell = await asyncio.create_subprocess_exec(
            "sh", "-e", "-c", script, cwd=place.work, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with patience():
            out, err = await shell.communicate()
        assert shell.returncode == 0, err.decode()
        assert b'"answer_id"' in out
        assert b'{"error":' not in out


# Ending


async def broken(client: Client, session: str, model: Model) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
    """A turn that is held in the middle of its answer, and two readers of it: of the turn, and of the log."""

    async def read_turn() -> None:
        async with client.stream("POST", f"/v1/sessions/{session}/stream", json={"text": "a long answer"}) as response:
            async for _ in response.aiter_bytes():
                pass

    async def read_log() -> None:
        async with client.follow(session) as frames:
            async for _ in frames:
                pass

    model.hold(10)
    readers = asyncio.create_task(read_turn()), asyncio.create_task(read_log())
    await model.until_held()
    async with patience(), client.follow(session) as frames:
        async for frame in frames:
            if frame.kind == "delta":
                return readers
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_breaks_off_streams_and_hands_over_what_runs(
    own_place: Place, own_model: Model, number: int
) -> None:
    async with own_place.serve(HOLDFAST_DRAIN_SECONDS="0") as server, server.client() as client:
        session = await client.make()
        readers = await broken(client, session, own_model)
        assert await server.end(number) == 0
        for reader in readers:
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await reader
    own_model.release()
    async with own_place.serve() as server, server.client() as client:
        async with patience(), client.follow(session) as frames:
            async for frame in frames:
                if frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended":
                    break
        assert (await client.texts(session))[-1] == LONG


async def test_a_turn_that_ends_while_the_server_does_is_streamed_to_its_end(
    own_place: Place, own_model: Model
) -> None:
    async with own_place.serve(HOLDFAST_DRAIN_SECONDS="60") as server, server.client() as client:
        session = await client.make()
        own_model.hold(10)
        saying = asyncio.create_task(client.say(session, "a long answer"))
        await own_model.until_held()
        server.process.send_signal(signal.SIGTERM)
        await until_refused(server)
        own_model.release()
        assert "data: [DONE]" in (await saying).text
        async with patience():
            assert await server.process.wait() == 0


async def until_refused(server: Server) -> None:
    """Until nobody new is let in."""
    async with patience():
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            except ConnectionError:
                return
            writer.close()


async def test_a_second_signal_ends_it_at_once(own_place: Place, own_model: Model) -> None:
    async with own_place.serve(HOLDFAST_DRAIN_SECONDS="600") as server, server.client() as client:
        session = await client.make()
        readers = await broken(client, session, own_model)
        server.process.send_signal(signal.SIGTERM)
        await until_refused(server)
        assert await server.end(signal.SIGTERM) == 128 + signal.SIGTERM
        await asyncio.gather(*readers, return_exceptions=True)
        own_model.release()


# Being killed


async def test_accepted_messages_survive_kills_of_the_server(own_place: Place, own_model: Model) -> None:
    accepted: list[str] = []
    session = "lasting"
    port = 0
    for start in range(4):
        async with own_place.serve(port=port) as server, server.client() as client:
            port = server.port
            await client.post("/v1/sessions", json={"id": session})
            own_model.hold(1)
            for number in range(2):  # All of them fit into the queue, even if no turn ends before the last kill.
                name = f"{start}.{number}"
                message = {"text": f"say {name}", "message_id": name, "delivery": "enqueue"}
                async with client.stream("POST", f"/v1/sessions/{session}/stream", json=message) as response:
                    assert response.status_code == 200
                accepted.append(f"say {name}")
            server.process.kill()
            await server.process.wait()
            own_model.release()
    async with own_place.serve(port=port) as server, server.client() as client, patience():
        while (view := (await client.get(f"/v1/sessions/{session}")).json())["session"]["status"] != "idle":
            async with client.follow(session, after=view["cursor"]) as frames:
                async for frame in frames:
                    if frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended":
                        break
        said = [text for text in await client.texts(session) if text.startswith("say ")]
        assert said == accepted


async def test_a_request_survives_the_server_and_is_answered_at_the_next(own_place: Place) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        await client.say(session, "write a note")
        before = (await client.get(f"/v1/sessions/{session}/requests")).json()
        server.process.kill()
        await server.process.wait()
    async with own_place.serve() as server, server.client() as client:
        after = (await client.get(f"/v1/sessions/{session}/requests")).json()
        assert after == before
        path = f"/v1/sessions/{session}/requests/{after['requests'][0]['id']}"
        assert (await client.post(path, json={"decision": "approve"})).status_code == 200
        async with patience(), client.follow(session) as frames:
            async for frame in frames:
                if frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended":
                    break
        assert (own_place.work / "note.txt").read_text() == "hi"


async def test_an_answer_that_was_being_told_is_kept_when_the_server_is_killed(
    own_place: Place, own_model: Model
) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        readers = await broken(client, session, own_model)
        server.process.kill()
        await server.process.wait()
        for reader in readers:
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await reader
    own_model.release()
    async with own_place.serve() as server, server.client() as client:
        async with patience(), client.follow(session) as frames:
            async for frame in frames:
                if frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended":
                    break
        texts = await client.texts(session)
        assert texts[-1] == LONG
        assert LONG.startswith(texts[1])


async def test_the_error_of_a_failing_store_leaves_out_its_message(tmp_path: Path, place: Place) -> None:
    """A database that is no longer one: requests get a sentence and a code, and nothing of the machine."""
    async with place.serve() as server, server.client() as client:
        await client.make(id="first")
        database = place.data / "holdfast.db"
        for file in (database, *place.data.glob("holdfast.db-*")):
            file.write_bytes(b"x" * file.stat().st_size)
        response = await client.get("/v1/sessions/first")
        assert response.status_code in (500, 503)
        assert str(place.data) not in response.text
        assert code_of(response) in ("store_failed", "internal_error")
