"""The planting of defects: a part of the code that must exist is replaced by a wrong one."""

from typing import Any


def replace(owner: Any, name: str, value: Any) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} to break"
    setattr(owner, name, value)


def altered(statement: str, old: str, new: str) -> str:
    """A statement with another part."""
    assert old in statement, f"there is no {old!r} to break in {statement!r}"
    return statement.replace(old, new)
