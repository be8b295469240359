"""JWTs: only a token of the configured issuer, for this server, in force and signed with a key of its set is accepted.

The key set comes from a real HTTP server. The clock is the test's own.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.config import JWT_ALGORITHMS
from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Identity
from holdfast.server.http.key_set import (
    AGAIN_SECONDS,
    MAX_KEYS,
    MAX_SET_BYTES,
    REFRESH_SECONDS,
    BadKeySet,
    KeySet,
    fetch_from,
    signing_keys,
)
from holdfast.server.http.key_watch import POLL_SECONDS, KeyWatch
from holdfast.server.http.tokens import MAX_TOKEN_BYTES, TokenRules, Tokens
from holdfast.testing.clock import ManualClock
from tests.http.world import patience
from tests.security.issuer import AUDIENCE, ISSUER, IssuerKey, KeySetServer, b64, key_set_server, unsigned, with_hmac

RULES = TokenRules(issuer=ISSUER, audience=(AUDIENCE,), algorithms=JWT_ALGORITHMS, role_claim="roles")


class World:
    """A server's check of tokens, its issuer and its clock."""

    def __init__(self, served: KeySetServer) -> None:
        self.served = served
        self.clock = ManualClock()
        self.key = IssuerKey("one")
        served.publish(self.key.jwk())
        self.keys = KeySet(fetch_from(served.url), self.clock, JWT_ALGORITHMS)
        self.tokens = Tokens(RULES, self.keys, self.clock)

    @property
    def now(self) -> int:
        return self.clock.now_ms() // 1000

    def claims(self, **more: Any) -> dict[str, Any]:
        given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": self.now, "exp": self.now + 600, **more}
        return {name: value for name, value in given.items() if value is not None}

    def token(self, **more: Any) -> str:
        return self.key.token(self.claims(**more))

    async def refused(self, token: str, *, rules: TokenRules = RULES) -> tuple[int, str]:
        with pytest.raises(ApiError) as raised:
            await Tokens(rules, self.keys, self.clock).identify(token)
        self.error = raised.value
        return raised.value.status, raised.value.code


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with key_set_server() as served:
        yield World(served)


# Who it is


async def test_a_token_names_its_owner_and_never_the_owner_of_a_key(world: World) -> None:
    found = await world.tokens.identify(world.token())
    assert (found.owner, found.role, found.subject, found.key_id) == ("jwt+ada", "user", "ada", "")
    assert found.expires_at == (world.now + 600 + 30) * 1000


async def test_owners_are_shared_with_keys_if_that_is_meant(world: World) -> None:
    rules = TokenRules(issuer=ISSUER, audience=(AUDIENCE,), algorithms=("ES256",), shares_owners=True)
    found = await Tokens(rules, world.keys, world.clock).identify(world.token())
    assert found.owner == "ada"


@pytest.mark.parametrize(
    ("roles", "role"),
    [(None, "user"), ("admin", "admin"), (["x", "admin"], "admin"), ("king", "user"), (7, "user"), ([7, None], "user")],
)
async def test_an_unknown_role_is_the_least_role(world: World, roles: object, role: str) -> None:
    assert (await world.tokens.identify(world.token(roles=roles))).role == role


@pytest.mark.parametrize(("roles", "code"), [("king", "token_role_unknown"), (None, "token_role_unknown")])
async def test_an_unknown_role_is_refused_once_the_roles_of_users_are_set(
    world: World, roles: object, code: str
) -> None:
    rules = TokenRules(
        issuer=ISSUER,
        audience=(AUDIENCE,),
        algorithms=("ES256",),
        role_claim="realm.roles",
        user_roles=("talker",),
    )
    assert await world.refused(world.token(realm={"roles": roles}), rules=rules) == (403, code)
    tokens = Tokens(rules, world.keys, world.clock)
    assert (await tokens.identify(world.token(realm={"roles": ["talker"]}))).role == "user"
    assert (await tokens.identify(world.token(realm={"roles": ["admin"]}))).role == "admin"


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES384", "EdDSA"])
async def test_each_kind_of_key_is_understood(world: World, algorithm: str) -> None:
    key = IssuerKey("other", algorithm)
    world.served.publish(key.jwk())
    assert (await world.tokens.identify(key.token(world.claims()))).owner == "jwt+ada"


