"""Estimates of how many tokens texts have, for the parts of a context that no provider has counted yet.

A token is taken for four bytes of UTF-8, which is near the truth for English and code and does not depend on the model.
What a provider has counted is always preferred: see `ContextSize`.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

BYTES_PER_TOKEN: Final = 4
TOKENS_PER_MESSAGE: Final = 8
"""What a provider adds around each message, result and call."""
TOKENS_PER_IMAGE: Final = 1_500
BYTES_PER_PAGE: Final = 50_000
"""Of a PDF. A page counts as an image."""


def tokens_in(text: str) -> int:
    """About how many tokens a text has."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def tokens_of(texts: Iterable[str], images: int = 0) -> int:
    """About how many tokens one message with these texts has."""
    return TOKENS_PER_MESSAGE + sum(map(tokens_in, texts)) + images * TOKENS_PER_IMAGE


class ContextSize(msgspec.Struct, gc=False):
    """The size of a session's context in tokens: what a provider counted last, and an estimate of what came since."""

    estimate: int = 0
    """The whole conversation, estimated."""
    counted: int = 0
    """Input and output of the last call, as its provider counted them; 0 if it did not, or if the conversation was cut
    since."""
    estimate_then: int = 0
    """The estimate when the provider counted."""

    def add(self, tokens: int) -> None:
        self.estimate += tokens

    def count(self, tokens: int) -> None:
        """Take what the provider counted."""
        self.counted, self.estimate_then = tokens, self.estimate

    def forget(self) -> None:
        """The conversation was cut: what the provider counted holds no more."""
        self.counted, self.estimate_then = 0, 0

    def drop(self, tokens: int) -> None:
        """Take off messages that left the conversation. They may leave after the provider counted without them."""
        self.estimate -= tokens
        if self.counted:
            self.estimate_then -= tokens

    def now(self, prompt: int) -> int:
        """The size of the next call. `prompt` is an estimate of what stands before the conversation."""
        if self.counted:
            return self.counted + max(0, self.estimate - self.estimate_then)
        return prompt + self.estimate
