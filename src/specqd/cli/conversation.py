"""A conversation as the prompt of its next answer. Knows no terminal and no model."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from specqd.errors import RequestError

if TYPE_CHECKING:
    from specqd.text.tokenizer import Tokenizer


class Conversation(Protocol):
    """Messages and answers so far; grows by a message and its answer."""

    @property
    def system(self) -> str | None: ...
    @system.setter
    def system(self, text: str | None) -> None: ...
    def think(self, thinks: bool) -> None:
        """Lets the model reason before its next answers, or not."""

    def prompt(self, message: str) -> list[int]:
        """Token ids of the conversation with this message. Changes nothing."""

    def record(self, message: str, answer: str) -> None:
        """Appends the message and its answer."""

    def take_back(self) -> tuple[str, str] | None:
        """Removes the last message and its answer, and returns them; None if there is none."""

    def saved(self) -> dict[str, Any]:
        """The conversation as JSON."""

    def shown(self) -> str:
        """The conversation as readable text."""

    def clear(self) -> None:
        """Drops all messages but the system message."""


@dataclass(slots=True)
class Dialogue:
    """Messages that the model's chat template turns into a prompt."""

    tokenizer: "Tokenizer"
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)  # of the template

    def think(self, thinks: bool) -> None:
        self.variables = thinking(self.tokenizer, thinks)

    def prompt(self, message: str) -> list[int]:
        messages = [*self._all(), {"role": "user", "content": message}]
        return self.tokenizer.chat(messages, **self.variables)

    def _all(self) -> list[dict[str, str]]:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, *self.messages]

    def record(self, message: str, answer: str) -> None:
        self.messages.append({"role": "user", "content": message})
        self.messages.append({"role": "assistant", "content": answer})

    def take_back(self) -> tuple[str, str] | None:
        if not self.messages:
            return None
        *self.messages, asked, answer = self.messages
        return asked["content"], answer["content"]

    def saved(self) -> dict[str, Any]:
        return {"messages": self._all()}

    def shown(self) -> str:
        parts = (f"## {each['role']}\n\n{each['content'].strip()}\n" for each in self._all())
        return "\n".join(parts)

    def clear(self) -> None:
        self.messages.clear()


@dataclass(slots=True)
class RunningText:
    """One text, for a model without a chat template. Each message is appended on a line of its own,
    and the model continues the text; an empty message continues it as it is."""

    tokenizer: "Tokenizer"
    text: str = ""
    # Each message, and where in the text it and its answer begin.
    turns: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def system(self) -> str | None:
        return None

    @system.setter
    def system(self, text: str | None) -> None:
        if text is not None:
            raise RequestError("this model has no chat template, and so no system message")

    def think(self, thinks: bool) -> None:
        thinking(self.tokenizer, thinks)

    def prompt(self, message: str) -> list[int]:
        text = self._with(message)
        if not text:
            raise RequestError("there is no text to continue yet; write its beginning")
        return self.tokenizer.encode(text)

    def record(self, message: str, answer: str) -> None:
        asked, before = self._with(message), len(self.text)
        self.turns.append((message, before, len(asked)))
        self.text = asked + answer

    def take_back(self) -> tuple[str, str] | None:
        if not self.turns:
            return None
        message, before, begins = self.turns.pop()
        answer, self.text = self.text[begins:], self.text[:before]
        return message, answer

    def saved(self) -> dict[str, Any]:
        return {"text": self.text}

    def shown(self) -> str:
        return self.text

    def clear(self) -> None:
        self.text = ""
        self.turns.clear()

    def _with(self, message: str) -> str:
        begins_line = not message or not self.text or self.text.endswith("\n")
        return self.text + ("" if begins_line else "\n") + message


def thinking(tokenizer: "Tokenizer", thinks: bool | None) -> dict[str, Any]:
    """Variables of the template for --think and --no-think; raises RequestError if the template
    does not know them."""
    if thinks is None:
        return {}
    from specqd.text.reasoning import SWITCHES, switched

    variables = switched(tokenizer, thinks)
    if not variables:
        raise RequestError(
            f"the chat template of this model has no {' or '.join(SWITCHES)}, so --think and "
            "--no-think have no effect; leave them out"
        )
    return variables


def converse(tokenizer: "Tokenizer", system: str | None = None) -> Conversation:
    """A `Dialogue` where the tokenizer has a chat template, else a `RunningText`."""
    conversation: Conversation = (
        Dialogue(tokenizer) if tokenizer.has_chat_template else RunningText(tokenizer)
    )
    conversation.system = system
    return conversation