# Hostile tokens


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://issuer.example/"},
        {"iss": None},
        {"iss": [ISSUER]},
        {"aud": "another"},
        {"aud": None},
        {"aud": ["another", 7]},
        {"aud": {"holdfast": True}},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": True},
        {"exp": 1e300},
        {"nbf": 4_000_000_000},
        {"iat": 4_000_000_000},
        {"sub": None},
        {"sub": ""},
        {"sub": " ada"},
        {"sub": "a\nda"},
        {"sub": "x" * 61},
        {"sub": "\ud800"},
        {"sub": 7},
        {"sub": ["ada"]},
    ],
)
async def test_a_token_with_a_wrong_claim_is_refused(world: World, claims: dict[str, Any]) -> None:
    assert await world.refused(world.token(**claims)) == (401, "token_invalid")
    assert world.error.headers["www-authenticate"].startswith('Bearer error="invalid_token", error_description="')


async def test_a_token_ends_and_begins_within_the_leeway_of_the_clocks(world: World) -> None:
    token = world.token(exp=world.now - 29, nbf=world.now + 30, iat=world.now + 30)
    assert (await world.tokens.identify(token)).owner == "jwt+ada"
    assert await world.refused(world.token(exp=world.now - 30)) == (401, "token_expired")
    assert await world.refused(world.token(nbf=world.now + 31)) == (401, "token_invalid")


async def test_no_token_is_accepted_that_is_unsigned_or_signed_with_what_everyone_knows(world: World) -> None:
    rsa = IssuerKey("one", "RS256")
    world.served.publish(rsa.jwk())
    public = rsa.private.public_key()
    secrets = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(rsa.jwk()).encode(),
        b"",
    ]
    hostile = [unsigned(world.claims(), name) for name in ("none", "None", "NONE", "", "RS256", "ES256")]
    hostile += [with_hmac(world.claims(), secret) for secret in secrets]
    good = rsa.token(world.claims())
    assert (await world.tokens.identify(good)).owner == "jwt+ada"
    signed, _, signature = good.rpartition(".")
    hostile += [f"{good[:-4]}AAAA", f"{signed}.", f"{unsigned(world.claims())}{signature}"]
    for token in hostile:
        assert await world.refused(token) == (401, "token_invalid"), token


async def test_a_symmetric_or_weak_key_in_the_set_verifies_nothing(world: World) -> None:
    weak = IssuerKey("weak", "RS256", rsa_bits=1024)
    shared = {"kty": "oct", "k": "c2VjcmV0", "kid": "shared", "alg": "HS256"}
    world.served.publish(weak.jwk(), shared, world.key.jwk())
    assert [key.kid for key in await world.keys.fetch()] == ["one"]
    assert await world.refused(weak.token(world.claims())) == (401, "token_invalid")


async def test_a_key_verifies_only_with_its_own_algorithm_and_purpose(world: World) -> None:
    rsa = IssuerKey("rsa", "RS256")
    encrypting, other = IssuerKey("enc"), IssuerKey("ops")
    world.served.publish(rsa.jwk(alg="RS256"), encrypting.jwk(use="enc"), other.jwk(key_ops=["sign"]))
    assert [(key.kid, key.algorithm) for key in await world.keys.fetch()] == [("rsa", "RS256")]
    assert await world.refused(rsa.token(world.claims(), alg="PS256")) == (401, "token_invalid")
    assert await world.refused(encrypting.token(world.claims())) == (401, "token_invalid")


