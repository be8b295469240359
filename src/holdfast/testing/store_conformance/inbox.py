"""The inbox: puts and their receipts, the queue, stops and answers."""

import asyncio

from msgspec.structs import replace

from holdfast.events.ids import TurnId
from holdfast.events.inbox import Message, PermissionAnswer, QuestionAnswer, Stop
from holdfast.events.role import RoleBounds
from holdfast.store.store import (
    Accepted,
    Committed,
    Promotion,
    Refused,
    Rejected,
    Store,
    Unit,
)
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    REQUEST,
    TURN,
    OpenStore,
    accepted,
    answer,
    asking,
    create,
    hold,
    keys_of,
    refused,
    reply,
    running,
    said,
    send,
    stop,
)


class InboxConformance:
    """The inbox: puts and their receipts, the queue, stops and answers."""

    async def test_an_accepted_message_waits_and_wakes_its_session(self, store: Store) -> None:
        await create(store)
        item = accepted(await send(store, "m")).item
        assert (item.sequence, item.state, item.while_running) == (1, "accepted", False)
        assert await store.waiting_items(KEY) == (item,)
        assert await store.receipt(KEY, "m") == item
        row = await store.row(KEY)
        assert row is not None
        assert (row.status, row.waiting_messages, row.inbox_tail) == ("queued", 1, 1)
        assert [claim.lease.key for claim in await store.claim(limit=MANY)] == [KEY]

    async def test_repeated_id_is_one_message_even_concurrently(self, store: Store, open_store: OpenStore) -> None:
        await create(store)
        other = await open_store()
        answers = await asyncio.gather(*(send(each, "m") for each in (store, other) for _ in range(10)))
        assert sum(not accepted(each).duplicate for each in answers) == 1
        assert {accepted(each).item.sequence for each in answers} == {1}
        assert len(await store.waiting_items(KEY)) == 1

    async def test_id_reused_for_another_text_is_refused(self, store: Store) -> None:
        await create(store)
        await send(store, "m", text="one")
        assert refused(await send(store, "m", text="two")) == "id_reused"

    async def test_the_same_text_with_two_ids_is_two_messages(self, store: Store) -> None:
        await create(store)
        await send(store, "m1")
        await send(store, "m2")
        assert keys_of(await store.waiting_items(KEY)) == ["m1", "m2"]

    async def test_repeated_send_returns_the_current_receipt(self, store: Store) -> None:
        await running(store)
        again = accepted(await send(store, "first"))
        assert (again.duplicate, again.item.state, again.item.outcome) == (True, "promoted", "idle")

    async def test_full_queue_refuses_without_a_trace(self, store: Store) -> None:
        await create(store)
        await send(store, "m1", limit=1)
        assert refused(await send(store, "m2", limit=1)) == "queue_full"
        assert await store.receipt(KEY, "m2") is None
        row = await store.row(KEY)
        assert row is not None
        assert row.inbox_tail == 1

    async def test_only_if_idle_refuses_while_a_turn_runs_or_messages_wait(self, store: Store) -> None:
        await create(store)
        accepted(await send(store, "first", only_if_idle=True))
        assert refused(await send(store, "second", only_if_idle=True)) == "busy"
        lease = await hold(store)
        began = Unit(key=KEY, fence=lease.fence, promotes=(Promotion(1, "idle"),), status="running", turn_id=TURN)
        await store.commit(began)
        assert refused(await send(store, "second", only_if_idle=True)) == "busy"
        await store.commit(Unit(key=KEY, fence=lease.fence, status="idle"))
        accepted(await send(store, "second", only_if_idle=True))

    async def test_accepted_message_reports_the_head_and_whether_the_session_was_idle(self, store: Store) -> None:
        await create(store)
        row = await store.row(KEY)
        assert row is not None
        head = row.head
        first = accepted(await send(store, "first"))
        assert (first.head, first.found_idle) == (head, True)
        behind = accepted(await send(store, "behind"))
        assert (behind.head, behind.found_idle) == (head, False), "a message is queued"
        lease = await hold(store)
        both = (Promotion(1, "idle"), Promotion(2, "idle"))
        began = Unit(key=KEY, fence=lease.fence, events=(said("hi"),), promotes=both, status="running", turn_id=TURN)
        await store.commit(began)
        during = accepted(await send(store, "during"))
        assert (during.head, during.found_idle) == (head + 1, False), "a turn runs"
        await store.commit(Unit(key=KEY, fence=lease.fence, promotes=(Promotion(3, "idle"),), status="idle"))
        after = accepted(await send(store, "after"))
        assert (after.head, after.found_idle) == (head + 1, True)
        again = accepted(await send(store, "after"))
        assert (again.duplicate, again.found_idle) == (True, False)

    async def test_a_message_to_a_missing_session_is_refused(self, store: Store) -> None:
        assert refused(await send(store, "m")) == "session_not_found"

    async def test_accepted_message_records_whether_a_turn_was_running(self, store: Store) -> None:
        await running(store)
        assert accepted(await send(store, "later")).item.while_running

    async def test_a_promotion_is_in_the_unit_of_its_events_and_happens_once(self, store: Store) -> None:
        lease = await running(store)
        item = await store.receipt(KEY, "first")
        assert item is not None
        assert (item.state, item.outcome) == ("promoted", "idle")
        twice = Unit(key=KEY, fence=lease.fence, events=(said("hello"),), promotes=(Promotion(1, "idle"),))
        assert isinstance(await store.commit(twice), Rejected)
        row = await store.row(KEY)
        assert row is not None
        assert row.head == 3

    async def test_a_refused_item_says_so_in_its_receipt(self, store: Store) -> None:
        lease = await running(store)
        await send(store, "second")
        await store.commit(Unit(key=KEY, fence=lease.fence, promotes=(Promotion(2, "over budget", refused=True),)))
        item = await store.receipt(KEY, "second")
        assert item is not None
        assert (item.state, item.outcome) == ("refused", "over budget")

    # The queue

    async def test_edited_message_keeps_its_place_and_its_key(self, store: Store) -> None:
        await create(store)
        await send(store, "m1", text="one")
        await send(store, "m2", text="two")
        assert await store.edit_item(KEY, "m1", text="uno") is None
        items = await store.waiting_items(KEY)
        assert [(item.key, getattr(item.item, "text", "")) for item in items] == [("m1", "uno"), ("m2", "two")]
        assert accepted(await send(store, "m1", text="one")).duplicate

    async def test_an_edited_message_has_the_bounds_of_its_editor(self, store: Store) -> None:
        """The bounds of the first sender stay if the editor has none."""
        user, other = RoleBounds(tools=("view",)), RoleBounds(tools=("create",))
        await create(store)
        await send(store, "m")
        for bounds, kept in ((None, None), (user, user), (None, user), (other, other)):
            assert await store.edit_item(KEY, "m", text="other", bounds=bounds) is None
            (item,) = await store.waiting_items(KEY)
            assert isinstance(item.item, Message)
            assert item.item.bounds == kept

    async def test_promotion_of_a_stale_version_cannot_lose_an_edit(self, store: Store) -> None:
        await create(store)
        seen = accepted(await send(store, "m")).item
        lease = await hold(store)
        assert await store.edit_item(KEY, "m", text="other") is None
        late = Unit(key=KEY, fence=lease.fence, promotes=(Promotion(seen.sequence, "idle"),))
        assert isinstance(await store.commit(late), Rejected)
        (item,) = await store.waiting_items(KEY)
        fresh = Unit(key=KEY, fence=lease.fence, promotes=(Promotion(item.sequence, "idle"),))
        assert isinstance(await store.commit(fresh), Committed)

    async def test_promotion_of_a_stale_version_cannot_lose_a_reordering(self, store: Store) -> None:
        await create(store)
        seen = accepted(await send(store, "m1")).item
        await send(store, "m2")
        lease = await hold(store)
        assert await store.reorder_items(KEY, ["m2", "m1"])
        assert keys_of(await store.waiting_items(KEY)) == ["m2", "m1"]
        late = Unit(key=KEY, fence=lease.fence, promotes=(Promotion(seen.sequence, "idle"),))
        assert isinstance(await store.commit(late), Rejected)

    async def test_reordering_must_name_exactly_the_queued_messages(self, store: Store) -> None:
        await create(store)
        await send(store, "m1")
        await send(store, "m2")
        for wrong in (["m1"], ["m1", "m1"], ["m1", "m2", "m3"], []):
            assert not await store.reorder_items(KEY, wrong)
        assert keys_of(await store.waiting_items(KEY)) == ["m1", "m2"]

    async def test_a_removed_message_is_not_promoted(self, store: Store) -> None:
        await create(store)
        item = accepted(await send(store, "m")).item
        lease = await hold(store)
        assert await store.remove_item(KEY, "m")
        unit = Unit(key=KEY, fence=lease.fence, events=(said("x"),), promotes=(Promotion(item.sequence, "idle"),))
        assert isinstance(await store.commit(unit), Rejected)
        receipt = await store.receipt(KEY, "m")
        assert receipt is not None
        assert receipt.state == "removed"

    async def test_promoted_item_cannot_be_changed(self, store: Store) -> None:
        await running(store)
        assert refused(await store.edit_item(KEY, "first", text="x")) == "message_not_queued"
        assert not await store.remove_item(KEY, "first")
        assert not await store.reorder_items(KEY, ["first"])
        assert refused(await store.edit_item(KEY, "missing", text="x")) == "message_not_queued"

    # Stops

    async def test_stop_names_the_running_turn_and_removes_queued_messages(self, store: Store) -> None:
        await running(store)
        await send(store, "later")
        stopped = accepted(await stop(store))
        assert stopped.item.item == Stop(stop_id="stop", turn_id=TURN)
        assert [(item.key, item.state, item.outcome) for item in stopped.removed] == [("later", "removed", "stopped")]
        assert keys_of(await store.waiting_items(KEY)) == ["stop"]

    async def test_stop_may_keep_the_queue(self, store: Store) -> None:
        await running(store)
        await send(store, "later")
        assert accepted(await stop(store, keep_queued=True)).removed == ()
        assert keys_of(await store.waiting_items(KEY)) == ["later", "stop"]

    async def test_stop_meant_for_an_ended_turn_keeps_the_queue(self, store: Store) -> None:
        """The queued message belongs to the next turn, and may be another person's."""
        lease = await running(store)
        await store.commit(Unit(key=KEY, fence=lease.fence, status="idle", turn_id=None))
        await send(store, "later")
        late = accepted(await stop(store, meant_for=TURN))
        assert (late.item.state, late.item.outcome, late.removed) == ("promoted", "turn_ended_before", ())
        again = accepted(await stop(store, meant_for=TURN))
        assert (again.duplicate, again.item.outcome, again.removed) == (True, "turn_ended_before", ())
        assert keys_of(await store.waiting_items(KEY)) == ["later"]
        row = await store.row(KEY)
        assert row is not None
        assert (row.status, row.waiting_messages) == ("queued", 1)

    async def test_stop_meant_for_another_turn_changes_neither_turn_nor_queue(self, store: Store) -> None:
        await running(store)
        await send(store, "later")
        late = accepted(await stop(store, meant_for=TurnId("an earlier one")))
        assert (late.item.state, late.item.outcome, late.removed) == ("promoted", "turn_ended_before", ())
        assert keys_of(await store.waiting_items(KEY)) == ["later"]

    async def test_stop_without_a_running_turn_says_so_and_wakes_no_worker(self, store: Store) -> None:
        await create(store)
        item = accepted(await stop(store)).item
        assert (item.state, item.outcome) == ("promoted", "nothing_running")
        assert await store.claim(limit=MANY) == []

    async def test_stop_before_the_turn_starts_removes_its_message(self, store: Store) -> None:
        await create(store)
        seen = accepted(await send(store, "m")).item
        lease = await hold(store)
        stopped = accepted(await stop(store))
        assert (stopped.item.outcome, keys_of(stopped.removed)) == ("dequeued", ["m"])
        unit = Unit(key=KEY, fence=lease.fence, events=(said("x"),), promotes=(Promotion(seen.sequence, "idle"),))
        assert isinstance(await store.commit(unit), Rejected)

    async def test_repeated_stop_returns_the_receipt_even_after_the_turn_ended(self, store: Store) -> None:
        lease = await running(store)
        first = accepted(await stop(store)).item
        ending = Unit(key=KEY, fence=lease.fence, promotes=(Promotion(first.sequence, "stopped"),), status="idle")
        await store.commit(ending)
        again = accepted(await stop(store))
        assert (again.duplicate, again.item.state, again.item.outcome) == (True, "promoted", "stopped")

    async def test_repeated_stop_returns_the_same_removed_messages(self, store: Store) -> None:
        await running(store)
        await send(store, "later")
        first = accepted(await stop(store))
        again = accepted(await stop(store))
        assert keys_of(first.removed) == ["later"]
        assert (again.duplicate, again.removed) == (True, first.removed)

    async def test_interrupting_message_stops_and_is_accepted_in_one_transaction(self, store: Store) -> None:
        await running(store)
        await send(store, "old")
        put = accepted(await send(store, "new", stop_first="stop:1", limit=1))
        assert keys_of(put.removed) == ["old"]
        assert keys_of(await store.waiting_items(KEY)) == ["stop:1", "new"]
        again = accepted(await send(store, "new", stop_first="stop:1", limit=1))
        assert (again.duplicate, keys_of(again.removed)) == (True, ["old"])
        assert keys_of(await store.waiting_items(KEY)) == ["stop:1", "new"]

    # Answers

    async def test_first_answer_counts_and_repeating_it_returns_the_receipt(self, store: Store) -> None:
        await asking(store)
        first = accepted(await reply(store))
        again = accepted(await reply(store))
        assert (again.item, again.duplicate) == (first.item, True)
        late = await reply(store, answer("b", by="bob"))
        assert isinstance(late, Refused)
        assert (late.code, "ann" in late.message) == ("answered_already", True)

    async def test_different_answer_under_a_used_id_is_refused(self, store: Store) -> None:
        lease = await asking(store)
        said = answer("a")
        first = accepted(await reply(store, said))
        for content in (
            PermissionAnswer(decision="approved-for-session"),
            PermissionAnswer(decision="approved", rules=("shell",)),
            PermissionAnswer(decision="approved", place=""),
            QuestionAnswer(answer="approved"),
        ):
            assert refused(await reply(store, replace(said, content=content))) == "id_reused"
        again = accepted(await reply(store, replace(said, answered_by="bob")))
        assert (again.item, again.duplicate) == (first.item, True), "the sender of the repetition does not matter"
        taking_in = (Promotion(first.item.sequence, "answered"),)
        closing = Unit(key=KEY, fence=lease.fence, closes=(REQUEST,), promotes=taking_in)
        assert isinstance(await store.commit(closing), Committed)
        late = replace(said, content=PermissionAnswer(decision="approved-for-session"))
        assert refused(await reply(store, late)) == "id_reused", "also once it was taken up"

    async def test_answered_request_is_no_longer_open(self, store: Store) -> None:
        await asking(store)
        (asked,) = await store.requests(KEY)
        accepted(await reply(store))
        assert await store.requests(KEY) == ()
        assert await store.requests(KEY, answered=True) == (asked,), "its holder has not closed it yet"
        row = await store.row(KEY)
        assert row is not None
        assert row.open_requests == 0

    async def test_one_of_many_concurrent_answers_counts(self, store: Store, open_store: OpenStore) -> None:
        await asking(store)
        other = await open_store()
        replies = (reply(each, answer(f"{n}")) for n in range(5) for each in (store, other))
        answers = await asyncio.gather(*replies)
        assert sum(isinstance(each, Accepted) and not each.duplicate for each in answers) == 1
        assert len(await store.waiting_items(KEY)) == 1

    async def test_an_answer_to_no_request_is_refused(self, store: Store) -> None:
        await running(store)
        assert refused(await reply(store)) == "request_not_found"
        assert await store.receipt(KEY, f"answer:{REQUEST}") is None

    async def test_an_answer_to_a_closed_request_is_refused(self, store: Store) -> None:
        lease = await asking(store)
        await store.commit(Unit(key=KEY, fence=lease.fence, closes=(REQUEST,)))
        assert refused(await reply(store)) == "request_closed"
        assert await store.requests(KEY) == await store.requests(KEY, answered=True) == ()
        assert await store.receipt(KEY, f"answer:{REQUEST}") is None

    async def test_request_with_an_accepted_answer_cannot_be_closed_without_it(self, store: Store) -> None:
        """A turn that is given up must promote an answer that was accepted meanwhile: its sender has the receipt."""
        lease = await asking(store)
        item = accepted(await reply(store)).item
        closing = Unit(key=KEY, fence=lease.fence, closes=(REQUEST,), status="idle")
        assert isinstance(await store.commit(closing), Rejected)
        row = await store.row(KEY)
        assert row is not None
        assert row.status == "waiting"
        taking_in = replace(closing, promotes=(Promotion(item.sequence, "answered"),))
        assert isinstance(await store.commit(taking_in), Committed)

    async def test_an_answer_after_a_stop_is_refused(self, store: Store) -> None:
        await asking(store)
        await stop(store)
        assert refused(await reply(store)) == "stopping"

    async def test_an_answer_before_a_stop_stays_accepted(self, store: Store) -> None:
        await asking(store)
        accepted(await reply(store))
        assert accepted(await stop(store)).removed == ()
        assert keys_of(await store.waiting_items(KEY)) == [f"answer:{REQUEST}", "stop"]

    async def test_answer_wakes_an_unheld_session(self, store: Store) -> None:
        lease = await asking(store)
        assert await store.release(lease, seen_tail=1, how="done")
        assert await store.claim(limit=MANY) == []
        accepted(await reply(store))
        assert [claim.lease.key for claim in await store.claim(limit=MANY)] == [KEY]
