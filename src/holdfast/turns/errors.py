"""Why a session is let go of in the middle of its work.

LeaseLost   another holder has it, or it was deleted: stop at once, nothing can be written any more
"""

from holdfast.events.ids import Key


class LeaseLost(Exception):
    """This process no longer owns the session."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"session {key.session} is no longer held here")
        self.key = key
