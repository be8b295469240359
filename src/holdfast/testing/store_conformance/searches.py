"""Searching what was said: in one session's log, and among the sessions of an owner."""

import pytest

from holdfast.events.event import Event
from holdfast.events.ids import Key, MessageId, Owner, Position, SessionId, ToolCallId
from holdfast.events.message import AssistantMessage, Block, ReasoningBlock, TextBlock, ToolCallBlock
from holdfast.events.passage import MAX_SEARCHED_MESSAGE, MAX_SEARCHED_RESULT
from holdfast.events.session import Truncated
from holdfast.events.tool import Origin, ToolCompleted
from holdfast.store.store import Lease, NewSession, Store, Unit
from holdfast.store.text_index import BATCH_EVENTS
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    OTHER,
    OpenStore,
    event,
    info,
    running,
    said,
    started,
)

FOREIGN = Key(Owner("bob"), KEY.session)


def answered(*texts: str, reasoning: str = "", arguments: str = "") -> Event:
    blocks: tuple[Block, ...] = (
        ReasoningBlock(text=reasoning, opaque="sealedsignature"),
        *(TextBlock(text=text) for text in texts),
        ToolCallBlock(tool_call_id=ToolCallId("call"), name="grep", arguments=arguments),
    )
    return event(AssistantMessage(message_id=MessageId("answer"), blocks=blocks))


def result(text: str, *, call: str = "call", origin: Origin = "file") -> Event:
    return event(ToolCompleted(tool_call_id=ToolCallId(call), success=True, content=text, origin=origin))


def rewound(kept: int) -> Event:
    return event(Truncated(kept=Position(kept)))


async def write(store: Store, lease: Lease, *events: Event) -> None:
    await store.commit(Unit(key=KEY, fence=lease.fence, events=events))


async def made_with(store: Store, key: Key, *events: Event, title: str | None = None) -> None:
    """A session that begins with these events, as an import or a fork does."""
    new = NewSession(created_at=1)
    await store.commit(Unit(key=key, fence=None, events=(started(key), *events), creates=new, title=title))


async def found(store: Store, query: str, *, key: Key = KEY, before: int | None = None, limit: int = 10) -> list[int]:
    place = None if before is None else Position(before)
    return [hit.position for hit in await store.search_log(key, query, limit=limit, before=place)]


async def listed(store: Store, text: str, owner: Owner = KEY.owner) -> list[str]:
    page = await store.rows(owner, limit=MANY, text=text)
    assert page.unsearched == 0
    return [row.key.session for row in page.rows]


