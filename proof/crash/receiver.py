"""The receiver of a trial's webhook: a process of its own that is slow, answers 500, and is killed and begins anew.

It outlives the processes of the runtime, and writes every request down before it answers. What it does depends only on
how many requests came before, so that a trial can be repeated.
"""

import contextlib
import hashlib
import os
import signal
import socket
import time
from pathlib import Path

import msgspec

from holdfast.protocol.webhook_signature import WebhookNotVerified, secret_text, verify_webhook

PORT = "receiver-port"
RECEIVED = "received"
PID = "receiver-pid"

SECRET = b"the secret of the webhook of it."

REFUSED = 4
"""How often the first event is answered with 500."""
DEADLY, SLOW = 1, 2
"""The request that is taken, and then the receiver is killed before it answers; and the one that is taken, and answered
when nobody waits any more. Requests that are taken are counted from 1."""

SLOW_SECONDS = 0.4
ATTEMPT_SECONDS = 0.25
"""How long the deliverers of a trial wait for an answer."""

READ_SECONDS = 5.0


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    id: str
    session: str
    is_accepted: bool
    is_verified: bool
    digest: str
    """Of its body."""


_decoder = msgspec.json.Decoder(Received)


def received(folder: Path) -> tuple[Received, ...]:
    """All requests so far."""
    file = folder / RECEIVED
    return tuple(_decoder.decode(line) for line in file.read_bytes().splitlines()) if file.exists() else ()


def url_of(folder: Path) -> str:
    return f"http://127.0.0.1:{(folder / PORT).read_text()}/hook"


def begin(folder: Path) -> None:
    """Start it. Its port is open on return."""
    listener = socket.create_server(("127.0.0.1", 0))
    (folder / PORT).write_text(str(listener.getsockname()[1]))
    minder = os.fork()
    if minder == 0:
        try:
            os.setsid()
            _mind(listener, folder)
        finally:
            os._exit(1)
    (folder / PID).write_text(str(minder))
    listener.close()


def end(folder: Path) -> None:
    """With the process that minds it. Nothing of a trial may outlive it."""
    file = folder / PID
    if not file.exists():
        return
    minder = int(file.read_text())
    with contextlib.suppress(ProcessLookupError):
        os.killpg(minder, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(minder, 0)


def _mind(listener: socket.socket, folder: Path) -> None:
    """Begin the receiver anew whenever it was killed."""
    while True:
        pid = os.fork()
        if pid == 0:
            try:
                _serve(listener, folder)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            return


def _serve(listener: socket.socket, folder: Path) -> None:
    while True:
        connection, _ = listener.accept()
        connection.settimeout(READ_SECONDS)
        with connection, contextlib.suppress(OSError):
            request = _read(connection)
            if request is not None:
                connection.sendall(_answer(*request, folder))


def _read(connection: socket.socket) -> tuple[dict[str, str], bytes] | None:
    """Headers and body; None: the sender went away."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65_536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")[1:]
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers["content-length"]):
        part = connection.recv(65_536)
        if not part:
            return None
        body += part
    return headers, body


def _answer(headers: dict[str, str], body: bytes, folder: Path) -> bytes:
    before = received(folder)
    number = sum(found.is_accepted for found in before) + 1
    of_first = [found for found in before if found.id == before[0].id == headers["webhook-id"]]
    is_refused = not before or 0 < len(of_first) < REFUSED
    session, is_verified = "", True
    try:
        session = verify_webhook(secret_text(SECRET), headers, body).session_id
    except WebhookNotVerified:
        is_verified = False
    taken = Received(
        id=headers["webhook-id"],
        session=session,
        is_accepted=not is_refused,
        is_verified=is_verified,
        digest=hashlib.sha256(body).hexdigest(),
    )
    with (folder / RECEIVED).open("ab") as file:
        file.write(msgspec.json.encode(taken) + b"\n")
    if number == DEADLY and not is_refused:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == SLOW and not is_refused:
        time.sleep(SLOW_SECONDS)
    status = "500 No" if is_refused else "204 Yes"
    return f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
