"""The prompts of a process's sessions: the one of this release for new sessions, and those that older sessions keep."""

import logging
from collections import OrderedDict
from typing import Final

import msgspec

from holdfast.session.prompt import Prompt, prompt_in
from holdfast.store.store import Store

MAX_KEPT: Final = 8
"""Prompts of other releases in memory: few are in use at a time."""

log = logging.getLogger(__name__)


class Prompts:
    """Finds prompts by their digest. `current` is the prompt of this process."""

    def __init__(self, store: Store, current: Prompt) -> None:
        self.current = current
        self.is_stored = False
        """The store is known to have the current prompt."""
        self._store = store
        self._known: OrderedDict[str, Prompt] = OrderedDict()

    async def get(self, digest: str) -> Prompt:
        """The prompt with this digest; the current one for a session without a prompt, or if the store lost it."""
        if digest in ("", self.current.digest):
            return self.current
        found = self._known.get(digest)
        if found is None:
            found = self._known[digest] = await self._read(digest)
        self._known.move_to_end(digest)
        if len(self._known) > MAX_KEPT:
            self._known.popitem(last=False)
        return found

    async def _read(self, digest: str) -> Prompt:
        content = await self._store.prompt(digest)
        try:
            if content is not None:
                return prompt_in(content)
        except msgspec.MsgspecError:
            log.exception("the prompt %s can't be read", digest[:12])
        log.warning("the prompt %s is not there: this release's own is used", digest[:12])
        return self.current
