"""What Anthropic's Messages refuse, as far as an agent can run into it: the scripted server is as strict.

Each rule raises `CallRefused` with the place of the fault, in the way of the real API.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from holdfast.events.message import PDF
from holdfast.models.messages_limits import LEAST_BUDGET
from holdfast.models.messages_parts import IMAGE_TYPES, THINKING
from holdfast.models.served_chat import image_bytes
from holdfast.models.served_protocol import CallRefused
from holdfast.models.served_thinking import is_sealed, is_signed

MAX_MARKS: Final = 4

THOUGHT: Final = "_thought"
"""The end of the id of a tool call that followed thinking: the thinking must come back with it."""

_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_OF_USER: Final = ("text", "image", "document", "tool_result")
_OF_ASSISTANT: Final = ("text", "tool_use", *THINKING)
_THINKING_TYPES: Final = ("enabled", "disabled", "adaptive", "between_tools")

Block = dict[str, Any]
Turn = tuple[str, list[Block]]
"""A role, and all blocks of consecutive messages with it."""


def turns_of(messages: Sequence[Any]) -> list[Turn]:
    """The messages with their content as blocks; those of the same role in a row are one."""
    turns: list[Turn] = []
    for number, message in enumerate(messages):
        at = f"messages.{number}"
        role, blocks = _role_of(message, at), _blocks_of(message, at)
        for index, block in enumerate(blocks):
            _check_block(block, role, f"{at}.content.{index}")
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    _require(bool(turns), "messages: at least one message is required")
    _require(turns[0][0] == "user", "messages: first message must use the user role")
    return turns


def check_turns(turns: Sequence[Turn], *, thinking: str) -> None:
    """The rules about several messages: tools and their results, the ends of answers, thinking that must come back.
    `thinking` is the type of the call's setting."""
    ids = [block["id"] for _, blocks in turns for block in blocks if block["type"] == "tool_use"]
    _require(len(set(ids)) == len(ids), "messages: `tool_use` ids must be unique")
    for number, (role, blocks) in enumerate(turns):
        if role == "user":
            _check_results(turns, number)
        elif number < len(turns) - 1:
            last = blocks[-1]["type"]
            _require(
                last not in THINKING, f"messages.{number}: The final block in an assistant message cannot be `{last}`."
            )
    if turns[-1][0] == "user":
        _check_thinking_came_back(turns, thinking)
    else:
        _check_continued(turns[-1][1])


def check_settings(call: dict[str, Any]) -> str:
    """The rules about the fields beside the messages. Returns the type of thinking; empty if the call leaves it out."""
    _require(call["max_tokens"] >= 1, "max_tokens: Input should be greater than or equal to 1")
    thinking = call.get("thinking") or {}
    kind = thinking.get("type", "")
    _require(not thinking or kind in _THINKING_TYPES, f"thinking: Input tag {kind!r} does not match the expected tags")
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        _require(
            isinstance(budget, int) and budget >= LEAST_BUDGET,
            f"thinking.enabled.budget_tokens: Input should be an integer greater than or equal to {LEAST_BUDGET}",
        )
        _require(call["max_tokens"] > (budget or 0), "`max_tokens` must be greater than `thinking.budget_tokens`.")
    return str(kind)


def check_tools(tools: Sequence[Any]) -> None:
    for number, tool in enumerate(tools):
        name, schema = tool.get("name"), tool.get("input_schema")
        _require(
            isinstance(name, str) and _NAME.fullmatch(name) is not None,
            f"tools.{number}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'",
        )
        _require(isinstance(schema, dict), f"tools.{number}.custom.input_schema: Field required")
        _require(schema.get("type") == "object", f"tools.{number}.custom.input_schema.type: Input should be 'object'")
    names = [tool["name"] for tool in tools]
    _require(len(set(names)) == len(names), "tools: Tool names must be unique.")


def check_system(blocks: Iterable[Any]) -> None:
    for number, block in enumerate(blocks):
        at = f"system.{number}"
        _require(isinstance(block, dict) and block.get("type") == "text", f"{at}: Input should be a text block")
        _check_text(block, at)


def check_marks(marks: Sequence[Any]) -> None:
    _require(
        all(isinstance(mark, dict) and mark.get("type") == "ephemeral" for mark in marks),
        "cache_control.type: Input should be 'ephemeral'",
    )
    _require(
        len(marks) <= MAX_MARKS,
        f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {len(marks)}.",
    )


def marks_in(value: Any) -> list[Any]:
    """Every mark in a JSON value."""
    if isinstance(value, dict):
        own = [value["cache_control"]] if value.get("cache_control") is not None else []
        inner = (part for name, part in value.items() if name not in ("cache_control", "input", "input_schema"))
        return own + [mark for part in inner for mark in marks_in(part)]
    return [mark for part in value for mark in marks_in(part)] if isinstance(value, list) else []


def _role_of(message: Any, at: str) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    _require(role in ("user", "assistant"), f"{at}.role: Input should be 'user' or 'assistant'")
    return str(role)


def _blocks_of(message: dict[str, Any], at: str) -> list[Block]:
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    _require(isinstance(content, list), f"{at}.content: Input should be a valid list")
    _require(bool(content), f"{at}: all messages must have non-empty content")
    return [dict(block) if isinstance(block, dict) else {} for block in content or ()]


