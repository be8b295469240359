"""Policies: the models, tools, directories, rules and providers that each role may choose.

A caller who chooses nothing gets the server's defaults as far as the role may have them. A choice beyond the role is
refused with the reason, and nothing is created.
"""

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from holdfast.events.ids import Owner
from holdfast.events.session import DirectoryIdentity, SettingsChanged
from holdfast.protocol.identity import Role
from holdfast.server.errors import Invalid
from holdfast.server.http.errors import ApiError
from holdfast.session.state import State
from holdfast.tools.user_directories import UserDirectories
from holdfast.tools.working_directory import identity_of

_RULE: Final = re.compile(r"(?P<name>[\w.*-]+)(?:\((?P<pattern>.*)\))?", re.DOTALL)

_STAYS_INSIDE: Final = re.compile(r"[\w.-][^\\]*", re.DOTALL)
"""A pattern that begins with a plain name matches no absolute path, and paths outside of the directory are absolute."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of one role. None allows anything."""

    models: tuple[str, ...] | None = None
    """Names, or patterns such as `openrouter/*`."""
    tools: tuple[str, ...] | None = None
    directories: UserDirectories | None = None
    """Folders in which, and below which, sessions may work."""
    rules: tuple[str, ...] | None = None
    """Permission rules that the role may grant. A rule without a pattern covers the rules of its name that stay inside
    the working directory."""
    providers: bool = True
    """Whether a session may have its own provider: a URL that the server then calls."""

    def check_model(self, model: str) -> None:
        if not self._may_choose(model):
            raise _beyond("model_not_allowed", f"The model {model} is not among those that you may choose.")

    def _may_choose(self, model: str) -> bool:
        return self.models is None or any(fnmatchcase(model, pattern) for pattern in self.models)

    def check_provider(self) -> None:
        if not self.providers:
            raise _beyond("provider_not_allowed", "A provider of one's own is for admins of this server.")

    def chosen_tools(self, requested: Sequence[str] | None, default: Sequence[str]) -> tuple[str, ...]:
        """The tools of a session: the requested ones, or the defaults that the role may have."""
        if requested is None:
            return tuple(name for name in default if self.tools is None or name in self.tools)
        for name in requested:
            if self.tools is not None and name not in self.tools:
                raise _beyond("tool_not_allowed", f"The tool {name} is not among those that you may choose.")
        return tuple(requested)

    def check_rules(self, rules: Sequence[str]) -> None:
        for rule in rules:
            if not self._may_grant(rule):
                raise _beyond(
                    "rule_not_allowed",
                    f"The rule {rule} grants more than you may grant in advance. Approve each call by itself.",
                )

    def held_rules(self, rules: Sequence[str]) -> tuple[str, ...]:
        """The granted rules that the role may grant: another person, or another role, may have granted them."""
        return tuple(rule for rule in rules if self._may_grant(rule))

    def _may_grant(self, rule: str) -> bool:
        return self.rules is None or any(_covers(own, rule) for own in self.rules)

    # What a session has, when a caller uses it

    def check_session(self, owner: Owner, state: State) -> None:
        """Raise `ApiError` if the session has a directory, tools or a provider beyond the role, whoever created
        it. Rules and models are handled by `narrowed` and `asks_beyond`."""
        excess = self._excess(owner, state)
        if excess is not None:
            raise _beyond(
                "session_beyond_role",
                f"This session {excess} that you may not choose, so you may only read it and stop its turn. Ask an "
                "admin of this server to go on with it, or fork it: the copy has what you may have.",
            )

    def covers_session(self, owner: Owner, state: State) -> bool:
        """Whether `check_session` would pass."""
        return self._excess(owner, state) is None

    def _excess(self, owner: Owner, state: State) -> str | None:
        """The part of the session that is beyond the role, as the predicate of a sentence; None: nothing."""
        if self._is_outside(owner, state):
            return "works in a folder"
        if self._has_more_tools(state):
            return "has tools"
        return "asks a provider" if state.provider is not None and not self.providers else None

    def narrowed(self, state: State) -> SettingsChanged | None:
        """The record that removes the rules that the role may not grant, and lets each use of the folder, such as a
        command, check the bounds of the role; None: the session has no such rule, and its folder is checked already."""
        record = SettingsChanged()
        allow, place_rules = self.held_rules(state.allow), self.held_rules(state.place_rules)
        if (allow, place_rules) != (tuple(state.allow), tuple(state.place_rules)):
            record = SettingsChanged(allow=allow, place_rules=place_rules)
        identity = state.directory_identity
        if self.directories is not None and identity is not None and not identity.limited:
            limited = msgspec.structs.replace(identity, limited=True)
            record = msgspec.structs.replace(record, directory_identity=limited)
        return None if record == SettingsChanged() else record

    def asks_beyond(self, state: State, *, default: str) -> bool:
        """Whether the session's model is one that the role may not choose. Every role may use the server's default."""
        if state.provider is not None or state.model is None or state.model == default:
            return False
        return not self._may_choose(state.model)

    def for_copy(self, owner: Owner, state: State) -> SettingsChanged | None:
        """The record that leaves a copy of a session no more than the role may have; None: it has no more already."""
        record = self.narrowed(state) or SettingsChanged()
        if self.tools is not None and self._has_more_tools(state):
            kept = tuple(name for name in self.tools if state.tools is None or name in state.tools)
            record = msgspec.structs.replace(record, tools=kept)
        if self._is_outside(owner, state):
            record = msgspec.structs.replace(record, working_directory=None, directory_identity=None, place_rules=())
        if state.provider is not None and not self.providers:
            record = msgspec.structs.replace(record, provider=None)
        return None if record == SettingsChanged() else record

    def _has_more_tools(self, state: State) -> bool:
        return self.tools is not None and (state.tools is None or not set(state.tools) <= set(self.tools))

    @property
    def is_limited(self) -> bool:
        return self != EVERYTHING

    def _is_outside(self, owner: Owner, state: State) -> bool:
        if self.directories is None or not state.working_directory:
            return False
        identity = state.directory_identity
        # A directory without an identity yet gets one for the path as written, without following links.
        return not self.directories.contains(owner, identity.path if identity else state.working_directory)

    # The working directory

    def checked_directory(self, owner: Owner, directory: str) -> DirectoryIdentity:
        """The identity of the working directory: its real path, and the folder itself. Links are followed before
        the path is checked, and not after."""
        if "\0" in directory or not os.path.isabs(directory):
            raise Invalid("directory_invalid", "A working directory is an absolute path.")
        try:
            real_path = os.path.realpath(directory)
        except OSError:
            real_path = directory
        self.check_directory(owner, real_path)
        identity = identity_of(real_path, limited=self.directories is not None, follow_links=False)
        if identity is None:
            raise Invalid("directory_not_found", f"{directory} is not a folder on the server.")
        return identity

    def check_directory(self, owner: Owner, real_path: str) -> None:
        if self.directories is not None and not self.directories.contains(owner, real_path):
            raise _beyond("directory_not_allowed", "That working directory is not among those that you may choose.")


EVERYTHING: Final = Policy()


class Policies(msgspec.Struct, frozen=True, kw_only=True):
    """One for each role."""

    user: Policy
    admin: Policy = EVERYTHING

    def of(self, role: Role) -> Policy:
        return self.admin if role == "admin" else self.user


def _covers(own: str, requested: str) -> bool:
    if own == requested:
        return True
    own_rule, rule = _RULE.fullmatch(own), _RULE.fullmatch(requested)
    if own_rule is None or rule is None or own_rule["pattern"] is not None or own_rule["name"] != rule["name"]:
        return False
    pattern = rule["pattern"] or ""
    return bool(_STAYS_INSIDE.fullmatch(pattern)) and ".." not in pattern


def _beyond(code: str, message: str) -> ApiError:
    return ApiError(403, code, message)
