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
from holdfast.events.session import DirectoryIdentity
from holdfast.server.errors import Invalid
from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Role
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
        if self.models is not None and not any(fnmatchcase(model, pattern) for pattern in self.models):
            raise _beyond("model_not_allowed", f"The model {model} is not among those that you may choose.")

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
                raise _beyond("rule_not_allowed", f"The rule {rule} grants more than you may grant in advance.")

    def held_rules(self, rules: Sequence[str]) -> tuple[str, ...]:
        """Of what was granted earlier, what the role goes to: somebody else may have granted it, or in another role."""
        return tuple(rule for rule in rules if self._may_grant(rule))

    def _may_grant(self, rule: str) -> bool:
        return self.rules is None or any(_covers(own, rule) for own in self.rules)

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
