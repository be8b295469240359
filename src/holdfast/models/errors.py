"""How choosing a model fails, before any call is made. (A call that fails is a `ModelError`, in `model.py`.)

ValueError
└── ModelNotUsable           the caller is wrong: fix the name or the settings, then start again
    ├── UnknownModel         no provider of ours answers to this name
    ├── ModelKeyMissing      the provider wants a key and none is set
    ├── BadBaseUrl           the base URL is not one that can be called
    ├── BadHeader            a header, or a key, can't be sent or must not be
    ├── ProviderUnsupported  a session's own provider speaks what we don't
    └── SecretsUnknown       a session needs what its client gave to another process, or to one that is gone
"""

from typing import Final


class ModelNotUsable(ValueError):
    """The model can't be opened as it was asked for. The message says what to change."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UnknownModel(ModelNotUsable):
    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class ModelKeyMissing(ModelNotUsable):
    def __init__(self, name: str, variable: str) -> None:
        super().__init__(
            f"The model {name} needs a key: set {variable}. "
            f"A local server needs none, only --model-base-url; the model `demo` needs nothing at all."
        )
        self.name = name
        self.variable = variable


class BadBaseUrl(ModelNotUsable):
    def __init__(self, message: str) -> None:
        super().__init__(f"The model's base URL can't be used: {message}.")


class BadHeader(ModelNotUsable):
    """It never holds the value."""

    def __init__(self, message: str) -> None:
        super().__init__(f"The call to the model can't be made: {message}.")


class ProviderUnsupported(ModelNotUsable):
    code: Final = "provider_unsupported"


class SecretsUnknown(ModelNotUsable):
    """Another process may run the session, or this one once a client gives them again."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not known to this process: the session goes on when a client resumes it with it.")