class SearchConformance:
    async def test_what_a_person_the_model_and_a_tool_said_is_found_at_its_position(self, store: Store) -> None:
        await made_with(store, KEY, said("The lamp is on the stair."), answered("So be it."), result("a lamppost"))
        assert await found(store, "lamp stair") == [2]
        assert await found(store, "So it") == [3]
        assert await found(store, "LAMP") == [4, 2]
        first, second = await store.search_log(KEY, "lamp", limit=10)
        assert (first.speaker, first.tool_call_id, first.excerpt) == ("tool", "call", "a lamppost")
        assert (second.speaker, second.tool_call_id, second.excerpt) == ("person", "", "The lamp is on the stair.")

    async def test_every_word_must_be_in_one_passage_and_may_be_a_beginning(self, store: Store) -> None:
        await made_with(store, KEY, said("a green lantern"), said("a red lamp"))
        assert await found(store, "gre lant") == [2]
        assert await found(store, "green lamp") == []
        assert await found(store, "antern") == []

    async def test_reasoning_and_arguments_of_calls_are_not_found(self, store: Store) -> None:
        await made_with(store, KEY, answered("Fine.", reasoning="secretly", arguments='{"token": "hunter2"}'))
        for word in ("secretly", "sealedsignature", "hunter2", "grep"):
            assert await found(store, word) == []
            assert await listed(store, word) == []

    @pytest.mark.parametrize(
        ("text", "query"),
        [
            ("Die Straße ist naß", "STRASSE"),
            ("un café crème", "cafe"),
            ("Ленинградский вокзал", "ленинград"),
            ("私は東京都に住んでいます", "東京"),
            ("私は東京都に住んでいます", "都に住"),
            ("ฉันรักภาษาไทย", "ภาษา"),
            ("हिन्दी में लिखा", "हिन्दी"),
            ("كتبت رسالة طويلة", "رسالة"),
            ("안녕하세요 여러분", "안녕"),
            ("naïve résumé 🙂 done", "🙂 resume"),
            ("call read_tool_output now", "tool_output"),
            ("it's 42.5 %", "42.5"),
            ("a\0b c\ud800d", "b\0"),
        ],
    )
    async def test_words_of_any_script_are_found(self, store: Store, text: str, query: str) -> None:
        await made_with(store, KEY, said(text))
        await made_with(store, OTHER, said("nothing of the kind"))
        assert await found(store, query) == [2]
        assert await listed(store, query) == [KEY.session]

    @pytest.mark.parametrize(
        "query",
        [
            '"',
            "'",
            "*",
            '"unfinished',
            "NEAR(",
            "lamp NEAR/3 (",
            "a AND OR NOT",
            "tokens:x",
            "-x ^y +z",
            "lamp:*A & !",
            "\\",
            "%_",
            "\0",
            "\ud800",
            "🙂",
            "§",
            "",
            "   ",
            "(" * 5_000,
            "x" * 100_000,
            " ".join(f"w{number}" for number in range(5_000)),
        ],
    )
    async def test_no_query_is_an_error(self, store: Store, query: str) -> None:
        await made_with(store, KEY, said("hello"))
        await made_with(store, FOREIGN, said("hello"))
        assert await found(store, query) == []
        if query:
            assert await listed(store, query) == []
        assert await found(store, "hello") == [2]

    async def test_the_newest_passages_come_first_and_the_search_goes_on_before_the_last_of_them(
        self, store: Store
    ) -> None:
        await made_with(store, KEY, *(said(f"lamp {number}") for number in range(7)))
        assert await found(store, "lamp", limit=3) == [8, 7, 6]
        assert await found(store, "lamp", limit=3, before=6) == [5, 4, 3]
        assert await found(store, "lamp", limit=3, before=3) == [2]

    async def test_a_large_message_is_found_by_any_word_and_a_large_result_by_its_beginning(self, store: Store) -> None:
        filler = "filler " * (MAX_SEARCHED_MESSAGE // 7 - 2)
        long = "early " + "word " * (MAX_SEARCHED_RESULT // 5) + "late"
        await made_with(store, KEY, said(f"{filler} needle"), result(long))
        assert await found(store, "needle") == [2]
        assert await found(store, "early") == [3]
        assert await found(store, "late") == []
        (hit,) = await store.search_log(KEY, "needle", limit=1)
        assert "needle" in hit.excerpt
        assert len(hit.excerpt) < 400

    async def test_what_is_said_later_is_found_by_the_next_search(self, store: Store, open_store: OpenStore) -> None:
        lease = await running(store)
        other = await open_store()
        for number in range(3):
            await write(store, lease, said(f"number{number}"))
            assert len(await found(other, f"number{number}")) == 1
            assert await listed(store, f"number{number}") == [KEY.session]
        assert len(await found(store, "number")) == 3

    async def test_what_a_rewind_undid_is_not_found(self, store: Store) -> None:
        lease = await running(store)
        head = len(await store.events_after(KEY, Position(0), limit=MANY))
        await write(store, lease, said("kept lamp"), said("undone lamp"), result("undone lamp", call="undone"))
        assert await found(store, "lamp") == [head + 3, head + 2, head + 1]
        await write(store, lease, rewound(head + 1), said("later lamp"))
        assert await found(store, "lamp") == [head + 5, head + 1]
        assert await found(store, "undone") == []
        assert await listed(store, "undone") == []
        assert await store.tool_result(KEY, ToolCallId("undone")) is None
        read = await store.passages(KEY, Position(head + 1), Position(head + 9), limit=MANY)
        assert [each.position for each in read] == [head + 1, head + 5]

    async def test_a_log_with_a_rewind_is_indexed_as_one_that_was_searched_before(self, store: Store) -> None:
        await made_with(store, KEY, said("kept"), said("undone"), rewound(2), said("later"), said("undone"), rewound(5))
        assert await found(store, "undone") == []
        assert await found(store, "kept") == [2]
        assert await found(store, "later") == [5]

    async def test_passages_are_read_by_position_without_what_says_nothing(self, store: Store) -> None:
        lines = [said("a") if number % 2 else info("b") for number in range(20)]
        await made_with(store, KEY, *lines)
        read = await store.passages(KEY, Position(1), Position(MANY), limit=3)
        assert [each.position for each in read] == [3, 5, 7]
        read = await store.passages(KEY, Position(7), Position(9), limit=MANY)
        assert [each.position for each in read] == [7, 9]
        assert await store.passages(KEY, Position(9), Position(7), limit=MANY) == ()

    async def test_the_last_result_of_a_call_is_found_by_its_id(self, store: Store) -> None:
        await made_with(store, KEY, result("", call="a"), result("one", call="b"), result("two", call="b"))
        for call, position in (("a", 2), ("b", 4)):
            event = await store.tool_result(KEY, ToolCallId(call))
            assert event is not None
            assert event.position == position
        for call in ("", "c", "\0"):
            assert await store.tool_result(KEY, ToolCallId(call)) is None

    async def test_other_owners_and_other_sessions_find_nothing(self, store: Store) -> None:
        await made_with(store, KEY, said("the secret lamp"), result("secret", call="c"), title="secret")
        await made_with(store, OTHER, said("nothing"))
        await made_with(store, FOREIGN, said("nothing"))
        for key in (OTHER, FOREIGN, Key(KEY.owner, SessionId("missing"))):
            assert await found(store, "secret", key=key) == []
            assert await store.tool_result(key, ToolCallId("c")) is None
        assert await listed(store, "secret", FOREIGN.owner) == []
        assert await listed(store, "secret") == [KEY.session]

    async def test_the_list_finds_what_was_said_and_no_results_of_tools(self, store: Store) -> None:
        await made_with(store, KEY, answered("an answer"), result("a result"))
        assert await listed(store, "answer") == [KEY.session]
        assert await listed(store, "result") == []

    async def test_a_deleted_session_leaves_the_index(self, store: Store, open_store: OpenStore) -> None:
        await made_with(store, KEY, said("lamp"), result("lamp", call="c"))
        await made_with(store, OTHER, said("lamp"))
        assert await found(store, "lamp") == [3, 2]
        await store.delete(KEY)
        other = await open_store()
        for each in (store, other):
            assert await found(each, "lamp") == []
            assert await each.passages(KEY, Position(1), Position(MANY), limit=MANY) == ()
            assert await each.tool_result(KEY, ToolCallId("c")) is None
            assert await listed(each, "lamp") == [OTHER.session]
            assert await each.index_logs([KEY]) == ()

    async def test_a_log_is_indexed_a_part_at_a_time_and_once(self, store: Store, open_store: OpenStore) -> None:
        await made_with(store, KEY, *(said(f"lamp{number}") for number in range(BATCH_EVENTS)))
        await made_with(store, OTHER, said("lamp"))
        other = await open_store()
        left = await store.index_logs([KEY, OTHER])
        assert left == (KEY, OTHER)
        assert await other.index_logs(left) == ()
        assert await store.index_logs(left) == ()
        assert await found(store, f"lamp{BATCH_EVENTS - 1}") == [BATCH_EVENTS + 1]
        assert len(await found(store, "lamp", limit=MANY)) == BATCH_EVENTS
        assert await found(store, "lamp", key=OTHER) == [2]

    async def test_a_list_that_could_not_search_everything_says_so(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.store.text_index.MAX_BATCHES", 1)
        for number in range(3):
            key = Key(KEY.owner, SessionId(f"s{number}"))
            await made_with(store, key, *(said("lamp") for _ in range(BATCH_EVENTS)))
        assert (await store.rows(KEY.owner, limit=MANY)).unsearched == 0
        seen = [(await store.rows(KEY.owner, limit=MANY, text="lamp")).unsearched for _ in range(4)]
        assert seen[0] > 0
        assert seen[-1] == 0
        assert sorted(await listed(store, "lamp")) == ["s0", "s1", "s2"]
