"""What the families of models take, and their longest answers: no list of prices says so.

Only facts that hold for a whole family are here. A family that is missing is taken to understand everything.
"""

import re
from typing import Final

import msgspec


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What all models of a family have in common."""

    max_output: int | None = None
    images: bool = True
    documents: bool = False
    tools: bool = True
    thinking: bool = True


FAMILIES: Final = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (r"claude-(v1|v2|2|instant)", Family(max_output=4_096, images=False, tools=False, thinking=False)),
        (r"claude-3-(opus|sonnet|haiku)", Family(max_output=4_096, thinking=False)),
        (r"claude-3-5-", Family(max_output=8_192, documents=True, thinking=False)),
        (r"claude-opus-4(-[01])?([-@](latest|20\d{6}))?$", Family(max_output=32_000, documents=True)),
        # Later ones may write more. Asking for less is always accepted.
        (r"claude-", Family(max_output=64_000, documents=True)),
        (r"gpt-3\.5-turbo-instruct", Family(max_output=4_096, images=False, tools=False, thinking=False)),
        (r"gpt-3\.5", Family(max_output=4_096, images=False, thinking=False)),
        (r"chatgpt-4o", Family(max_output=16_384, tools=False, thinking=False)),
        (r"gpt-4(o|\.5)", Family(max_output=16_384, documents=True, thinking=False)),
        (r"gpt-4\.1", Family(max_output=32_768, documents=True, thinking=False)),
        (r"gpt-4-(turbo|vision)", Family(max_output=4_096, thinking=False)),
        (r"gpt-4", Family(max_output=8_192, images=False, thinking=False)),
        (r"gpt-oss", Family(images=False)),
        (r"gpt-[5-9](\.\d+)?-chat", Family(max_output=16_384, documents=True, thinking=False)),
        (r"gpt-[5-9]", Family(max_output=128_000, documents=True)),
        (r"o1-(mini|preview)", Family(max_output=32_768, images=False, tools=False)),
        (r"o3-mini", Family(max_output=100_000, images=False)),
        (r"o[134](-|$)", Family(max_output=100_000, documents=True)),
    )
)


def family_of(model: str) -> Family | None:
    """The family of a model, by its provider's name or a router's (`anthropic/claude-3.5-haiku`); None if unknown."""
    name = model.lower().rpartition("/")[2]
    if name.startswith("claude"):
        name = name.replace(".", "-")
    return next((family for pattern, family in FAMILIES if pattern.match(name)), None)
