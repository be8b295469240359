"""The context of a session's model calls: its model, the model's window, its prompt, the tools that it offers."""

import logging
from collections.abc import Awaitable, Callable, Iterable

from msgspec.structs import replace

from holdfast.events.body import Body
from holdfast.events.context import SystemText, ToolSpec, UserText
from holdfast.events.ids import MessageId
from holdfast.events.message import Noted, UserMessage
from holdfast.events.task import TaskNotified
from holdfast.events.turn import TurnStarted
from holdfast.large_work import beside_if_large
from holdfast.models.choice import ModelChoice
from holdfast.models.cost import dearest
from holdfast.models.credentials import Credentials
from holdfast.models.errors import ModelNotUsable, SecretsUnknown
from holdfast.models.info import UNKNOWN, ModelInfo
from holdfast.models.model import Model, ModelRequest
from holdfast.session import compaction
from holdfast.session.history import anchor, conversation, size_of, system_message
from holdfast.session.prompt import unasked_tools
from holdfast.session.tokens import tokens_in, tokens_of
from holdfast.store.budget import Ask
from holdfast.turns.budgets import Budgets, longest_answer
from holdfast.turns.errors import ModelUnusableHere
from holdfast.turns.held_session import HeldSession

log = logging.getLogger(__name__)

Models = Callable[[ModelChoice], Awaitable[Model]]
"""Opens the model that a session chose; raises `ModelNotUsable`."""

IMAGE_TOKENS = 1_600
"""About how many tokens an image has at most, as providers count them."""

NEWS_TOKENS = 200
"""About how many tokens the news of a task, or a note, has."""

UNNAMED = "(configured)"
"""Stands for the model of a session that names none, when that model can't be used."""


