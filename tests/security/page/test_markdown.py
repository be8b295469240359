"""The page renders any text of a model with a few harmless elements, and runs none of it."""

import re
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.web import chromium
from tests.web.drawing import drawing

TEXT: Final = {"div", "p", "br", "hr", "em", "strong", "del", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6"}
LISTS: Final = {"ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td"}
WRITTEN: Final = {"b", "i", "u", "s", "sub", "sup", "kbd", "mark", "details", "summary"}
CODE: Final = {"code", "pre", "figure", "figcaption", "span", "button", "svg", "path", "rect"}
ELEMENTS: Final = TEXT | LISTS | WRITTEN | CODE | {"a"}

OF_THE_PAGE: Final = {"div", "figure", "figcaption", "span", "button", "svg", "path", "rect", "pre", "code"}
"""The page writes these itself, with attributes of its own: a model can't."""

ATTRIBUTES: Final = {"a": {"href", "title", "target", "rel"}, "ol": {"start"}, "th": {"align"}, "td": {"align"}}
SAFE_ADDRESS: Final = re.compile(
    r"(?i)(https?|mailto|tel|ftp|sms|callto|cid|xmpp|matrix):|[^a-z]|[a-z+.-]+([^a-z+.:-]|$)"
)

HOSTILE: Final = (
    "<script>hurt()</script>",
    "<img src=x onerror=hurt()>",
    "<svg/onload=hurt()>",
    "<b onclick=hurt()>b</b>",
    "<details open ontoggle=hurt()>",
    '<a href="javascript:hurt()">a</a>',
    "[a](javascript:hurt())",
    "[a](<java\tscript:hurt()>)",
    "[a](&#x6a;avascript:hurt())",
    "[a](JaVaScRiPt&colon;hurt())",
    "[a](vbscript:hurt())",
    "[a](data:text/html,<script>hurt()</script>)",
    '[a](x "y\' onmouseover=hurt() z=")',
    "![a](x' onerror='hurt())",
    '![a](x"onerror="hurt())',
    "<javascript:hurt()>",
    "[a]: javascript:hurt()\n\n[a]",
    "<!--><img src=x onerror=hurt()>-->",
    "<![CDATA[<img src=x onerror=hurt()>]]>",
    "<math><mtext></table><mglyph><style><img src=x onerror=hurt()>",
    "<noscript><p title='</noscript><img src=x onerror=hurt()>'>",
    "```html\n<img src=x onerror=hurt()>\n```",
    "```javascript onload=hurt()\n<!--</code></pre><img src=x onerror=hurt()>\n```",
    "~~~xml\n<![CDATA[</code><script>hurt()</script>]]>\n~~~",
    "| a |\n|---|\n| <img src=x onerror=hurt()> |",
    "&lt;img src=x onerror=hurt()&gt;",
    "\\<img src=x onerror=hurt()\\>",
    "<summary><b><kbd><mark>",
    "</div></main></body>",
    "<base href=//evil><form action=//evil><input name=x autofocus onfocus=hurt()>",
    "<template><img src=x onerror=hurt()></template>",
    "http://x.y/'onmouseover=hurt()//",
    "www.x.y/\"onmouseover='hurt()'",
)
MARKS: Final = (
    *"\n\n\n \t`*_~[]()<>!#-+|\\&;:\"'=/.1aé\0\u202e😀",
    *("\n\n", "```", "    ", "> ", "- ", "1. ", "&#", "&#x"),
)

pieces = some.lists(some.sampled_from(HOSTILE) | some.sampled_from(MARKS) | some.text(max_size=4), max_size=25)


def setup_module() -> None:
    try:
        chromium.found_or_installed(print)
    except chromium.NoChromium as missing:
        pytest.skip(f"THE PAGE IS NOT TESTED: {missing}")


def check(pieces: list[str]) -> None:
    elements, hurts = drawing().drawn(pieces)
    assert hurts == 0
    for name, attributes in elements:
        assert name in ELEMENTS
        assert name in OF_THE_PAGE or attributes.keys() <= ATTRIBUTES.get(name, set()), (name, attributes)
        assert not any(each.startswith("on") for each in attributes), (name, attributes)
        if name == "a" and "href" in attributes:
            assert SAFE_ADDRESS.match(attributes["href"]), attributes
            assert attributes["rel"] == "noopener noreferrer nofollow"


@settings(deadline=None)
@given(pieces=pieces)
def test_no_markdown_however_hostile_becomes_more_than_text(pieces: list[str]) -> None:
    check(pieces)


@pytest.mark.parametrize("text", HOSTILE)
def test_each_hostile_text_is_harmless_whole_and_letter_by_letter(text: str) -> None:
    check([text])
    check(list(text))
