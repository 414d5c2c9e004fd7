"""What was said so far, as the prompt of the next answer. Knows no terminal and no model."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from specqd.errors import RequestError

if TYPE_CHECKING:
    from specqd.text.tokenizer import Tokenizer


class Conversation(Protocol):
    """Grows by what a user says and what the model answers."""

    @property
    def system(self) -> str | None: ...
    @system.setter
    def system(self, text: str | None) -> None: ...
    def prompt(self, said: str) -> list[int]:
        """The ids of all that was said, and of this; changes nothing."""

    def record(self, said: str, answer: str) -> None:
        """Takes both over, the answer as far as it came."""

    def clear(self) -> None:
        """Forgets what was said; the system message stays."""


@dataclass(slots=True)
class Dialogue:
    """Messages in turn, written out by the model's chat template."""

    tokenizer: "Tokenizer"
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def prompt(self, said: str) -> list[int]:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return self.tokenizer.chat([*first, *self.messages, {"role": "user", "content": said}])

    def record(self, said: str, answer: str) -> None:
        self.messages.append({"role": "user", "content": said})
        self.messages.append({"role": "assistant", "content": answer})

    def clear(self) -> None:
        self.messages.clear()


@dataclass(slots=True)
class RunningText:
    """One text, for a model without a chat template: what is said goes on a line of its own at its
    end, and the model continues it. Nothing said lets the model go on."""

    tokenizer: "Tokenizer"
    text: str = ""

    @property
    def system(self) -> str | None:
        return None

    @system.setter
    def system(self, text: str | None) -> None:
        if text is not None:
            raise RequestError("this model has no chat template, and so no system message")

    def prompt(self, said: str) -> list[int]:
        text = self._with(said)
        if not text:
            raise RequestError("there is no text to continue yet; write its beginning")
        return self.tokenizer.encode(text)

    def record(self, said: str, answer: str) -> None:
        self.text = self._with(said) + answer

    def clear(self) -> None:
        self.text = ""

    def _with(self, said: str) -> str:
        begins_line = not said or not self.text or self.text.endswith("\n")
        return self.text + ("" if begins_line else "\n") + said


def converse(tokenizer: "Tokenizer", system: str | None = None) -> Conversation:
    """A new conversation, of the kind that the model's tokenizer allows."""
    conversation: Conversation = (
        Dialogue(tokenizer) if tokenizer.has_chat_template else RunningText(tokenizer)
    )
    conversation.system = system
    return conversation
