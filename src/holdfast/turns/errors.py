"""Why a session is let go of in the middle of its work.

- `LeaseLost`: another holder has it, or it was deleted. Stop at once: nothing can be written any more.
- `ModelUnusableHere`: this process can't use its model (no key, another server). Leave it to others.
"""

from holdfast.events.ids import Key


class LeaseLost(Exception):
    """This process no longer owns the session."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"session {key.session} is no longer held here")
        self.key = key


class ModelUnusableHere(Exception):
    """The session must be run by another process, or by this one once it is configured for it. Without a `model` it is
    this session alone, and the store knows who may run it."""

    def __init__(self, model: str | None, reason: str) -> None:
        super().__init__(reason)
        self.model = model
