"""Lifecycle notifications reach every connection of a session's owner."""

import asyncio

import pytest
from copilot import CopilotClient
from copilot.client import SessionLifecycleEvent

from tests.wire.copilot.harness import Model, Server, approving, connected, patience, reply_to, says

pytestmark = pytest.mark.anyio


class Noticed:
    def __init__(self) -> None:
        self.events: list[SessionLifecycleEvent] = []
        self._news = asyncio.Event()

    def __call__(self, event: SessionLifecycleEvent) -> None:
        self.events.append(event)
        self._news.set()

    async def until(self, kind: str, session_id: str) -> SessionLifecycleEvent:
        async with patience():
            while True:
                for event in self.events:
                    if (event.type, event.session_id) == (kind, session_id):
                        return event
                self._news.clear()
                await self._news.wait()


async def test_should_receive_session_created_lifecycle_event(client: CopilotClient) -> None:
    noticed = Noticed()
    unsubscribe = client.on_lifecycle(noticed)
    session = await client.create_session(**approving())
    event = await noticed.until("session.created", session.session_id)
    assert event.metadata is not None
    unsubscribe()


async def test_should_receive_session_updated_and_deleted_lifecycle_events(client: CopilotClient, model: Model) -> None:
    model.on("Update me", says("Updated."))
    noticed = Noticed()
    unsubscribe = client.on_lifecycle(noticed)
    session = await client.create_session(**approving())
    await reply_to(session, "Update me")
    await noticed.until("session.updated", session.session_id)
    await client.delete_session(session.session_id)
    await noticed.until("session.deleted", session.session_id)
    unsubscribe()


async def test_lifecycle_events_reach_unattached_connections(client: CopilotClient, another: CopilotClient) -> None:
    noticed = Noticed()
    another.on_lifecycle("session.created", noticed)
    session = await client.create_session(**approving())
    await noticed.until("session.created", session.session_id)


async def test_unsubscribed_handler_is_not_called(client: CopilotClient) -> None:
    stays, goes = Noticed(), Noticed()
    unsubscribe = [client.on_lifecycle(stays), client.on_lifecycle(goes)]
    unsubscribe[1]()
    session = await client.create_session(**approving())
    await stays.until("session.created", session.session_id)
    assert goes.events == []
    unsubscribe[0]()


async def test_a_client_that_stops_leaves_its_sessions_for_others(server: Server, model: Model) -> None:
    model.on("Left behind", says("Found."))
    async with connected(server.client()) as first:
        session = await first.create_session(**approving())
        await reply_to(session, "Left behind")
    async with connected(server.client()) as second:
        assert session.session_id in [found.session_id for found in await second.list_sessions()]
        again = await second.resume_session(session.session_id, **approving())
        assert await reply_to(again, "Left behind") == "Found."
