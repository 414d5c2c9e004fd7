"""A conversation as the prompt of its next answer. Knows no terminal and no model."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from specqd.errors import RequestError

if TYPE_CHECKING:
    from specqd.text.tokenizer import Tokenizer


class Conversation(Protocol):
    """Grows by a message and its answer."""

    @property
    def system(self) -> str | None: ...
    @system.setter
    def system(self, text: str | None) -> None: ...
    def prompt(self, message: str) -> list[int]:
        """Token ids of the conversation with this message. Changes nothing."""

    def record(self, message: str, answer: str) -> None:
        """Appends the message and its answer."""

    def clear(self) -> None:
        """Drops all messages but the system message."""


@dataclass(slots=True)
class Dialogue:
    """Messages that the model's chat template turns into a prompt."""

    tokenizer: "Tokenizer"
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def prompt(self, message: str) -> list[int]:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return self.tokenizer.chat([*first, *self.messages, {"role": "user", "content": message}])

    def record(self, message: str, answer: str) -> None:
        self.messages.append({"role": "user", "content": message})
        self.messages.append({"role": "assistant", "content": answer})

    def clear(self) -> None:
        self.messages.clear()


@dataclass(slots=True)
class RunningText:
    """One text, for a model without a chat template. Each message is appended on a line of its own,
    and the model continues the text; an empty message continues it as it is."""

    tokenizer: "Tokenizer"
    text: str = ""

    @property
    def system(self) -> str | None:
        return None

    @system.setter
    def system(self, text: str | None) -> None:
        if text is not None:
            raise RequestError("this model has no chat template, and so no system message")

    def prompt(self, message: str) -> list[int]:
        text = self._with(message)
        if not text:
            raise RequestError("there is no text to continue yet; write its beginning")
        return self.tokenizer.encode(text)

    def record(self, message: str, answer: str) -> None:
        self.text = self._with(message) + answer

    def clear(self) -> None:
        self.text = ""

    def _with(self, message: str) -> str:
        begins_line = not message or not self.text or self.text.endswith("\n")
        return self.text + ("" if begins_line else "\n") + message


def converse(tokenizer: "Tokenizer", system: str | None = None) -> Conversation:
    """A `Dialogue` where the tokenizer has a chat template, else a `RunningText`."""
    conversation: Conversation = (
        Dialogue(tokenizer) if tokenizer.has_chat_template else RunningText(tokenizer)
    )
    conversation.system = system
    return conversation
