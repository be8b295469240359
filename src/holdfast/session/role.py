"""Holds a session to the bounds of a role: when a caller uses it, and when a message of that caller is promoted.

A folder, tools or a provider beyond the bounds keep the role out. Rules beyond them are removed, and a model beyond
them is replaced, so that the session can be used within the bounds.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Final

import msgspec

from holdfast.events.body import Body
from holdfast.events.role import RoleBounds
from holdfast.events.session import ModelChanged, SettingsChanged
from holdfast.session.state import State

_RULE: Final = re.compile(r"(?P<name>[\w.*-]+)(?:\((?P<pattern>.*)\))?", re.DOTALL)

_STAYS_INSIDE: Final = re.compile(r"[\w.-][^\\]*", re.DOTALL)
"""A pattern that begins with a plain name matches no absolute path, and paths outside of the directory are absolute."""


def excess(state: State, bounds: RoleBounds) -> str | None:
    """The part of the session that is beyond the role, as the predicate of a sentence; None: nothing."""
    if is_outside(state, bounds):
        return "works in a folder"
    if has_more_tools(state, bounds):
        return "has tools"
    return "asks a provider" if state.provider is not None and not bounds.providers else None


def narrowing(state: State, *bounds: RoleBounds) -> list[Body]:
    """The records that take from the session what one of the roles may not have, and that do not keep it out."""
    settings = narrowed(state, *bounds)
    records: list[Body] = [] if settings is None else [settings]
    if beyond := [each for each in bounds if asks_beyond(state, each)]:
        records.append(ModelChanged(new_model=beyond[-1].default_model, previous_model=state.model))
    return records


def narrowed(state: State, *bounds: RoleBounds) -> SettingsChanged | None:
    """The record that removes the rules that one of the roles may not grant, and lets each use of the folder, such as
    a command, check the bounds of the role; None: the session has no such rule, and its folder is checked already."""
    record = SettingsChanged()
    allow, place_rules = tuple(state.allow), tuple(state.place_rules)
    for each in bounds:
        allow, place_rules = held_rules(allow, each.rules), held_rules(place_rules, each.rules)
    if (allow, place_rules) != (tuple(state.allow), tuple(state.place_rules)):
        record = SettingsChanged(allow=allow, place_rules=place_rules)
    identity = state.directory_identity
    has_folders = any(each.folders is not None for each in bounds)
    if has_folders and identity is not None and not identity.limited:
        limited = msgspec.structs.replace(identity, limited=True)
        record = msgspec.structs.replace(record, directory_identity=limited)
    return None if record == SettingsChanged() else record


def asks_beyond(state: State, bounds: RoleBounds) -> bool:
    """Whether the session's model is one that the role may not choose."""
    return chooses_beyond(state, state.model, bounds)


def chooses_beyond(state: State, model: str | None, bounds: RoleBounds) -> bool:
    """Whether the role may not choose this model in the session. A provider of the session's own has its own names."""
    return model is not None and state.provider is None and not may_use(model, bounds)


def may_use(model: str, bounds: RoleBounds) -> bool:
    """Whether a message within these bounds may run with the model. Every role may use the server's default."""
    return model == bounds.default_model or may_choose(model, bounds.models)


def may_choose(model: str, models: Sequence[str] | None) -> bool:
    """Whether a role with these models may choose this one."""
    return models is None or any(fnmatchcase(model, pattern) for pattern in models)


def held_rules(rules: Sequence[str], grantable: Sequence[str] | None) -> tuple[str, ...]:
    """The granted rules that the role may grant: another person, or another role, may have granted them."""
    return tuple(rule for rule in rules if may_grant(rule, grantable))


def may_grant(rule: str, grantable: Sequence[str] | None) -> bool:
    """Whether a role that may grant these rules may grant this one."""
    return grantable is None or any(_covers(own, rule) for own in grantable)


def has_more_tools(state: State, bounds: RoleBounds) -> bool:
    return bounds.tools is not None and (state.tools is None or not set(state.tools) <= set(bounds.tools))


def is_outside(state: State, bounds: RoleBounds) -> bool:
    if bounds.folders is None or not state.working_directory:
        return False
    identity = state.directory_identity
    # A directory without an identity yet gets one for the path as written, without following links.
    path = PurePath(identity.path if identity else state.working_directory)
    return not any(path.is_relative_to(folder) for folder in bounds.folders)


def _covers(own: str, requested: str) -> bool:
    if own == requested:
        return True
    own_rule, rule = _RULE.fullmatch(own), _RULE.fullmatch(requested)
    if own_rule is None or rule is None or own_rule["pattern"] is not None or own_rule["name"] != rule["name"]:
        return False
    pattern = rule["pattern"] or ""
    return bool(_STAYS_INSIDE.fullmatch(pattern)) and ".." not in pattern
