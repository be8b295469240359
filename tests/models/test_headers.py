"""Headers that somebody else chose."""

import pytest

from holdfast.models.errors import BadHeader
from holdfast.models.headers import MAX_HEADER_CHARACTERS, check_headers


def test_headers_of_ones_own_may_be_sent() -> None:
    check_headers({"X-Trace": 'a b; c="d"', "user-agent": "mine", "Cookie": ""})


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "é", "a\x00"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(BadHeader, match="a name that can't be one"):
        check_headers({name: "x"})


@pytest.mark.parametrize("value", ["a\rb", "a\nb", "a\tb", "a\x00", "é", "\x7f"])
def test_a_value_that_can_not_be_sent_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(BadHeader, match="X-Secret") as raised:
        check_headers({"X-Secret": value})
    assert value not in str(raised.value)


@pytest.mark.parametrize("name", ["Host", "CONTENT-LENGTH", "content-type", "Transfer-Encoding", "Connection"])
@pytest.mark.parametrize("may_authorize", [True, False])
def test_what_the_call_itself_says_is_not_for_others(name: str, may_authorize: bool) -> None:
    with pytest.raises(BadHeader, match=name):
        check_headers({name: "x"}, may_authorize=may_authorize)


@pytest.mark.parametrize("name", ["Authorization", "API-Key", "proxy-authorization"])
def test_who_calls_is_said_only_by_whoever_may(name: str) -> None:
    check_headers({name: "x"}, may_authorize=True)
    with pytest.raises(BadHeader, match=name):
        check_headers({name: "x"})


def test_headers_have_a_bound() -> None:
    check_headers({"a": "x" * (MAX_HEADER_CHARACTERS - 1)})
    with pytest.raises(BadHeader, match="more than 16,384 characters"):
        check_headers({"a": "x" * MAX_HEADER_CHARACTERS})
