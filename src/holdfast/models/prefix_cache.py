"""A provider's prefix cache, as the scripted server counts it: it remembers which beginnings of requests it has seen.

A request is a list of parts in the order in which a model reads them: tools, system text, messages. Two requests share
their parts up to the first one that differs by a byte. Some providers remember every beginning by themselves; with
others nothing is remembered or found but at the marks that the request carries.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
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


class PrefixCache:
    """The beginnings that were seen, bounded by number. The order of calls alone decides what it answers."""

    def __init__(self, *, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def count(self, parts: Sequence[RequestPart], *, key: str, needs_marks: bool) -> PrefixCount:
        """Count a request, and remember its beginnings. Requests with different keys share nothing."""
        prefixes = list(_prefixes(parts, key))
        ends = [0]
        for part in parts:
            ends.append(ends[-1] + part.tokens)
        last = len(parts)
        marks = [at for at, part in enumerate(parts, 1) if part.is_marked] if needs_marks else list(range(1, last + 1))
        reach = MAX_LOOK_BACK if needs_marks else 1
        found = max((self._found(prefixes, mark, reach) for mark in marks), default=0)
        for mark in marks:
            self._remember(prefixes[mark - 1])
        # What an earlier call had in the cache is not written again.
        cached = max(marks, default=0)
        return PrefixCount(read=ends[found], written=ends[cached] - ends[found], uncached=ends[last] - ends[cached])

    def _found(self, prefixes: Sequence[bytes], mark: int, reach: int) -> int:
        """The number of parts of the longest known beginning that ends at most `reach` parts before the mark."""
        ends = range(mark, max(mark - reach, 0), -1)
        return next((end for end in ends if prefixes[end - 1] in self._known), 0)

    def _remember(self, prefix: bytes) -> None:
        self._known[prefix] = None
        self._known.move_to_end(prefix)
        while len(self._known) > self._max_prefixes:
            self._known.popitem(last=False)


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


def _prefixes(parts: Sequence[RequestPart], key: str) -> Iterator[bytes]:
    """The hash of each beginning: after the first part, after the second, and so on."""
    whole = blake2b(key.encode(), digest_size=16)
    for part in parts:
        # With its length, so that no two lists of parts have the same bytes.
        whole.update(b"\0%d\0%b" % (len(part.encoded), part.encoded))
        yield whole.digest()
