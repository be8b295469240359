"""Signatures by the convention of Standard Webhooks: verified with the secret, the id, the time and the body."""

import base64

import msgspec
import pytest

from holdfast.client import WebhookNotVerified, verify_webhook
from holdfast.events.ids import EventId
from holdfast.events.webhook import report_of_test
from holdfast.protocol.webhook_signature import secret_text, signed_headers

SECRET = b"0123456789abcdef0123456789abcdef"
NOW = 1_700_000_000
REPORT = report_of_test(EventId("e1"), 5)
BODY = msgspec.json.encode(REPORT)


def test_the_signature_is_that_of_the_convention() -> None:
    """The example of the specification: its secret, id, time and body, and the signature that they give."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', [secret], seconds=1614265330)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_request_is_verified_with_either_of_two_secrets() -> None:
    headers = signed_headers("e1", BODY, [b"new" * 8, SECRET], seconds=NOW)
    for secret in (b"new" * 8, SECRET):
        assert verify_webhook(secret_text(secret), headers, BODY, now=NOW + 299) == REPORT
    upper = {name.title(): value for name, value in headers.items()}
    assert verify_webhook(secret_text(SECRET), upper, BODY, now=NOW - 299) == REPORT


@pytest.mark.parametrize(
    ("change", "body", "now"),
    [
        ({"webhook-id": "e2"}, BODY, NOW),
        ({"webhook-timestamp": str(NOW + 1)}, BODY, NOW),
        ({"webhook-timestamp": "soon"}, BODY, NOW),
        ({"webhook-timestamp": "²"}, BODY, NOW),
        ({"webhook-timestamp": ""}, BODY, NOW),
        ({"webhook-signature": "v1,AAAA"}, BODY, NOW),
        ({"webhook-signature": "v1,é\ud800"}, BODY, NOW),
        ({"webhook-signature": ""}, BODY, NOW),
        ({}, BODY + b" ", NOW),
        ({}, BODY, NOW + 301),
        ({}, BODY, NOW - 301),
    ],
)
def test_a_request_that_was_changed_or_is_old_is_not_verified(change: dict[str, str], body: bytes, now: int) -> None:
    headers = signed_headers("e1", BODY, [SECRET], seconds=NOW) | change
    with pytest.raises(WebhookNotVerified):
        verify_webhook(secret_text(SECRET), headers, body, now=now)


def test_another_secret_or_text_that_is_none_does_not_verify() -> None:
    headers = signed_headers("e1", BODY, [SECRET], seconds=NOW)
    for secret in (secret_text(b"other"), "whsec_!", "", "é"):
        with pytest.raises(WebhookNotVerified):
            verify_webhook(secret, headers, BODY, now=NOW)


def test_a_signed_body_that_is_no_report_is_not_verified() -> None:
    for body in (b"[]", b"\xff", b"{}"):
        headers = signed_headers("e1", body, [SECRET], seconds=NOW)
        with pytest.raises(WebhookNotVerified):
            verify_webhook(secret_text(SECRET), headers, body, now=NOW)


def test_fields_of_a_newer_server_are_ignored() -> None:
    body = msgspec.json.encode({**msgspec.to_builtins(REPORT), "more": 1})
    headers = signed_headers("e1", body, [SECRET], seconds=NOW)
    assert verify_webhook(secret_text(SECRET), headers, body, now=NOW) == REPORT
