"""The errors that a user can cause. Each message says what is wrong, where, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class _Message(Exception):  # noqa: N818 (of errors and of warnings)
    """A message of one line.

    parameter: what it is about, if that is a parameter. The message begins with this name, and with
        the value, if there is one. A front end may put its own name of the parameter there.
    """

    def __init__(
        self, message: str, parameter: str | None = None, value: str | None = None
    ) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value

    def __str__(self) -> str:
        if self.parameter is None:
            return super().__str__()
        value = "" if self.value is None else f" {self.value}"
        return f"{self.parameter}{value}: {super().__str__()}"


class SpecqdError(_Message):
    """A problem that the user can solve; its message is one line."""


class ConfigError(SpecqdError):
    """A model's configuration is missing, malformed or unsupported."""


class TensorError(SpecqdError):
    """A weights file is missing, truncated, hostile or does not match the configuration."""


class TokenizerError(SpecqdError):
    """A tokenizer or chat template is missing, unreadable or does not match the model."""


class ChatTemplateError(TokenizerError):
    """A chat template fails on a request. `problem` is the message without the file's name."""

    def __init__(self, origin: str, problem: str) -> None:
        super().__init__(f"{origin}: {problem}")
        self.origin = origin
        self.problem = problem


class HubError(SpecqdError):
    """A model could not be found or fetched."""


class RequestError(SpecqdError):
    """A request cannot be run."""


class FieldError(RequestError):
    """A field of a request is wrong; the message begins with the field's name."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem, field)
        self.field = field


class LoadedFormatError(RequestError):
    """A draft needs weights in another format than they are loaded in."""


class TooLongError(RequestError):
    """A prompt leaves no room for a new token in the context or the cache."""


class MachineError(SpecqdError):
    """This machine lacks memory, or the requested threads or instruction set."""


class ShortMemoryError(MachineError):
    """The packed weights of models do not fit into the memory that is left."""


class CacheFullError(MachineError):
    """The KV cache has no free page for these positions."""


class SpecqdWarning(_Message, UserWarning):
    """A fact that a user should know, without need to act. The message is one line."""


class RoundingWarning(SpecqdWarning):
    """A file's weights are not BF16, so that output is exact for the rounded ones."""


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Adds the file to an error of the system that names none, such as the one of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def shown(value: object) -> str:
    """An untrusted value as one line of at most 120 printable characters."""
    try:
        text = ascii(value)
    except RecursionError:
        return "a deeply nested value"
    except ValueError:
        return "a value with a very large number"
    return text if len(text) <= 120 else f"{text[:117]}..."
