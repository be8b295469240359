"""The prefix cache of the scripted server: what it counts as read, written and uncached."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.prefix_cache import PrefixCache, PrefixCount, RequestPart, measured, request_part

TEXTS = st.lists(st.binary(min_size=1, max_size=9), max_size=30)


def parts(texts: Iterable[bytes], *, marked: Iterable[int] = ()) -> list[RequestPart]:
    marks = set(marked)
    return [RequestPart(text, is_marked=at in marks) for at, text in enumerate(texts)]


def automatic(cache: PrefixCache, texts: Iterable[bytes], *, key: str = "") -> PrefixCount:
    return cache.count(measured(parts(texts), key=key), needs_marks=False)


def marked(cache: PrefixCache, texts: Iterable[bytes], *marks: int) -> PrefixCount:
    return cache.count(measured(parts(texts, marked=marks), key=""), needs_marks=True)


def test_automatic_cache_reads_the_longest_beginning_that_it_has_seen() -> None:
    cache = PrefixCache()
    assert automatic(cache, [b"aaaa", b"bbbb"]) == PrefixCount(read=0, written=2, uncached=0)
    assert automatic(cache, [b"aaaa", b"bbbb", b"cccc"]) == PrefixCount(read=2, written=1, uncached=0)
    assert automatic(cache, [b"aaaa", b"xxxx", b"cccc"]) == PrefixCount(read=1, written=2, uncached=0)


def test_calls_with_different_keys_share_nothing() -> None:
    cache = PrefixCache()
    automatic(cache, [b"aaaa"], key="one")
    assert automatic(cache, [b"aaaa"], key="two").read == 0
    assert automatic(cache, [b"aaaa"], key="one").read == 1


def test_nothing_is_cached_without_marks_where_marks_are_needed() -> None:
    cache = PrefixCache()
    for _ in range(2):
        assert marked(cache, [b"aaaa", b"bbbb"]) == PrefixCount(read=0, written=0, uncached=2)


def test_what_follows_the_last_mark_is_not_cached() -> None:
    cache = PrefixCache()
    assert marked(cache, [b"aaaa", b"bbbb"], 0) == PrefixCount(read=0, written=1, uncached=1)
    assert marked(cache, [b"aaaa", b"bbbb"], 0) == PrefixCount(read=1, written=0, uncached=1)


def test_beginning_is_known_only_where_a_mark_was() -> None:
    cache = PrefixCache()
    marked(cache, [b"aaaa", b"bbbb"], 1)
    assert marked(cache, [b"aaaa", b"xxxx"], 1).read == 0
    assert marked(cache, [b"aaaa", b"bbbb", b"cccc"], 2).read == 2


def test_mark_looks_back_twenty_parts_and_no_further() -> None:
    for added, read in ((19, 1), (20, 0)):
        cache = PrefixCache()
        marked(cache, [b"aaaa"], 0)
        assert marked(cache, [b"aaaa", *[b"bbbb"] * added], added).read == read


def test_mark_further_back_finds_what_the_last_one_can_not() -> None:
    cache = PrefixCache()
    marked(cache, [b"aaaa"], 0)
    assert marked(cache, [b"aaaa", *[b"bbbb"] * 50], 0, 50).read == 1


def test_setting_counts_for_no_tokens_and_still_parts_the_prefixes() -> None:
    cache = PrefixCache()
    for setting, read in ((b"on", 0), (b"off", 1), (b"on", 2)):
        given_parts = [RequestPart(b"aaaa"), RequestPart(setting, is_setting=True), RequestPart(b"bbbb")]
        count = cache.count(measured(given_parts, key=""), needs_marks=False)
        assert (count.read, count.total) == (read, 2)


def test_forgets_the_oldest_beginnings_beyond_its_bound() -> None:
    cache = PrefixCache(max_prefixes=2)
    for text in (b"aaaa", b"bbbb", b"cccc"):
        automatic(cache, [text])
    assert automatic(cache, [b"cccc"]).read == 1
    assert automatic(cache, [b"aaaa"]).read == 0


@given(before=TEXTS, after=TEXTS)
def test_each_token_is_counted_once_and_what_was_seen_is_read(before: list[bytes], after: list[bytes]) -> None:
    cache = PrefixCache()
    seen = automatic(cache, before)
    count = automatic(cache, [*before, *after])
    assert count.total == sum(part.tokens for part in parts([*before, *after]))
    assert count.read >= seen.total


def test_two_lists_of_parts_with_the_same_bytes_share_no_beginning() -> None:
    cache = PrefixCache()
    automatic(cache, [b"ab", b"cd"])
    assert automatic(cache, [b"abcd"]).read == 0


def test_mark_is_no_part_of_the_text() -> None:
    plain = request_part(b'{"role":"user","content":[{"type":"text","text":"hi"}]}')
    mark = b'{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}'
    assert request_part(mark) == RequestPart(plain.encoded, is_marked=True)
    assert not plain.is_marked
    said = b'{"role":"user","content":"the word \\"cache_control\\""}'
    assert not request_part(said).is_marked
