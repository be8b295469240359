"""The context of a session's model calls: its model, the model's window, its prompt, the tools that it offers."""

import logging
from collections.abc import Awaitable, Callable

from holdfast.events.context import ToolSpec
from holdfast.large_work import beside_if_large
from holdfast.models.choice import ModelChoice
from holdfast.models.credentials import Credentials
from holdfast.models.errors import ModelNotUsable, SecretsUnknown
from holdfast.models.model import Model, ModelRequest
from holdfast.session import compaction
from holdfast.session.history import anchor, conversation, size_of, system_message
from holdfast.session.tokens import tokens_in
from holdfast.turns.errors import ModelUnusableHere
from holdfast.turns.held_session import HeldSession

log = logging.getLogger(__name__)

Models = Callable[[ModelChoice], Awaitable[Model]]
"""Opens the model that a session chose; raises `ModelNotUsable`."""

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
    ) -> None:
        self.models = models
        self.window: int | None = None
        """The window of the session's model; None until `measure` found it."""
        self.prompt_tokens = 0
        """About how many tokens stand before the conversation."""
        self._session = session
        self._credentials = credentials
        self._stream = stream
        self._compaction_model = compaction_model
        self._fallback_model = fallback_model
        self._prompt = session.prompts.current
        self._offered: tuple[ToolSpec, ...] = ()
        self._measured: object = None
        """The parts of the state from which the window and the size of the prompt were found."""

    async def measure(self) -> None:
        """Find the window, the prompt and its size again, if they may have changed and the session is at work."""
        session, state = self._session, self._session.state
        busy = state.turn is not None or state.compaction is not None or bool(session.inbox)
        if not busy or session.is_partial:
            return
        recall = state.compactions > 0
        now = (state.model_now(), state.provider, state.prompt, state.tools, state.client_tools, recall)
        if now == self._measured:
            return
        self.window = (await self.model()).info.window
        self._prompt = await session.prompts.get(state.prompt)
        self._offered = self._prompt.offered(state.tools, state.client_tools, recall=recall)
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

    async def request(self) -> ModelRequest:
        """The request of the session's next call."""
        state = self._session.state
        without_tools = state.turn is not None and state.turn.last_step
        history, seed = tuple(state.history), state.seed
        return ModelRequest(
            messages=(
                system_message(state, self._prompt),
                *await beside_if_large(size_of(history), lambda: conversation(history, seed)),
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
        )

    def _headers(self) -> dict[str, str]:
        turn = self._session.state.turn
        if self._credentials is None or turn is None:
            return {}
        return self._credentials.headers(self._session.key, turn.message_ids)
