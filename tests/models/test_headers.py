"""Headers that a client chose."""

import pytest

from holdfast.models.errors import BadHeader
from holdfast.models.headers import MAX_HEADER_CHARACTERS, check_headers


def test_custom_headers_may_be_sent() -> None:
    check_headers({"X-Trace": 'a b; c="d"', "user-agent": "mine", "Cookie": ""})


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "é", "a\x00"])
def test_invalid_header_name_is_refused(name: str) -> None:
    with pytest.raises(BadHeader, match="a header has an invalid name"):
        check_headers({name: "x"})


@pytest.mark.parametrize("value", ["a\rb", "a\nb", "a\tb", "a\x00", "é", "\x7f"])
def test_unsendable_header_value_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(BadHeader, match="X-Secret") as raised:
        check_headers({"X-Secret": value})
    assert value not in str(raised.value)


@pytest.mark.parametrize("name", ["Host", "CONTENT-LENGTH", "content-type", "Transfer-Encoding", "Connection"])
@pytest.mark.parametrize("may_authorize", [True, False])
def test_headers_of_the_call_itself_are_refused(name: str, may_authorize: bool) -> None:
    with pytest.raises(BadHeader, match=name):
        check_headers({name: "x"}, may_authorize=may_authorize)


@pytest.mark.parametrize("name", ["Authorization", "API-Key", "proxy-authorization"])
def test_authenticating_headers_need_permission(name: str) -> None:
    check_headers({name: "x"}, may_authorize=True)
    with pytest.raises(BadHeader, match=name):
        check_headers({name: "x"})


def test_total_size_of_headers_is_bounded() -> None:
    check_headers({"a": "x" * (MAX_HEADER_CHARACTERS - 1)})
    with pytest.raises(BadHeader, match="more than 16,384 characters"):
        check_headers({"a": "x" * MAX_HEADER_CHARACTERS})
