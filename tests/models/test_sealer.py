"""Sealed text is readable with the same key and for the same session, and not otherwise."""

import pytest

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.models.sealer import Sealer

KEY = Key(Owner("ann"), SessionId("s"))
TEXT = b'{"github_token":"hush"}'


@pytest.fixture(scope="module")
def sealer() -> Sealer:
    return Sealer("a key that is long enough")


def test_same_key_unseals_in_another_process(sealer: Sealer) -> None:
    assert Sealer("a key that is long enough").unseal(KEY, sealer.seal(KEY, TEXT)) == TEXT


def test_sealed_bytes_and_repr_reveal_nothing(sealer: Sealer) -> None:
    sealed = sealer.seal(KEY, TEXT)
    assert b"hush" not in sealed
    assert sealer.seal(KEY, TEXT) != sealed
    assert "long enough" not in f"{sealer!r} {sealer.name}"


def test_another_key_has_another_name_and_unseals_nothing(sealer: Sealer) -> None:
    other = Sealer("another key that is long")
    assert other.name != sealer.name
    assert other.unseal(KEY, sealer.seal(KEY, TEXT)) is None


@pytest.mark.parametrize("key", [Key(Owner("bob"), SessionId("s")), Key(Owner("an"), SessionId("ns"))])
def test_text_sealed_for_one_session_does_not_unseal_for_another(sealer: Sealer, key: Key) -> None:
    assert sealer.unseal(key, sealer.seal(KEY, TEXT)) is None


def test_damaged_text_does_not_unseal(sealer: Sealer) -> None:
    sealed = sealer.seal(KEY, TEXT)
    for damaged in (b"", sealed[:5], sealed[:-1], sealed[:-1] + bytes([sealed[-1] ^ 1])):
        assert sealer.unseal(KEY, damaged) is None
