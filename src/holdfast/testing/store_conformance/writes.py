"""Every writing verb of a store, one after the other, for tests that concern all writes alike."""

from collections.abc import AsyncIterator

from holdfast.events.ids import EventId, Position
from holdfast.store.store import Attachment, Snapshot, Store, Unit
from holdfast.store.tasks import TaskChange
from holdfast.store.webhooks import WebhookChange, ending_of
from holdfast.testing.store_conformance.audit import DENIED
from holdfast.testing.store_conformance.files import writes_of_files
from holdfast.testing.store_conformance.keys import LAPTOP
from holdfast.testing.store_conformance.tasks import HERE, T1, T2, ending, notice, task, task_row
from holdfast.testing.store_conformance.webhooks import TAKEN, claim_one, trial, webhook
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY_MICRODOLLARS,
    REQUEST,
    call,
    create,
    hold,
    request,
    said,
    send,
)


async def every_write(store: Store) -> AsyncIterator[str]:
    """Call each writing verb and yield its name after the write. Some verbs occur more than once."""
    await store.renew(ttl_seconds=30)
    yield "renew"
    await create(store)
    yield "commit"
    await send(store, "first")
    yield "put"
    lease = await hold(store)
    yield "claim"
    await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("hello"),), opens=(request(),)))
    yield "commit"
    assert await store.keep_snapshot(lease, Snapshot(1, Position(1), b"folded"))
    yield "keep_snapshot"
    assert await store.index_logs([KEY]) == ()
    yield "index_logs"
    async for verb in _writes_of_people(store):
        yield verb
    await store.commit(Unit(key=KEY, fence=lease.fence, opens_tasks=(task(T1), task(T2))))
    yield "commit"
    in_background = tuple(TaskChange(task_id=task_id, goes_on=True) for task_id in (T1, T2))
    await store.commit(Unit(key=KEY, fence=lease.fence, changes_tasks=in_background))
    yield "commit"
    async for verb in _writes_of_tasks(store):
        yield verb
    assert await store.edit_budget(KEY.owner, lambda seen: seen.budget)
    yield "edit_budget"
    await store.commit(Unit(key=KEY, fence=lease.fence, reserves=call("answer", session_cap=MANY_MICRODOLLARS)))
    yield "commit"
    async for verb in _writes_of_webhooks(store):
        yield verb
    async for verb in writes_of_files(store):
        yield verb
    assert await store.release(lease, seen_tail=-1, how="handed_over")
    yield "release"
    assert await store.settle_left() == 1
    yield "settle_left"
    assert await store.delete(KEY)
    yield "delete"


async def _writes_of_people(store: Store) -> AsyncIterator[str]:
    for name in ("second", "third"):
        await send(store, name)
        yield "put"
    assert await store.edit_item(KEY, "second", text="other words") is None
    yield "edit_item"
    assert await store.reorder_items(KEY, ["third", "second", "first"])
    yield "reorder_items"
    assert await store.remove_item(KEY, "third")
    yield "remove_item"
    assert await store.see(KEY, Position(1)) is not None
    yield "see"
    await store.annotate(KEY, pinned=True, max_entries=4, max_characters=100)
    yield "annotate"
    await store.attach(Attachment(attachment_id="laptop", key=KEY, node="here"), ttl_seconds=30)
    yield "attach"
    await store.decline(KEY, "laptop", REQUEST)
    yield "decline"
    await store.detach(KEY, "laptop")
    yield "detach"
    await store.grant(KEY.owner, "/work", ["shell(git)"])
    yield "grant"
    assert await store.revoke_grant(KEY.owner, "/work", "shell(git)")
    yield "revoke_grant"
    assert await store.keep_secret(KEY, keeper="somebody", sealed=b"sealed")
    yield "keep_secret"
    await store.lose_secret(KEY, keeper="somebody", sealed=b"sealed")
    yield "lose_secret"
    await store.drop_secret(KEY)
    yield "drop_secret"
    await store.add_key(LAPTOP)
    yield "add_key"
    assert await store.revoke_key(LAPTOP.key_id)
    yield "revoke_key"
    await store.audit(DENIED)
    yield "audit"
    assert await store.trim_audit(DENIED.at + 1) == 1
    yield "trim_audit"


async def _writes_of_tasks(store: Store) -> AsyncIterator[str]:
    await store.see_host(HERE)
    yield "see_host"
    assert await store.stall_task(await task_row(store), notice("stalled"))
    yield "stall_task"
    assert await store.ask_kill(KEY, T1, "person")
    yield "ask_kill"
    for task_id in (T1, T2):
        assert await store.end_task(
            await task_row(store, task_id), ending(ended_at=1), notice(task_id=task_id), host=HERE
        )
        yield "end_task"
    assert await store.drop_task(KEY, T2)
    yield "drop_task"
    assert await store.drop_old_tasks(ended_seconds=0)
    yield "drop_old_tasks"


async def _writes_of_webhooks(store: Store) -> AsyncIterator[str]:
    assert await store.add_webhook(webhook(), limit=None)
    yield "add_webhook"
    assert await store.change_webhook(KEY.owner, "hook", WebhookChange(description="mine")) is not None
    yield "change_webhook"
    assert await store.test_webhook(trial("test"), limit=1)
    yield "test_webhook"
    assert await store.send_again(KEY.owner, "hook", EventId("test")) is not None
    yield "send_again"
    delivery = await claim_one(store)
    yield "claim_deliveries"
    assert await store.end_delivery(delivery, ending_of(delivery, TAKEN, now=1, jitter=0))
    yield "end_delivery"
    assert await store.drop_old_deliveries(1) == 1
    yield "drop_old_deliveries"
    assert await store.delete_webhook(KEY.owner, "hook")
    yield "delete_webhook"