def _check_block(block: Block, role: str, at: str) -> None:
    kind = block.get("type")
    known = _OF_USER if role == "user" else _OF_ASSISTANT
    _require(
        kind in known, f"{at}: Input tag {kind!r} found using 'type' does not match any of the expected tags: {known}"
    )
    match kind:
        case "text":
            _check_text(block, at)
        case "image":
            _check_image(block.get("source"), at)
        case "document":
            _check_document(block.get("source"), at)
        case "tool_use":
            _check_id(block.get("id"), f"{at}.tool_use.id")
            _require(isinstance(block.get("input"), dict), f"{at}.tool_use.input: Input should be an object")
            _require(
                _NAME.fullmatch(str(block.get("name"))) is not None, f"{at}.tool_use.name: String is no tool's name"
            )
        case "tool_result":
            _check_id(block.get("tool_use_id"), f"{at}.tool_result.tool_use_id")
            _check_result_content(block.get("content", ""), f"{at}.tool_result.content")
        case _:
            _check_thinking(block, at)


def _check_text(block: Block, at: str) -> None:
    text = block.get("text")
    _require(isinstance(text, str), f"{at}.text: Field required")
    _require(bool(text), f"{at}: text content blocks must be non-empty")
    _require(bool(str(text).strip()), f"{at}: text content blocks must contain non-whitespace text")


def _check_image(source: Any, at: str) -> None:
    _require(isinstance(source, dict), f"{at}.image.source: Field required")
    if source.get("type") == "base64":
        _require(
            source.get("media_type") in IMAGE_TYPES, f"{at}.image.source.base64.media_type: Input is not supported"
        )
        _require(bool(image_bytes(str(source.get("data")))), f"{at}.image.source.base64: invalid base64 data")
    else:
        _require(source.get("type") in ("url", "file"), f"{at}.image.source: Input tag is not known")


def _check_document(source: Any, at: str) -> None:
    _require(isinstance(source, dict), f"{at}.document.source: Field required")
    _require(source.get("media_type") == PDF, f"{at}.document.source.base64.media_type: Input should be '{PDF}'")
    _require(bool(image_bytes(str(source.get("data")))), f"{at}.document.source.base64: invalid base64 data")


def _check_id(value: Any, at: str) -> None:
    _require(
        isinstance(value, str) and _ID.fullmatch(value) is not None,
        f"{at}: String should match pattern '^[a-zA-Z0-9_-]+$'",
    )


def _check_result_content(content: Any, at: str) -> None:
    _require(isinstance(content, (str, list)), f"{at}: Input should be a string or a list")
    for number, block in enumerate(content if isinstance(content, list) else ()):
        kind = block.get("type") if isinstance(block, dict) else None
        _require(
            kind in ("text", "image"), f"{at}.{number}: Input tag {kind!r} does not match any of the expected tags"
        )
        _check_block(block, "user", f"{at}.{number}")


def _check_thinking(block: Block, at: str) -> None:
    _require("cache_control" not in block, f"{at}: cache_control cannot be set on `{block['type']}` blocks")
    if block["type"] == "redacted_thinking":
        _require(is_sealed(str(block.get("data"))), f"{at}: Invalid `data` in `redacted_thinking` block")
        return
    thinking, signature = block.get("thinking"), block.get("signature")
    _require(isinstance(thinking, str), f"{at}.thinking.thinking: Field required")
    _require(isinstance(signature, str), f"{at}.thinking.signature: Field required")
    _require(is_signed(str(thinking), str(signature)), f"{at}: Invalid `signature` in `thinking` block")


def _check_results(turns: Sequence[Turn], number: int) -> None:
    """Each call has its result at the beginning of the next message, and each result its call."""
    blocks = turns[number][1]
    called = [block["id"] for block in turns[number - 1][1] if block["type"] == "tool_use"] if number else []
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    at = f"messages.{number}"
    for tool_use_id in results:
        _require(
            tool_use_id in called,
            f"{at}: unexpected `tool_use_id` found in `tool_result` blocks: {tool_use_id}. Each `tool_result` block "
            "must have a corresponding `tool_use` block in the previous message.",
        )
    _require(len(set(results)) == len(results), f"{at}: each tool_use must have a single result")
    first = [block["type"] for block in blocks[: len(results)]]
    missing = [tool_use_id for tool_use_id in called if tool_use_id not in results]
    _require(
        not missing and first == ["tool_result"] * len(results),
        f"{at}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(missing or called)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
        "next message.",
    )


def _check_continued(blocks: Sequence[Block]) -> None:
    """The answer at the end of the messages, which the model shall continue."""
    _require(
        all(block["type"] != "tool_use" for block in blocks),
        "messages: `tool_use` ids were found without `tool_result` blocks immediately after",
    )
    text = blocks[-1].get("text", "")
    _require(text == text.rstrip(), "messages: final assistant content cannot end with trailing whitespace")


def _check_thinking_came_back(turns: Sequence[Turn], thinking: str) -> None:
    """In an unfinished turn of tools, its first answer begins with thinking if the call wants to think by a budget; and
    the last answer still has the thinking that it came with."""
    answers: list[list[Block]] = []
    for number in range(len(turns) - 1, 0, -2):
        if turns[number][1][0]["type"] != "tool_result":
            break
        answers.append(turns[number - 1][1])
    if not answers or thinking == "disabled":
        return
    expected = [answers[-1]] if thinking == "enabled" else []
    expected += [answers[0]] if any(str(block.get("id")).endswith(THOUGHT) for block in answers[0]) else []
    for blocks in expected:
        _require(
            blocks[0]["type"] in THINKING,
            f"messages.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{blocks[0]['type']}`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block.",
        )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise CallRefused("invalid", message)
