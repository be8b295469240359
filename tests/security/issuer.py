"""An issuer of JWTs: its keys, its tokens, and a real HTTP server for its key set."""

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import jwt
import msgspec
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER = "https://issuer.example"
AUDIENCE = "holdfast"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

_RSA = {size: rsa.generate_private_key(public_exponent=65537, key_size=size) for size in (1024, 2048)}
"""Made once: making one takes long."""


class IssuerKey:
    """One key pair."""

    def __init__(self, kid: str | None, algorithm: str = "ES256", *, rsa_bits: int = 2048) -> None:
        self.kid = kid
        self.algorithm = algorithm
        self.private: PrivateKey = _private(algorithm, rsa_bits)

    def jwk(self, **more: Any) -> dict[str, Any]:
        """The public key, as the set has it."""
        made = jwt.get_algorithm_by_name(self.algorithm).to_jwk(self.private.public_key(), as_dict=True)
        named = {} if self.kid is None else {"kid": self.kid}
        return {**made, **named, "use": "sig", **more}

    def sign(self, header: Mapping[str, Any], payload: bytes) -> str:
        """Any header over any payload, signed with this key as the header's algorithm says."""
        signed = f"{b64(json.dumps(header).encode())}.{b64(payload)}"
        algorithm = jwt.get_algorithm_by_name(str(header.get("alg", self.algorithm)))
        return f"{signed}.{b64(algorithm.sign(signed.encode(), self.private))}"

    def token(self, claims: Mapping[str, Any], **header: Any) -> str:
        named = {} if self.kid is None else {"kid": self.kid}
        return self.sign({"alg": self.algorithm, "typ": "JWT", **named, **header}, json.dumps(claims).encode())


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def unsigned(claims: Mapping[str, Any], algorithm: str = "none") -> str:
    header = {"alg": algorithm, "typ": "JWT", "kid": "one"}
    return f"{b64(json.dumps(header).encode())}.{b64(json.dumps(claims).encode())}."


def with_hmac(claims: Mapping[str, Any], secret: bytes) -> str:
    """Signed with a public key as if it were a shared secret."""
    header = {"alg": "HS256", "typ": "JWT", "kid": "one"}
    signed = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(claims).encode())}"
    return f"{signed}.{b64(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


class KeySetServer:
    """Serves a key set over HTTP, and counts how often it is asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = 0
        self.status = 200
        self.body = b""
        self.headers: dict[str, str] = {}

    def publish(self, *keys: dict[str, Any]) -> None:
        self.status, self.body = 200, msgspec.json.encode({"keys": keys})

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(status=self.status, body=self.body, headers=self.headers)


@asynccontextmanager
async def key_set_server() -> AsyncIterator[KeySetServer]:
    served = KeySetServer()
    app = web.Application()
    app.router.add_get("/keys", served._answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/keys"
    try:
        yield served
    finally:
        await runner.cleanup()


def _private(algorithm: str, rsa_bits: int) -> PrivateKey:
    match algorithm:
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "ES384":
            return ec.generate_private_key(ec.SECP384R1())
        case _:
            return _RSA[rsa_bits]
