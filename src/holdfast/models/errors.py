"""Errors of opening a model, before any call is made. (A call that fails raises `ModelError`, in `model.py`;
`chat_failure.py` has the codes.)

ValueError
└── ModelNotUsable           the caller is wrong: fix the name or the settings, then start again
    ├── UnknownModel         no provider has a model of this name
    ├── ModelKeyMissing      the provider needs a key and none is set
    ├── BadBaseUrl           the base URL can't be called
    ├── BadHeader            a header, or a key, can't be sent or must not be
    └── SecretsUnknown       a session needs secrets that its client gave to another process, or to one that has ended
"""


class ModelNotUsable(ValueError):
    """The model can't be opened with this name and these settings. The message says what to change."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UnknownModel(ModelNotUsable):
    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class ModelKeyMissing(ModelNotUsable):
    def __init__(self, name: str, variable: str, *, of_another_provider: bool = False) -> None:
        """`of_another_provider`: a key or a base URL is configured, but not for this model."""
        advice = (
            "HOLDFAST_MODEL_API_KEY and HOLDFAST_MODEL_BASE_URL are only for models of the same provider as "
            "HOLDFAST_MODEL."
            if of_another_provider
            else "A local server needs no key, only --model-base-url; the model `demo` needs neither."
        )
        super().__init__(f"The model {name} needs a key: set {variable}. {advice}")
        self.name = name
        self.variable = variable


class BadBaseUrl(ModelNotUsable):
    def __init__(self, message: str) -> None:
        super().__init__(f"The model's base URL can't be used: {message}.")


class BadHeader(ModelNotUsable):
    """A header can't be sent. The message never holds its value."""

    def __init__(self, message: str) -> None:
        super().__init__(f"The call to the model can't be made: {message}.")


class SecretsUnknown(ModelNotUsable):
    """This process lacks the session's secrets: another process may have them, or a client gives them again."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is not known to this process: resume the session with a client that gives it, and the session "
            f"continues."
        )
