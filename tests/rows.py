"""The row of a session, with the facts that no client sees: its holder, its inbox, its machine."""

from holdfast.server.embedded.session import Session
from holdfast.store.store import Row


async def row_of(session: Session) -> Row:
    return await session._operations.session(session.key)