class CallContext:
    """Finds what the calls of a held session are made with."""

    def __init__(
        self,
        session: HeldSession,
        *,
        models: Models,
        credentials: Credentials | None,
        stream: bool,
        compaction_model: str | None,
        fallback_model: str | None,
        budgets: Budgets,
    ) -> None:
        self.models = models
        self.window: int | None = None
        """The window of the session's model; None until `measure` found it."""
        self.prompt_tokens = 0
        """About how many tokens stand before the conversation."""
        self._session = session
        self._budgets = budgets
        self._credentials = credentials
        self._stream = stream
        self._compaction_model = compaction_model
        self._fallback_model = fallback_model
        self._prompt = session.prompts.current
        self._offered: tuple[ToolSpec, ...] = ()
        self._info = UNKNOWN
        self._is_limited = False
        session.reservations.price = self._ask
        self._measured: object = None
        """The parts of the state from which the window and the size of the prompt were found."""

    async def measure(self) -> None:
        """Find the window, the prompt and its size again, if they may have changed and the session is at work."""
        session, state = self._session, self._session.state
        busy = state.turn is not None or state.compaction is not None or bool(session.inbox)
        if not busy or session.is_partial:
            return
        self._is_limited = state.provider is None and await self._budgets.hold(session.key.owner)
        unasked = unasked_tools(compactions=state.compactions, has_files=state.has_files)
        now = (state.model_now(), state.provider, state.prompt, state.tools, state.client_tools, unasked)
        if now == self._measured:
            return
        self._info = (await self.model()).info
        self.window = self._info.window
        self._prompt = await session.prompts.get(state.prompt)
        self._offered = self._prompt.offered(state.tools, state.client_tools, unasked=unasked)
        self.prompt_tokens = self._prompt.tokens(self._offered) + tokens_in(state.system_message or "")
        self._measured = now

    async def model(self) -> Model:
        """The model of the session's next call. Raises `ModelUnusableHere`."""
        state = self._session.state
        choice = ModelChoice(key=self._session.key, name=state.model_now(), provider=state.provider)
        try:
            return await self.models(choice)
        except SecretsUnknown as error:
            raise ModelUnusableHere(None, str(error)) from error
        except ModelNotUsable as error:
            raise ModelUnusableHere(choice.name or UNNAMED, str(error)) from error

    def fallback(self) -> str | None:
        """The model to ask when the session's own can't be reached. Clients' own providers have none."""
        state = self._session.state
        return self._fallback_model if state.provider is None and state.model_now() != self._fallback_model else None

    async def summary_model(self) -> tuple[Model, int]:
        """The model that makes summaries, with its window: the configured one where a session uses the server's models,
        or its own, whose window its provider may have named."""
        state = self._session.state
        if self._compaction_model is not None and state.provider is None:
            try:
                model = await self.models(ModelChoice(key=self._session.key, name=self._compaction_model))
            except ModelNotUsable as error:
                log.warning("the model for summaries can't be used, the session's own is: %s", error)
            else:
                return model, model.info.window
        model = await self.model()
        return model, compaction.window_of(state, model.info.window) or model.info.window

    async def request(self, model: Model) -> ModelRequest:
        """The request of the session's next call, to this model. Raises `FilesUnavailable`."""
        state = self._session.state
        without_tools = state.turn is not None and state.turn.last_step
        history, seed = tuple(state.history), state.seed
        shown = await self._session.shown_files(history, takes_documents=model.info.takes_documents)
        return ModelRequest(
            messages=(
                system_message(state, self._prompt),
                *await beside_if_large(size_of(history), lambda: conversation(history, seed, shown)),
            ),
            tools=() if without_tools else self._offered,
            stream=self._stream and state.stream,
            reasoning_effort=state.reasoning_effort,
            thinking=state.thinking_now(),
            headers=self._headers(),
            cache_key=f"holdfast-{seed}",
            cache_anchor=anchor(state),
            window=compaction.window_of(state, self.window),
            tokens=state.context_tokens(self.prompt_tokens),
            max_tokens=self._session.reservations.most_tokens if self._is_limited else None,
        )

    def _ask(self, message_id: MessageId, attempt: int, bodies: Iterable[Body]) -> Ask | None:
        """What the next call asks of its owner's budget. A provider that the session brought is paid by its client."""
        if not self._is_limited:
            return None
        state = self._session.state
        tokens = state.context_tokens(self.prompt_tokens) + sum(map(_tokens_of, bodies))
        started = next((body.turn_id for body in bodies if isinstance(body, TurnStarted)), None)
        asked = self._ask_for(
            self._info,
            state.model_now() or "",
            tokens,
            longest_answer(self._info, tokens, state.thinking_now() or 0),
            call=(message_id, attempt),
        )
        return asked if started is None else replace(asked, turn_id=started)

    async def reserve_beside(self, call: tuple[MessageId, int], model: Model, request: ModelRequest) -> bool:
        """Have money reserved for a call beside the turn, such as one for a summary. False: there is none."""
        if not self._is_limited:
            return True
        tokens = sum(tokens_in(part.text) for part in request.messages if isinstance(part, (SystemText, UserText)))
        longest = request.max_tokens or longest_answer(model.info, tokens, 0)
        return await self._session.reserve_beside(self._ask_for(model.info, model.name, tokens, longest, call=call))

    def _ask_for(self, info: ModelInfo, model: str, tokens: int, longest: int, *, call: tuple[MessageId, int]) -> Ask:
        limits, turn = self._session.store.limits.spend, self._session.state.turn
        input_cost, rate = dearest(info.price, tokens) if info.price is not None else (0, 0)
        message_id, attempt = call
        return Ask(
            message_id=message_id,
            attempt=attempt,
            turn_id=turn.turn_id if turn is not None else None,
            model=model,
            root=self._session.key.session,
            input_cost=input_cost,
            output_rate=rate,
            most_tokens=longest,
            is_priced=info.price is not None,
            session_cap=limits.session,
            turn_cap=limits.turn,
            tree_cap=limits.tree,
        )

    def _headers(self) -> dict[str, str]:
        turn = self._session.state.turn
        if self._credentials is None or turn is None:
            return {}
        return self._credentials.headers(self._session.key, turn.message_ids)


def _tokens_of(body: Body) -> int:
    """About how many tokens an event adds to the next call."""
    match body:
        case UserMessage():
            return tokens_of((body.model_text or body.content,)) + IMAGE_TOKENS * len(body.images)
        case TaskNotified() | Noted():
            return NEWS_TOKENS
        case _:
            return 0
