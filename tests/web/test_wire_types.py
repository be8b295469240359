"""The page's types of the wire are those of the server's OpenAPI document."""

from web.wire_types import TARGET, wire_types


def test_the_types_of_the_page_are_generated_from_the_document() -> None:
    assert TARGET.read_text(encoding="utf-8") == wire_types(), "Run `make page` and commit what it writes."
