"""JWTs at a real server, beside API keys; the key set comes from a real HTTP server."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.http.test_identity import made_key
from tests.http.world import Place, Server, code_of, patience
from tests.security.issuer import AUDIENCE, ISSUER, IssuerKey, KeySetServer, key_set_server

KEY = IssuerKey("one")


def claims(**more: Any) -> dict[str, Any]:
    return {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": int(time.time()) + 600, **more}


def settings(served: KeySetServer, **more: str) -> dict[str, str]:
    return {
        "HOLDFAST_AUTH": "keys",
        "HOLDFAST_JWT_JWKS": served.url,
        "HOLDFAST_JWT_ISSUER": ISSUER,
        "HOLDFAST_JWT_AUDIENCE": AUDIENCE,
        "HOLDFAST_JWT_ROLE_CLAIM": "roles",
        **more,
    }


@pytest.fixture
async def served() -> AsyncIterator[KeySetServer]:
    async with key_set_server() as found:
        found.publish(KEY.jwk())
        yield found


@pytest.fixture
def place(tmp_path: Path, served: KeySetServer) -> Place:
    return Place(tmp_path, None, **settings(served))


async def identity_of(server: Server, bearer: str) -> dict[str, Any]:
    async with server.client(bearer) as client:
        answer = await client.get("/v1/identity")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


async def test_tokens_and_keys_open_the_sessions_of_their_own_owners(place: Place) -> None:
    key = await made_key(place, "ada", "ada")
    async with place.serve() as server:
        token = KEY.token(claims())
        by_token, by_key = await identity_of(server, token), await identity_of(server, key)
        assert (by_token["owner"], by_token["role"], by_token["key_id"]) == ("jwt+ada", "user", "")
        assert by_key["owner"] == "ada"
        async with server.client(token) as ada, server.client(key) as other:
            session = await ada.make()
            assert (await ada.get(f"/v1/sessions/{session}")).status_code == 200
            assert (await other.get(f"/v1/sessions/{session}")).status_code == 404
            assert (await ada.get("/metrics")).status_code == 403
        async with server.client(KEY.token(claims(sub="eve", roles=["admin"]))) as root:
            assert (await root.get("/metrics")).status_code == 200
            assert (await root.get(f"/v1/sessions/{session}")).status_code == 404


async def test_a_refused_token_is_told_why(place: Place) -> None:
    async with place.serve() as server:
        for bearer, code in (
            (KEY.token(claims(exp=int(time.time()) - 60)), "token_expired"),
            (KEY.token(claims(aud="another")), "token_invalid"),
            (IssuerKey("two").token(claims()), "token_invalid"),
            ("no.token.really", "token_invalid"),
            ("nothing", "not_signed_in"),
        ):
            async with server.client(bearer) as nobody:
                answer = await nobody.get("/v1/sessions")
                assert (answer.status_code, code_of(answer)) == (401, code)
                assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_stream_ends_with_its_token(place: Place) -> None:
    async with place.serve() as server:
        # With the leeway it is good for a second or two more.
        token = KEY.token(claims(exp=int(time.time()) - 28))
        async with server.client(token) as ada:
            session = await ada.make()
            async with patience(), ada.follow(session) as frames:
                with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                    async for _ in frames:
                        pass
            assert code_of(await ada.get("/v1/sessions")) == "token_expired"


async def test_without_a_key_set_no_token_is_accepted_and_keys_are(place: Place, served: KeySetServer) -> None:
    key = await made_key(place, "ada", "ada")
    served.status = 500
    async with place.serve() as server:
        async with server.client(KEY.token(claims())) as nobody:
            answer = await nobody.get("/v1/sessions")
            assert (answer.status_code, code_of(answer)) == (503, "token_keys_unavailable")
            assert int(answer.headers["retry-after"]) > 0
        async with server.client(key) as ada:
            assert (await ada.get("/v1/sessions")).status_code == 200


async def test_the_doctor_checks_the_key_set(place: Place, served: KeySetServer) -> None:
    async def finding() -> dict[str, Any]:
        lines = (await place.run("doctor", "--json")).out.splitlines()
        (found,) = [line for line in map(msgspec.json.decode, lines) if line["name"] == "Tokens"]
        return dict(found)

    good = await finding()
    assert (good["ok"], good["found"]) == (True, f"1 usable key of {ISSUER} (algorithms: ES256)")
    served.publish()
    assert not (await finding())["ok"]
    served.status = 404
    bad = await finding()
    assert (bad["ok"], "the answer is 404" in bad["found"]) == (False, True)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"HOLDFAST_JWT_ISSUER": ""}, "jwt_issuer is not set"),
        ({"HOLDFAST_JWT_AUDIENCE": ""}, "jwt_audience is not set"),
        ({"HOLDFAST_AUTH": "none"}, "--auth is none"),
        ({"HOLDFAST_JWT_ALGORITHMS": "HS256"}, "not a list of algorithms"),
        ({"HOLDFAST_JWT_ALGORITHMS": "none"}, "not a list of algorithms"),
        ({"HOLDFAST_JWT_JWKS": "http://issuer.example/keys"}, "that can be trusted"),
        ({"HOLDFAST_JWT_JWKS": "https://user:secret@issuer.example/keys"}, "that can be trusted"),
        ({"HOLDFAST_JWT_LEEWAY_SECONDS": "301"}, "jwt_leeway_seconds is 301"),
    ],
)
async def test_wrong_settings_end_the_server_before_it_starts(
    place: Place, environ: dict[str, str], words: str
) -> None:
    done = await place.run("serve", "--port", "0", **environ)
    assert (done.code, "[config_invalid]" in done.err, words in done.err) == (2, True, True), done.err
    assert "secret" not in done.err
