"""How a function becomes a tool: its type hints are the parameters, its docstring the description."""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from holdfast.events.request import PermissionAsk
from holdfast.events.session import ClientTool
from holdfast.tools.errors import BadTool, InvalidArguments
from holdfast.tools.registry import Registry
from holdfast.tools.tool import Tool, ToolContext, ToolResult, tool


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Place(msgspec.Struct):
    street: str
    number: int = 1


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    return tool(function).parameters


def test_names_hints_defaults_and_docstring_become_the_model_s_description() -> None:
    @tool
    def paint(colour: str, coats: int = 2, *, wet: bool = False) -> str:
        """Paint the wall.

        All of it.
        """
        return colour

    assert paint.name == "paint"
    assert paint.description == "Paint the wall.\n\nAll of it."
    assert paint.parameters == {
        "type": "object",
        "properties": {
            "colour": {"type": "string"},
            "coats": {"type": "integer", "default": 2},
            "wet": {"type": "boolean", "default": False},
        },
        "required": ["colour"],
        "additionalProperties": False,
    }


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    @tool
    def ping() -> str:
        return "pong"

    assert ping.parameters == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    assert ping.description == ""
    ping.parse("{}")
    ping.parse("")


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (str | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (Any, {}),
        (Annotated[int, msgspec.Meta(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (Annotated[str, msgspec.Meta(description="A colour")], {"type": "string", "description": "A colour"}),
    ],
    ids=str,
)
def test_a_hint_becomes_its_schema(hint: Any, schema: dict[str, Any]) -> None:
    def paint(given: Any) -> None: ...

    paint.__annotations__["given"] = hint
    assert parameters_of(paint)["properties"]["given"] == schema


def test_structs_and_enums_are_defined_beside() -> None:
    def move(to: Place, size: Size = Size.SMALL, others: list[Place] | None = None) -> None: ...

    schema = parameters_of(move)
    assert schema["properties"]["to"] == {"$ref": "#/$defs/Place"}
    assert set(schema["$defs"]) == {"Place", "Size"}
    assert schema["$defs"]["Place"]["required"] == ["street"]
    parsed = tool(move).parse('{"to": {"street": "Elm"}, "size": "large"}')
    assert (parsed.to, parsed.size, parsed.others) == (Place("Elm"), Size.LARGE, None)


def test_the_context_is_not_a_parameter_of_the_model() -> None:
    def look(path: str, where: "ToolContext") -> None: ...

    assert list(parameters_of(look)["properties"]) == ["path"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("{", "truncated"),
        ("[]", "object"),
        ('{"coats": "two", "colour": "red"}', r"\$.coats"),
        ("{}", "colour"),
        ('{"colour": "red", "brush": 1}', "brush"),
        ('"x"', "object"),
        ('{"colour": "\\ud800"}', "colour|surrogate|truncated"),
        ("\ud800", "surrogates"),
        ("[" * 100_000, "object"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_a_sentence(arguments: str, named: str) -> None:
    @tool
    def paint(colour: str, coats: int = 2) -> None: ...

    with pytest.raises(InvalidArguments, match=f"(?i)The arguments of paint are not valid: .*({named})"):
        paint.parse(arguments)


def no_hint(a, b: int) -> None:  # type: ignore[no-untyped-def]
    ...


def many(*names: str) -> None: ...


def options(**named: str) -> None: ...


def positional(a: int, /) -> None: ...


class Thing:
    """Nothing that JSON has a word for."""


def takes_a_thing(thing: Thing) -> None: ...


def unknown_hint(a: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (no_hint, "no_hint: the parameter a needs a type hint"),
        (many, r"many: .*\*names"),
        (options, r"options: .*\*\*named"),
        (positional, "positional: "),
        (takes_a_thing, "(?s)takes_a_thing: .*Thing"),
        (unknown_hint, "unknown_hint: .*Nowhere"),
    ],
)
def test_a_function_that_can_not_be_a_tool_is_refused_when_it_is_defined(
    function: Callable[..., Any], why: str
) -> None:
    with pytest.raises(BadTool, match=why):
        tool(function)


def test_explicit_options_of_a_tool_override_those_read_from_its_function() -> None:
    @tool(name="brush", description="Use it.", after_crash="repeat", read_only=True, timeout_seconds=3)
    def paint() -> None:
        """Not this."""

    assert (paint.name, paint.description, paint.after_crash) == ("brush", "Use it.", "repeat")
    assert (paint.read_only, paint.timeout_seconds) == (True, 3)


def test_a_tool_asks_unless_it_says_otherwise() -> None:
    @tool
    def asks() -> None: ...

    @tool(permission="allow")
    def allowed() -> None: ...

    @tool(permission=lambda arguments, directory: PermissionAsk(kind="shell", subject=f"{directory}"))
    def own() -> None: ...

    def ask_of(found: Tool) -> PermissionAsk | None:
        return found.asks(found.parse(""), Path("/w"))

    assert ask_of(asks) == PermissionAsk(kind="custom-tool", subject="asks")
    assert ask_of(allowed) is None
    assert ask_of(own) == PermissionAsk(kind="shell", subject="/w")


# The registry


def named(name: str) -> Tool:
    @tool(name=name)
    def some() -> None: ...

    return some


def test_a_name_can_be_used_once() -> None:
    with pytest.raises(BadTool, match="two tools called a"):
        Registry([named("a"), named("b"), named("a")])


@pytest.mark.parametrize("name", ["read", "write", "shell", "custom-tool"])
def test_a_tool_is_not_called_like_a_kind_of_permission(name: str) -> None:
    """Approving such a tool for the session would grant the kind."""
    with pytest.raises(BadTool, match=name):
        Registry([named(name)])


def test_the_model_is_offered_the_sessions_choice_and_then_the_clients_tools() -> None:
    registry = Registry([named("a"), named("b"), named("c")])
    client = ClientTool(name="b", description="mine", parameters={"type": "object"})
    offered = registry.offered(("c", "b", "z"), (client,))
    assert [(spec.name, spec.description) for spec in offered] == [("c", ""), ("b", "mine")]
    assert [spec.name for spec in registry.offered(None, ())] == ["a", "b", "c"]
    assert registry.names() == {"a", "b", "c"}
    assert registry.get("z") is None


def test_a_result_says_more_than_text() -> None:
    assert ToolResult(content="x") == ToolResult(content="x", success=True, binary=None)
