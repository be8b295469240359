"""A provider's prefix cache, as the scripted server counts it: it remembers which beginnings of requests it has seen.

A request is a list of parts in the order in which a model reads them: tools, system text, messages. Two requests share
their parts up to the first one that differs by a byte. Some providers remember every beginning by themselves; with
others nothing is remembered or found but at the marks that the request carries.
"""

import itertools
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

BYTES_PER_TOKEN: Final = 4
"""The usual size of a token of English text or JSON."""

MAX_LOOK_BACK: Final = 20
"""How many parts before a mark a remembered beginning may end, and still be found from that mark."""

MAX_PREFIXES: Final = 65_536
"""How many beginnings are remembered; the ones that were not used for the longest time are forgotten first."""


class RequestPart(msgspec.Struct, frozen=True):
    """One part of a request as it was sent, without its mark."""

    encoded: bytes
    is_marked: bool = False
    """Whether the request asks to cache up to the end of this part."""
    is_setting: bool = False
    """Not text for the model, but a setting that the rest depends on: it counts for no tokens."""

    @property
    def tokens(self) -> int:
        return 0 if self.is_setting else estimated_tokens(len(self.encoded))


class PrefixCount(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one request, by what the cache did with them."""

    read: int
    written: int
    uncached: int

    @property
    def total(self) -> int:
        return self.read + self.written + self.uncached


class MeasuredRequest(msgspec.Struct, frozen=True):
    """A request as a cache sees it."""

    prefixes: list[bytes]
    """The hash of each beginning: after the first part, after the second, and so on."""
    ends: list[int]
    """The tokens up to each part, from none."""
    marks: list[int]
    """The number of parts up to each mark."""

    @property
    def tokens(self) -> int:
        return self.ends[-1]


def measured(parts: Sequence[RequestPart], *, key: str) -> MeasuredRequest:
    """Measure a request. Requests with different keys share nothing. Pure, and long for a long conversation."""
    whole = blake2b(key.encode(), digest_size=16)
    prefixes = []
    ends = [0]
    for part in parts:
        # With its length, so that no two lists of parts have the same bytes.
        whole.update(b"\0%d\0%b" % (len(part.encoded), part.encoded))
        prefixes.append(whole.digest())
        ends.append(ends[-1] + part.tokens)
    return MeasuredRequest(prefixes, ends, [at for at, part in enumerate(parts, 1) if part.is_marked])


class PrefixCache:
    """The beginnings that were seen, bounded by number. The order of calls alone decides what it answers."""

    def __init__(self, *, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._known: dict[bytes, None] = {}

    def count(self, request: MeasuredRequest, *, needs_marks: bool) -> PrefixCount:
        """Count a request, and remember its beginnings: all of them or, if it `needs_marks`, those at its marks."""
        prefixes, ends = request.prefixes, request.ends
        if needs_marks:
            found = max((self._found_from(prefixes, mark) for mark in request.marks), default=0)
            cached = max(request.marks, default=0)
            self._remember([prefixes[mark - 1] for mark in request.marks])
        else:
            found = next((end for end in range(len(prefixes), 0, -1) if prefixes[end - 1] in self._known), 0)
            cached = len(prefixes)
            self._remember(prefixes)
        # What an earlier call had in the cache is not written again.
        return PrefixCount(read=ends[found], written=ends[cached] - ends[found], uncached=ends[-1] - ends[cached])

    def _found_from(self, prefixes: Sequence[bytes], mark: int) -> int:
        """The number of parts of the longest known beginning that the mark finds."""
        ends = range(mark, max(mark - MAX_LOOK_BACK, 0), -1)
        return next((end for end in ends if prefixes[end - 1] in self._known), 0)

    def _remember(self, prefixes: Sequence[bytes]) -> None:
        for prefix in prefixes:
            if prefix in self._known:
                del self._known[prefix]
        self._known.update(dict.fromkeys(prefixes))
        excess = len(self._known) - self._max_prefixes
        if excess > 0:
            for prefix in list(itertools.islice(self._known, excess)):
                del self._known[prefix]


def request_part(encoded: bytes) -> RequestPart:
    """A part that may carry a mark, `cache_control`, in its JSON object or in a block of its content."""
    if b'"cache_control"' not in encoded:
        return RequestPart(encoded)
    value = msgspec.json.decode(encoded)
    is_marked = _unmark(value)
    return RequestPart(msgspec.json.encode(value), is_marked=is_marked)


def _unmark(value: Any) -> bool:
    """Remove the marks of a part and of the blocks in its content. Whether there was one."""
    if not isinstance(value, dict):
        return False
    content = value.get("content")
    blocks = [_unmark(block) for block in content] if isinstance(content, list) else []
    return value.pop("cache_control", None) is not None or any(blocks)


def estimated_tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)
