"""The errors a user can cause. Each message says what, where, and what to do."""


class SpecqdError(Exception):
    """A problem that the user can mend; its message is one line."""


class ConfigError(SpecqdError):
    """A model's configuration is missing, malformed or unsupported."""


class TensorError(SpecqdError):
    """A weights file is missing, truncated, hostile or does not fit the configuration."""


class TokenizerError(SpecqdError):
    """A tokenizer or chat template is missing, unreadable or does not match the model."""


class ChatTemplateError(TokenizerError):
    """A chat template fails at a request. `problem` says how, without the name of its file."""

    def __init__(self, origin: str, problem: str) -> None:
        super().__init__(f"{origin}: {problem}")
        self.origin = origin
        self.problem = problem


class HubError(SpecqdError):
    """A model could not be found or fetched."""


class RequestError(SpecqdError):
    """A request asks for something that cannot be done."""


class FieldError(RequestError):
    """A field of a request is at fault; the message begins with its name."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class TooLongError(RequestError):
    """A prompt, or it and the tokens asked for, are more than the context or the cache holds."""


class MachineError(SpecqdError):
    """This machine lacks what was asked for: memory, threads, an instruction set."""


class CacheFullError(MachineError):
    """The KV cache has no page left for these positions."""


class SpecqdWarning(UserWarning):
    """Something that a user should know and need not mend; its message is one line."""


def shown(value: object) -> str:
    """A value that came from a file, fit for one line of a terminal."""
    try:
        text = ascii(value)
    except RecursionError:
        return "a deeply nested value"
    except ValueError:
        return "a value with a very large number"
    return text if len(text) <= 120 else f"{text[:117]}..."
