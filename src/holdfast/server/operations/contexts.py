"""How full a session's context is, and how much of its input came from the provider's cache."""

from collections.abc import Sequence

from holdfast.events.ids import Key
from holdfast.models.choice import ModelChoice
from holdfast.protocol.compaction import ContextView, SessionUsage
from holdfast.server.operations.session_access import SessionAccess
from holdfast.session.state import State
from holdfast.store.store import LedgerEntry


class ContextVerbs(SessionAccess):
    async def context(self, key: Key, state: State | None = None, *, with_usage: bool = True) -> ContextView:
        """The context of the session's next call. `state` is the session's state where a caller has it already.
        `with_usage` reads an entry of the ledger for each model call that the session ever made."""
        state = await self.state(key) if state is None else state
        tokens = state.size.now(0) if state.size.counted else None
        window = await self.window(key, state)
        return ContextView(
            tokens=tokens,
            window=window,
            percent=None if tokens is None or not window else tokens * 100 // window,
            compactions=state.compactions,
            is_compacting=state.compaction is not None,
            pinned=state.pinned,
            usage=session_usage(await self.store.ledger(key.owner, key.session)) if with_usage else None,
        )

    async def window(self, key: Key, state: State) -> int | None:
        """The tokens that the session's model takes: as its provider named it when it refused a call, or as the model
        is known. None if nothing is known of models here."""
        model = state.model_now()
        known = await self._find_window(ModelChoice(key=key, name=model, provider=state.provider))
        return None if known is None else min(known, state.windows.get(model or "", known))


def session_usage(ledger: Sequence[LedgerEntry]) -> SessionUsage:
    """The sums of a session's model calls."""
    input_tokens = sum(entry.input_tokens or 0 for entry in ledger)
    cache_read = sum(entry.cache_read_tokens or 0 for entry in ledger)
    return SessionUsage(
        calls=len(ledger),
        input_tokens=input_tokens,
        output_tokens=sum(entry.output_tokens or 0 for entry in ledger),
        cache_read_tokens=cache_read,
        cache_write_tokens=sum(entry.cache_write_tokens or 0 for entry in ledger),
        cache_share=cache_read / input_tokens if input_tokens else None,
    )
