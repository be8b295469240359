"""The agent loop: decide, act, decide again.

Every turn runs this way, so resuming after a crash is not a special case. Everything durable happens in
`HeldSession.commit`; everything slow happens in an activity beside the loop, so that the loop can react to a stop, an
answer or a follow-up while the activity runs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from holdfast.events.ids import Fence, Key, ToolCallId
from holdfast.files.errors import FilesUnavailable
from holdfast.models.choice import ModelChoice
from holdfast.models.credentials import Credentials
from holdfast.session.actions import (
    Append,
    CallModel,
    Deny,
    GoToBackground,
    Interrupt,
    Pause,
    Release,
    RunTools,
    Summarise,
)
from holdfast.session.decide import decide
from holdfast.session.inputs import COMPACTION, MODEL, CallFacts, Inputs
from holdfast.session.state import ToolCall
from holdfast.store.store import Claim, ReleaseKind
from holdfast.tools.registry import Registry
from holdfast.turns import cancelled_tools
from holdfast.turns.activities import Activities, linger
from holdfast.turns.budgets import Budgets
from holdfast.turns.call_context import CallContext, Models
from holdfast.turns.compactions import Compactions
from holdfast.turns.errors import LeaseLost
from holdfast.turns.held_session import HeldSession
from holdfast.turns.model_call import call_model, fail_call, unreachable_files
from holdfast.turns.titles import Titles
from holdfast.turns.tool_call import facts_of, run_tool

log = logging.getLogger(__name__)


class TurnLoop:
    """Runs one held session until it has nothing left to do."""

    def __init__(
        self,
        session: HeldSession,
        claim: Claim,
        *,
        node: str,
        models: Models,
        credentials: Credentials | None = None,
        registry: Registry,
        stream: bool = True,
        compaction_model: str | None = None,
        fallback_model: str | None = None,
        budgets: Budgets | None = None,
        titles: Titles | None = None,
        lingering: set[HeldSession] | None = None,
        others_wait: Callable[[Key], Awaitable[bool]] | None = None,
    ) -> None:
        self.session = session
        self.draining = False
        self._claim = claim
        self._takeover: tuple[Fence, str] | None = (claim.lease.fence, node)
        self._claims_without_progress = claim.claims_without_progress
        self._credentials = credentials
        self._registry = registry
        self._titles = titles
        self._lingering = set() if lingering is None else lingering
        self._activities = Activities(session.woken)
        self._context = CallContext(
            session,
            models=models,
            credentials=credentials,
            stream=stream,
            compaction_model=compaction_model,
            fallback_model=fallback_model,
            budgets=budgets or Budgets(session.store, session.clock),
        )
        self._compactions = Compactions(session, self._context, self._activities)
        self._facts: dict[ToolCallId, CallFacts] = {}
        self._others_wait = others_wait
        self._had_turn = False
        """A turn ran in this process since the session was claimed."""
        self._is_spent = False
        """The state was folded without history to end one turn, and that turn is over: the state has no further use."""

    async def run(self) -> None:
        """Run the session until it is released. Raises `LeaseLost`, `ModelUnusableHere` before anything was done, or an
        error of the store: the caller then drops the session."""
        if self._claim.eligible and not self.session.is_partial:
            await self._context.model()
        try:
            while not await self._run_once():
                pass
        finally:
            self._compactions.end_wait()
            try:
                await self._activities.cancel()
            finally:
                await self.session.cancelled_tools.wait_out()
            self.session.answer_begun.set()
            if self._credentials is not None and self.session.state.turn is None:
                self._credentials.turn_ended(self.session.key)

    def end_activities(self) -> None:
        """End at once all activities that were started under a lease that is over, or will be soon, also while the loop
        itself has to wait for the outcome of a write. Call it after cancelling the loop."""
        self._activities.request_end()

    async def _run_once(self) -> bool:
        """Decide once and carry the decision out. True: the session is released."""
        self.session.woken.clear()
        self._activities.raise_failures()
        await self.session.refresh_inbox()
        self._had_turn |= self.session.state.turn is not None
        await self._compactions.drop_stale()
        if self.session.state.is_behind and not self.session.is_partial:
            return await self._load_again()
        if self._claim.eligible:  # On another machine the same path is another folder.
            await self.session.fix_directory()
        granted = await self._granted_rules()
        if self._claim.eligible:
            await self._context.measure()
        self._facts = await self._call_facts()  # Last, because the state must not change between this and `decide`.
        decision = decide(self.session.state, self._inputs(granted))
        if self._is_spent and not isinstance(decision, Release):
            return await self._hand_over_next_turn()
        if not isinstance(decision, Append):
            await self.session.until_claimed()
        self._compactions.follow_wait(pauses=isinstance(decision, Pause))
        match decision:
            case Append() if await self._gives_way():
                return await self._release("gave_way")
            case Append() as append:
                if await self.session.commit(append):
                    self._takeover = None
                    self._compactions.note_started(append)
                    if self.session.state.turn is None:
                        self._is_spent = self.session.is_partial
                        self.session.interrupted.clear()
                        self._claims_without_progress = 0  # A fault of that turn must not count against the next one.
            case Interrupt():
                self.session.is_interrupting = True
                await self._activities.cancel()
                await self.session.cancelled_tools.wait(cancelled_tools.GIVE_UP_SECONDS)
                await self.session.until_written()
                self.session.is_interrupting = False
            case GoToBackground(tool_call_id=tool_call_id):
                self.session.to_background[tool_call_id].set()
            case Deny(request_ids=request_ids):
                await self.session.deny(request_ids)
            case Pause() if self.draining and self._activities.running == {COMPACTION}:
                await self._activities.cancel()
                return await self._release("handed_over")
            case Pause():
                await self.session.woken.wait()
            case Release(for_another=True):
                return await self._release("for_another")
            case Release(for_newer=for_newer):
                await self._linger()
                return not self.session.woken.is_set() and await self._release("for_newer" if for_newer else "done")
            case CallModel() | RunTools() if self.draining and not self._activities.running - {COMPACTION}:
                await self._activities.cancel()
                return await self._release("handed_over")
            case CallModel() as call:
                if await self.session.reserve():
                    await self._start_model(call)
            case Summarise(compaction=current):
                await self._compactions.start(current, lambda: self._inputs(frozenset()))
            case RunTools(calls=calls):
                for tool_call in calls:
                    self._start_tool(tool_call)
        return False

    async def _hand_over_next_turn(self) -> bool:
        """Release the session: its next turn needs the history, which this state lacks. The next claim loads it
        whole."""
        return await self._release("handed_over")

    async def _load_again(self) -> bool:
        """Release the session: its conversation was rewound into a part that a summary stood for. The next claim loads
        that part again."""
        await self._activities.cancel()
        return await self._release("handed_over")

    async def _gives_way(self) -> bool:
        """Whether the session goes to the end of the queue, between two turns, because others wait for its place:
        however many messages it is sent, it does not keep other sessions from running."""
        if not self._had_turn or self.session.state.turn is not None or self._activities.running:
            return False
        return bool(self.session.inbox) and self._others_wait is not None and await self._others_wait(self.session.key)

    async def _linger(self) -> None:
        self._lingering.add(self.session)
        try:
            await linger(self.session, stay=bool(self.session.state.requests) and not self.draining)
        finally:
            self._lingering.discard(self.session)

    async def _granted_rules(self) -> frozenset[str]:
        """Permission rules granted for the session's folder. Read before each decision that may need them: a person may
        have revoked a rule through any process."""
        state = self.session.state
        if not state.place_rules or state.reply() is None:
            return frozenset()
        return frozenset(await self.session.store.granted(self.session.key.owner, state.working_directory or ""))

    async def _call_facts(self) -> dict[ToolCallId, CallFacts]:
        return await facts_of(
            self.session.state,
            self._registry,
            running=lambda: self._activities.running,
            max_calls=self.session.bounds.max_calls_per_step,
            directory=self.session.directory(),
        )

    def _inputs(self, granted: frozenset[str]) -> Inputs:
        session = self.session
        return Inputs(
            new_id=session.new_id,
            now=session.clock.now_ms(),
            bounds=session.bounds,
            inbox=session.inbox,
            shown=session.shown() if MODEL not in self._activities.running else (),
            running=self._activities.running,
            facts=self._facts,
            interrupted={call: look() for call, look in session.interrupted.items()},
            claims_without_progress=self._claims_without_progress,
            eligible=self._claim.eligible,
            backgrounded=self._activities.running - session.foreground_calls(),
            granted=granted,
            readable=session.readable if self._facts else (),
            deciders=session.deciders,
            denying=session.denying,
            takeover=self._takeover,
            prompt=session.prompts.current.digest,
            prompt_tokens=self._context.prompt_tokens,
            window=self._context.window,
            fallback=self._context.fallback(),
            over_budget=session.reservations.over_budget,
            owns_compaction=self._compactions.owns(session.state.compaction),
        )

    async def _start_model(self, call: CallModel) -> None:
        model = await self._context.model()
        try:
            request = await self._context.request(model)
        except FilesUnavailable as error:
            log.warning("session %s can't show its files to the model: %s", self.session.key.session, error.message)
            return self._start(MODEL, fail_call(self.session, call, unreachable_files()))
        self._start(MODEL, call_model(self.session, call, model, request))
        self._consider_title()

    def _consider_title(self) -> None:
        """Start making a title, once for each claim: a model that fails is not called again at every step."""
        titles, self._titles = self._titles, None
        if titles is not None:
            state = self.session.state
            choice = ModelChoice(key=self.session.key, name=state.model, provider=state.provider)
            titles.consider(
                self.session.key,
                state,
                lambda: self._context.models(choice),
                self.session.answer_begun,
                lambda call, model, request: self._context.reserve_beside((call, 1), model, request),
            )

    def _start_tool(self, call: ToolCall) -> None:
        tool = self._registry.get(call.name)
        assert tool is not None, "decide only starts calls whose tool is here"
        self.session.to_background[call.tool_call_id] = asyncio.Event()
        self._start(call.tool_call_id, run_tool(self.session, call, tool, self._facts[call.tool_call_id].ask))

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._claims_without_progress = 0
        self._activities.start(name, work)

    async def _release(self, how: ReleaseKind) -> bool:
        """Release the session, after cancelled tools have had time to end. False: not released, decide again.

        A refusal that nothing in the inbox explains means that the lease is over, even if the session's row still has
        its fence: a standby database took over, or another process declared this one dead."""
        session = self.session
        if not await session.cancelled_tools.wait_out(session.woken if how == "done" else None):
            return False
        await session.until_snapshot_kept()
        tail = session.tail_seen
        if await session.store.release(session.lease, seen_tail=tail, how=how):
            return True
        session.wake()
        await session.refresh_inbox()
        if how not in ("done", "for_newer") or session.tail_seen == tail:
            raise LeaseLost(session.key)
        return False