@pytest.mark.parametrize(
    "header",
    [
        {"kid": "../../dev/null"},
        {"kid": "' OR 1=1 --"},
        {"kid": ["one"]},
        {"kid": 1},
        {"kid": "x" * 257},
        {"typ": "logout+jwt"},
        {"typ": 7},
        {"cty": "JWT"},
        {"crit": ["b64"], "b64": False},
        {"crit": []},
        {"b64": False},
        {"alg": ["ES256"]},
    ],
)
async def test_a_header_that_would_change_what_is_checked_is_refused(world: World, header: dict[str, Any]) -> None:
    plain = {"alg": "ES256", "typ": "JWT", "kid": "one"}
    signature = world.key.sign(plain, b"{}").rpartition(".")[2]
    payload = json.dumps(world.claims()).encode()
    if "alg" in header:  # Nothing can be signed so.
        signed = f"{b64(json.dumps({**plain, **header}).encode())}.{b64(payload)}.{signature}"
    else:
        signed = world.key.sign({**plain, **header}, payload)
    assert await world.refused(signed) == (401, "token_invalid")


async def test_a_key_that_the_token_brings_is_never_used(world: World) -> None:
    async with key_set_server() as theirs:
        mine = IssuerKey("mine")
        theirs.publish(mine.jwk())
        for header in ({"jku": theirs.url}, {"jwk": mine.jwk()}, {"x5u": theirs.url}, {"x5c": ["AAAA"]}):
            assert await world.refused(mine.token(world.claims(), **header)) == (401, "token_invalid")
            assert (await world.tokens.identify(world.key.token(world.claims(), **header))).owner == "jwt+ada"
        assert theirs.asked == 0


async def test_a_claim_that_is_given_twice_is_refused(world: World) -> None:
    header = {"alg": "ES256", "typ": "JWT", "kid": "one"}
    payload = json.dumps(world.claims())
    twice = payload[:-1] + ', "sub": "root"}'
    assert await world.refused(world.key.sign(header, twice.encode())) == (401, "token_invalid")
    nested = payload[:-1] + ', "realm": {"roles": "user", "roles": "admin"}}'
    assert await world.refused(world.key.sign(header, nested.encode())) == (401, "token_invalid")


@pytest.mark.parametrize("payload", [b"", b"[]", b"null", b'"x"', b"{", b'{"exp": NaN}', b'{"exp": 1e999}', b"\xff"])
async def test_a_payload_that_is_no_object_is_refused(world: World, payload: bytes) -> None:
    signed = world.key.sign({"alg": "ES256", "kid": "one"}, payload)
    assert await world.refused(signed) == (401, "token_invalid")


async def test_a_token_that_is_huge_or_deep_costs_no_more_than_a_look(world: World) -> None:
    assert await world.refused(world.token(filler="x" * MAX_TOKEN_BYTES)) == (401, "token_invalid")
    assert world.served.asked == 0, "it was refused unread"
    deep = b"[" * 5_000 + b"]" * 5_000
    payload = b'{"deep": ' + deep + b"}"
    assert await world.refused(world.key.sign({"alg": "ES256", "kid": "one"}, payload)) == (401, "token_invalid")
    for garbage in ("..", "a.b.c", "é.é.é", "=.=.=", "e30.e30.e30", "ey!.ey!.ey!"):
        assert await world.refused(garbage) == (401, "token_invalid")


async def test_a_token_without_a_key_id_needs_a_set_with_one_key(world: World) -> None:
    nameless = IssuerKey(None)
    world.served.publish(nameless.jwk())
    assert (await world.tokens.identify(nameless.token(world.claims()))).owner == "jwt+ada"
    world.served.publish(nameless.jwk(), world.key.jwk())
    await world.keys.fetch()
    assert await world.refused(nameless.token(world.claims())) == (401, "token_invalid")
    assert (await world.tokens.identify(world.token())).owner == "jwt+ada"


# The key set


