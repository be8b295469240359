"""The ids that tool calls are sent with, for providers that refuse the ids of another provider."""

import re
from hashlib import sha256
from typing import Final

SAFE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The ids that OpenAI's Responses and Anthropic's Messages take. They refuse every other."""

COMMON_ID: Final = re.compile(r"[!-~]{1,40}")
"""The ids that every server of chat completions takes. Some take others too, and put more than a name into them."""

DIGITS: Final = 32
"""The length of the hash in an id: long enough that no two ids of a conversation have the same."""


class CallIds:
    """Maps the ids of one conversation. An id that is sent depends only on the messages before it, so that the prefix
    stays the same. Ids that the provider takes are sent unmodified; a repeated id gets one of its own."""

    def __init__(self, allowed: re.Pattern[str] = SAFE_ID) -> None:
        self._allowed = allowed
        self._used: set[str] = set()
        self._sent: dict[str, str] = {}
        self._repeats = 0

    def of_call(self, tool_call_id: str, *, is_own: bool = False) -> str:
        """The id to send a call with. `is_own`: this provider gave the call its id, so it takes it back."""
        sent = tool_call_id if is_own else self._mapped(tool_call_id)
        while sent in self._used and not is_own:
            self._repeats += 1
            sent = _hashed(f"{self._repeats} {tool_call_id}")
        self._used.add(sent)
        self._sent[tool_call_id] = sent
        return sent

    def of_result(self, tool_call_id: str) -> str:
        """The id to send the result of the last call with this id with."""
        return self._sent.get(tool_call_id) or self._mapped(tool_call_id)

    def _mapped(self, tool_call_id: str) -> str:
        return tool_call_id if self._allowed.fullmatch(tool_call_id) else _hashed(tool_call_id)


def _hashed(text: str) -> str:
    return f"call_{sha256(text.encode('utf-8', 'replace')).hexdigest()[:DIGITS]}"
