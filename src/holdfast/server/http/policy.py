"""What a session may ask for, by the role of who makes it: models, tools, directories, rules, a provider of its own.

Who asks for nothing gets what the server and the role have in common. Who asks for more than that is told what was too
much, and nothing is made.
"""

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from holdfast.events.ids import Owner
from holdfast.events.session import DirectoryIdentity, SettingsChanged
from holdfast.server.errors import Invalid
from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Role
from holdfast.session.state import State
from holdfast.tools.user_directories import UserDirectories
from holdfast.tools.working_directory import identity_of

_RULE: Final = re.compile(r"(?P<name>[\w.*-]+)(?:\((?P<pattern>.*)\))?", re.DOTALL)

_STAYS_INSIDE: Final = re.compile(r"[\w.-][^\\]*", re.DOTALL)
"""A pattern that can only begin with a plain name matches no absolute path, which is how what lies outside is named."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What one role may choose. None is anything."""

    models: tuple[str, ...] | None = None
    """Names, or patterns such as `openrouter/*`."""
    tools: tuple[str, ...] | None = None
    directories: UserDirectories | None = None
    """Folders in which, and below which, sessions may work."""
    rules: tuple[str, ...] | None = None
    """Permission rules. One without a pattern covers those of the same name that stay inside the working directory."""
    providers: bool = True
    """Whether a session may bring a provider along: an address that the server then calls."""

    def check_model(self, model: str) -> None:
        if not self._may_choose(model):
            raise _beyond("model_not_allowed", f"The model {model} is not among those that you may choose.")

    def _may_choose(self, model: str) -> bool:
        return self.models is None or any(fnmatchcase(model, pattern) for pattern in self.models)

    def check_provider(self) -> None:
        if not self.providers:
            raise _beyond("provider_not_allowed", "A provider of one's own is for admins of this server.")

    def chosen_tools(self, asked: Sequence[str] | None, default: Sequence[str]) -> tuple[str, ...]:
        """The tools of a session: those that were asked for, or the default as far as the role goes."""
        if asked is None:
            return tuple(name for name in default if self.tools is None or name in self.tools)
        for name in asked:
            if self.tools is not None and name not in self.tools:
                raise _beyond("tool_not_allowed", f"The tool {name} is not among those that you may choose.")
        return tuple(asked)

    def check_rules(self, rules: Sequence[str]) -> None:
        for rule in rules:
            if not self._may_grant(rule):
                raise _beyond(
                    "rule_not_allowed",
                    f"The rule {rule} grants more than you may grant in advance. Approve each call by itself.",
                )

    def held_rules(self, rules: Sequence[str]) -> tuple[str, ...]:
        """Of what was granted earlier, what the role goes to: somebody else may have granted it, or in another role."""
        return tuple(rule for rule in rules if self._may_grant(rule))

    def _may_grant(self, rule: str) -> bool:
        return self.rules is None or any(_covers(own, rule) for own in self.rules)

    # What a session has, for those who have it do something

    def check_session(self, owner: Owner, state: State) -> None:
        """Raises what of a session goes beyond the role: whoever made it, nobody gets more out of it than they may
        have. Rules and models are another matter: see `narrowed` and `asks_beyond`."""
        for what, is_beyond in (
            ("works in a folder", self._is_outside(owner, state)),
            ("has tools", self._has_more_tools(state)),
            ("asks a provider", state.provider is not None and not self.providers),
        ):
            if is_beyond:
                raise _beyond(
                    "session_beyond_role",
                    f"This session {what} that you may not choose, so you may only read it. Ask an admin of this "
                    "server to go on with it, or fork it: the copy has what you may have.",
                )

    def narrowed(self, state: State) -> SettingsChanged | None:
        """The record that takes from a session the rules that the role may not grant; None: it has no such rule."""
        allow, place_rules = self.held_rules(state.allow), self.held_rules(state.place_rules)
        if (allow, place_rules) == (tuple(state.allow), tuple(state.place_rules)):
            return None
        return SettingsChanged(allow=allow, place_rules=place_rules)

    def asks_beyond(self, state: State, *, default: str) -> bool:
        """Whether a session asks a model that the role may not choose. The server's default is for everybody."""
        if state.provider is not None or state.model is None or state.model == default:
            return False
        return not self._may_choose(state.model)

    def for_copy(self, owner: Owner, state: State) -> SettingsChanged | None:
        """The record that leaves a copy of a session no more than the role may have; None: it has no more."""
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
        # One that nobody has fixed yet is fixed as it is written, without following a link.
        return not self.directories.contains(owner, identity.path if identity else state.working_directory)

    # Where it works

    def checked_directory(self, owner: Owner, directory: str) -> DirectoryIdentity:
        """The working directory, fixed: the one name that everybody gives it, and which folder that is. Links are
        followed before it is judged, and not after."""
        if "\0" in directory or not os.path.isabs(directory):
            raise Invalid("directory_invalid", "A working directory is an absolute path.")
        try:
            found = os.path.realpath(directory)
        except OSError:
            found = directory
        self.check_directory(owner, found)
        identity = identity_of(found, limited=self.directories is not None, follow_links=False)
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


def _covers(own: str, asked: str) -> bool:
    if own == asked:
        return True
    allowed, wanted = _RULE.fullmatch(own), _RULE.fullmatch(asked)
    if allowed is None or wanted is None or allowed["pattern"] is not None or allowed["name"] != wanted["name"]:
        return False
    pattern = wanted["pattern"] or ""
    return bool(_STAYS_INSIDE.fullmatch(pattern)) and ".." not in pattern


def _beyond(code: str, message: str) -> ApiError:
    return ApiError(403, code, message)