async def test_a_rotated_key_is_found_and_the_set_is_fetched_at_a_bounded_rate(world: World) -> None:
    await world.tokens.identify(world.token())
    new = IssuerKey("two")
    world.served.publish(world.key.jwk(), new.jwk())
    for _ in range(50):
        assert await world.refused(new.token(world.claims())) == (401, "token_invalid")
    assert world.served.asked == 1, "unknown keys do not make it be fetched in between"
    await world.clock.advance(AGAIN_SECONDS)
    found = await asyncio.gather(*(world.tokens.identify(new.token(world.claims())) for _ in range(50)))
    assert {identity.owner for identity in found} == {"jwt+ada"}
    assert world.served.asked == 2, "all who waited share one fetch"


async def test_the_last_good_set_is_kept_while_no_other_can_be_had(world: World) -> None:
    await world.tokens.identify(world.token())
    for status, body in ((500, b""), (200, b"<html>"), (200, b"{}"), (200, b"x" * (MAX_SET_BYTES + 1)), (302, b"")):
        world.served.status, world.served.body = status, body
        world.served.headers = {"location": "/keys"} if status == 302 else {}
        await world.clock.advance(AGAIN_SECONDS)
        with pytest.raises(BadKeySet):
            await world.keys.fetch()
        assert (await world.tokens.identify(world.token())).owner == "jwt+ada"


async def test_without_any_set_every_token_is_refused_until_there_is_one(world: World) -> None:
    good = world.served.body
    world.served.status = 503
    assert await world.refused(world.token()) == (503, "token_keys_unavailable")
    assert world.error.retry_after == AGAIN_SECONDS
    world.served.status, world.served.body = 200, good
    assert await world.refused(world.token()) == (503, "token_keys_unavailable")
    await world.clock.advance(AGAIN_SECONDS)
    assert (await world.tokens.identify(world.token())).owner == "jwt+ada"


async def test_a_set_without_keys_is_taken_at_its_word(world: World) -> None:
    found = await world.tokens.identify(world.token())
    world.served.publish()
    await world.keys.fetch()
    assert await world.refused(world.token()) == (401, "token_invalid")
    assert not world.tokens.is_valid(found)


async def test_the_set_is_fetched_beside_the_requests(world: World) -> None:
    async with patience(), world.keys:
        await world.clock.until_sleeping()
        assert world.served.asked == 1
        await world.tokens.identify(world.token())
        for fetched in (2, 3):
            await world.clock.advance(REFRESH_SECONDS)
            await world.clock.until_sleeping()
            assert world.served.asked == fetched


async def test_the_set_may_be_a_file(world: World, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = KeySet(fetch_from(str(path)), world.clock, JWT_ALGORITHMS)
    with pytest.raises(BadKeySet):
        await keys.fetch()
    path.write_bytes(world.served.body)
    assert [key.kid for key in await keys.fetch()] == ["one"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"keys": {}}',
        b'{"keys": [], "keys": []}',
        b'{"keys": [' + b"{}," * MAX_KEYS + b"{}]}",
        b"[" * 9_999,
    ],
)
def test_a_set_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(BadKeySet):
        signing_keys(text, JWT_ALGORITHMS)


@pytest.mark.parametrize(
    "jwk",
    [
        {},
        {"kty": "EC"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "P-256", "x": 1, "y": 2},
        {"kty": "RSA", "n": "", "e": ""},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {"kty": "RSA"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AA"},
        {"kty": ["EC"], "crv": "P-256"},
        {"kty": "oct", "k": "AAAA"},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
    ],
)
def test_a_key_that_is_none_is_left_out(jwk: dict[str, Any]) -> None:
    assert signing_keys(json.dumps({"keys": [jwk, IssuerKey("one").jwk()]}).encode(), JWT_ALGORITHMS)[0].kid == "one"


def test_a_private_key_that_was_published_is_used_as_the_public_one() -> None:
    key = IssuerKey("one", "RS256")
    public, private = key.jwk(), key.jwk(d="AQAB", p="AQAB", q="AQAB")
    found = [signing_keys(json.dumps({"keys": [jwk]}).encode(), ("RS256",)) for jwk in (public, private)]
    assert [[each.thumbprint for each in keys] for keys in found] == [[found[0][0].thumbprint]] * 2


# Anything at all

ODD = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("alg", "kid", "typ", "crit", "b64", "cty", "jku", "jwk", "x5c"), VALUES)
)
CLAIMS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("iss", "aud", "sub", "exp", "nbf", "iat", "roles", "realm"), VALUES)
)
KEY = IssuerKey("one")


