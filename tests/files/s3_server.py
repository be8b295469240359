"""A real S3 server, as a process in an environment of its own that pip makes once."""

import contextlib
import hashlib
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("s3_requirements.txt")
FOLDER = Path(sys.prefix) / "s3"
BUCKET = "files"


def _installed() -> Path:
    """The environment's Python. What an earlier run made is used if it is whole and has these versions."""
    python, kept = FOLDER / "bin" / "python", FOLDER / "installed"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if not kept.is_file() or kept.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(FOLDER)], check=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "--disable-pip-version-check",
            "install",
            "--quiet",
        ]
        subprocess.run([*pip, "--no-deps", "--requirement", str(REQUIREMENTS)], check=True)
        kept.write_text(wanted)
    return python


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server with one empty bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [str(_installed()), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not _answers(f"{url}/{BUCKET}"):
            assert server.poll() is None, "the S3 server ended"
        yield url
    finally:
        server.terminate()
        server.wait()


def _answers(bucket: str) -> bool:
    """Whether the server answers; it has the bucket then."""
    try:
        with urllib.request.urlopen(urllib.request.Request(bucket, method="PUT"), timeout=10):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False
