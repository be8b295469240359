"""Where a server may be, and to whom the token of a local one is shown."""

import os
from pathlib import Path

import pytest

from holdfast.client.address import ClientKey, key_source, parse_url, start_token
from holdfast.client.errors import AddressInvalid
from holdfast.config import Secret


@pytest.mark.parametrize(
    ("given", "url", "is_local"),
    [
        ("http://127.0.0.1:8787", "http://127.0.0.1:8787", True),
        ("http://127.0.0.1:8787/", "http://127.0.0.1:8787", True),
        ("http://localhost:8787", "http://127.0.0.1:8787", True),
        ("HTTP://LOCALHOST.:8787/", "http://127.0.0.1:8787", True),
        ("http://127.0.0.2:8787", "http://127.0.0.2:8787", False),
        ("http://[::1]:8787", "http://[::1]:8787", False),
        ("https://localhost", "https://localhost", False),
        ("https://agents.example/holdfast/", "https://agents.example/holdfast", False),
    ],
)
def test_an_address_has_one_name_and_only_the_usual_one_of_this_machine_is_local(
    given: str, url: str, is_local: bool
) -> None:
    address, token = parse_url(given)
    assert (address.url, address.is_local, token) == (url, is_local, None)


@pytest.mark.parametrize("mark", ["#", "?"])
def test_the_link_that_a_server_prints_is_an_address_with_a_token(mark: str) -> None:
    address, token = parse_url(f"http://127.0.0.1:8787/{mark}token=abc")
    assert (address.url, token) == ("http://127.0.0.1:8787", Secret("abc"))


@pytest.mark.parametrize(
    "given",
    [
        "",
        "127.0.0.1:8787",
        "ftp://host",
        "http://",
        "http://h:port",
        "http://u:secret@h",
        "http://h/?a=1",
        "http://h/#a",
    ],
)
def test_an_invalid_server_address_is_refused_without_repeating_its_secrets(given: str) -> None:
    with pytest.raises(AddressInvalid) as refused:
        parse_url(given)
    assert "secret" not in refused.value.message


def test_the_token_of_a_local_server_is_shown_to_its_own_address_alone(tmp_path: Path) -> None:
    _token(tmp_path, "the-token")
    shown = {
        url: key_source(parse_url(url)[0], None, tmp_path)()
        for url in ("http://localhost:8787", "http://[::1]:8787", "http://127.0.0.1:8788", "http://10.0.0.1:8787")
    }
    assert [url for url, key in shown.items() if key is not None] == ["http://localhost:8787"]
    assert key_source(parse_url("http://localhost:8787")[0], "mine", tmp_path)() == ClientKey(
        Secret("mine"), is_token=False
    )


def test_a_token_that_others_could_have_written_is_not_believed(tmp_path: Path) -> None:
    path = _token(tmp_path, "the-token")
    assert start_token(tmp_path, 8787) == Secret("the-token")
    path.chmod(0o620)
    assert start_token(tmp_path, 8787) is None
    path.unlink()
    assert start_token(tmp_path, 8787) is None
    path.symlink_to(_token(tmp_path, "other", port=1))
    assert start_token(tmp_path, 8787) is None


def _token(folder: Path, token: str, port: int = 8787) -> Path:
    path = folder / f"serve-{port}.token"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(f"{token}\n")
    return path