async def _set_of_one() -> bytes:
    return json.dumps({"keys": [KEY.jwk()]}).encode()


def _identified(bearer: str) -> Identity | None:
    """What the token vouches for, to a server with the key; None: it was refused in the server's own words."""
    clock = ManualClock()
    tokens = Tokens(RULES, KeySet(_set_of_one, clock, JWT_ALGORITHMS), clock)
    refused = ""
    try:
        return asyncio.run(tokens.identify(bearer))
    except ApiError as error:
        refused = error.code
    assert refused in ("token_invalid", "token_expired")
    return None


@given(HEADERS, CLAIMS, st.binary(max_size=40) | st.none(), st.text(max_size=6))
@example({}, {"aud": AUDIENCE}, None, "")
def test_any_token_is_refused_or_says_who_it_is(
    header: dict[str, Any], claims: dict[str, Any], payload: bytes | None, more: str
) -> None:
    valid = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": 1_700_000_100}
    plain = {"alg": "ES256", "kid": "one"}
    body = json.dumps({**valid, **claims}).encode() if payload is None else payload
    good = KEY.sign(plain, body)
    found = _identified(good)
    if found is not None:
        said = {**valid, **claims}
        assert payload is None
        assert (said["iss"], f"jwt+{said['sub']}") == (ISSUER, found.owner)
    odd = f"{b64(json.dumps({**plain, **header}).encode())}.{good.partition('.')[2]}"
    for bearer in (odd, odd + more, good[: len(good) // 2] + more, f"{more}.{more}.{more}"):
        if bearer.count(".") == 2 and bearer != good:
            assert _identified(bearer) is None


@given(VALUES.map(lambda value: json.dumps({"keys": value}).encode()) | st.binary(max_size=60), VALUES)
def test_any_key_set_is_refused_or_has_keys_that_can_verify(text: bytes, value: Any) -> None:
    for given_set in (text, json.dumps({"keys": [value, {**KEY.jwk(), "n": value, "x": value}]}).encode()):
        try:
            assert all(key.algorithm in JWT_ALGORITHMS for key in signing_keys(given_set, JWT_ALGORITHMS))
        except BadKeySet:
            pass


# What runs when a token ends


async def work(watch: KeyWatch, identity: Identity) -> str:
    try:
        async with watch.over(identity):
            await asyncio.Event().wait()
    except ApiError as error:
        return error.code
    raise AssertionError("it waits for ever")


async def pass_time(clock: ManualClock, seconds: float) -> None:
    await clock.until_sleeping()
    await clock.advance(seconds)
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_ends_with_its_token(world: World) -> None:
    async def is_valid(identity: Identity) -> bool:
        return world.tokens.is_valid(identity)

    watch = KeyWatch(world.clock, is_valid)
    short = await world.tokens.identify(world.token(exp=world.now - 29))
    long = await world.tokens.identify(world.token())
    ends, goes_on = (asyncio.create_task(work(watch, identity)) for identity in (short, long))
    await pass_time(world.clock, POLL_SECONDS)
    assert (ends.done(), goes_on.done()) == (True, False)
    assert await ends == "token_expired"
    world.served.publish(IssuerKey("two").jwk())
    await world.keys.fetch()
    await pass_time(world.clock, POLL_SECONDS)
    assert await goes_on == "token_expired", "its key was withdrawn"
