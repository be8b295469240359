"""TLS in front of a Valkey whose program was built without it."""

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.valkey_server import Valkey


def self_signed(folder: Path) -> Path:
    """A certificate for this machine, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    file = folder / "certificate.pem"
    file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return file


@contextlib.asynccontextmanager
async def tls_in_front_of(server: Valkey, certificate: Path) -> AsyncIterator[int]:
    """The port of a TLS proxy in front of the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            await asyncio.gather(_copy(reader, behind_writer), _copy(behind_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for stream in (writer, behind_writer):
                stream.close()
                with contextlib.suppress(OSError):
                    await stream.wait_closed()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    async with listening:
        yield int(listening.sockets[0].getsockname()[1])
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()
