"""Errors that end the run of a session before its work is done.

- `LeaseLost`: another process holds the session, or it was deleted. Stop at once: no write can succeed any more.
- `ModelUnusableHere`: this process can't use the session's model (no key, another server). Other processes may run it.
"""

from holdfast.events.ids import Key


class LeaseLost(Exception):
    """This process no longer owns the session."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"session {key.session} is no longer held here")
        self.key = key


class ModelUnusableHere(Exception):
    """Another process must run the session, or this one once it is configured for the model. Without a `model` the
    error concerns this session only, and the store knows which process may run it."""

    def __init__(self, model: str | None, reason: str) -> None:
        super().__init__(reason)
        self.model = model
