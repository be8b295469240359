"""Policies: the models, tools, directories, rules and providers that each role may choose.

A caller who chooses nothing gets the server's defaults as far as the role may have them. A choice beyond the role is
refused with the reason, and nothing is created.
"""

import os
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.events.ids import Owner
from holdfast.events.role import RoleBounds
from holdfast.events.session import DirectoryIdentity, SettingsChanged
from holdfast.protocol.identity import Role
from holdfast.server.errors import Invalid
from holdfast.server.http.errors import ApiError
from holdfast.session.role import excess, has_more_tools, held_rules, is_outside, may_choose, may_grant, narrowed
from holdfast.session.state import State
from holdfast.tools.user_directories import UserDirectories
from holdfast.tools.working_directory import identity_of


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
        if not may_choose(model, self.models):
            raise _beyond("model_not_allowed", f"The model {model} is not among those that you may choose.")

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
            if not may_grant(rule, self.rules):
                raise _beyond(
                    "rule_not_allowed",
                    f"The rule {rule} grants more than you may grant in advance. Approve each call by itself.",
                )

    def held_rules(self, rules: Sequence[str]) -> tuple[str, ...]:
        """The granted rules that the role may grant: another person, or another role, may have granted them."""
        return held_rules(rules, self.rules)

    def bounds(self, owner: Owner, *, default_model: str) -> RoleBounds:
        """How much of a session of the owner the role may use. Looks up real paths."""
        folders = None if self.directories is None else tuple(str(folder) for folder in self.directories.of(owner))
        return RoleBounds(
            folders=folders,
            tools=self.tools,
            models=self.models,
            default_model=default_model,
            rules=self.rules,
            providers=self.providers,
        )

    @property
    def is_limited(self) -> bool:
        return self != EVERYTHING

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


def check_session(bounds: RoleBounds, state: State) -> None:
    """Raise `ApiError` if the session has a directory, tools or a provider beyond the role, whoever created it. Rules
    and models beyond it are taken from the session instead."""
    if (beyond := excess(state, bounds)) is not None:
        raise _beyond(
            "session_beyond_role",
            f"This session {beyond} that you may not choose, so you may only read it and stop its turn. Ask an "
            "admin of this server to go on with it, or fork it: the copy has what you may have.",
        )


def for_copy(bounds: RoleBounds, state: State) -> SettingsChanged | None:
    """The record that leaves a copy of a session no more than the role may have; None: it has no more already."""
    record = narrowed(state, bounds) or SettingsChanged()
    if bounds.tools is not None and has_more_tools(state, bounds):
        kept = tuple(name for name in bounds.tools if state.tools is None or name in state.tools)
        record = msgspec.structs.replace(record, tools=kept)
    if is_outside(state, bounds):
        record = msgspec.structs.replace(record, working_directory=None, directory_identity=None, place_rules=())
    if state.provider is not None and not bounds.providers:
        record = msgspec.structs.replace(record, provider=None)
    return None if record == SettingsChanged() else record


def _beyond(code: str, message: str) -> ApiError:
    return ApiError(403, code, message)
