"""How choosing a model fails, before any call is made. (A call that fails is a `ModelError`, in `model.py`.)

ValueError
└── ModelNotUsable       the caller is wrong: fix the name or the settings, then start again
    ├── UnknownModel     no provider of ours answers to this name
    ├── ModelKeyMissing  the provider wants a key and none is set
    └── BadBaseUrl       the base URL is not one that can be called
"""


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
