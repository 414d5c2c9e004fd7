"""A conversation as the prompt of its next answer. Knows no terminal and no model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from specqd.errors import RequestError

if TYPE_CHECKING:
    from specqd.text.tokenizer import Tokenizer


class Turn(NamedTuple):
    """A message and its answer."""

    asked: str
    answer: str


@dataclass(slots=True)
class Conversation:
    """The turns so far. The chat template of the tokenizer turns them into a prompt.

    Without a template they are one text: each message is appended on a line of its own, and the
    model continues the text; an empty message continues it as it is.
    """

    tokenizer: "Tokenizer"
    turns: list[Turn] = field(default_factory=list)
    dropped: int = 0  # the oldest turns, which prompts leave out
    _system: str | None = None
    _thinks: bool | None = None
    _variables: dict[str, Any] = field(default_factory=dict)  # of the template

    @property
    def system(self) -> str | None:
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        if text is not None and not self.tokenizer.has_chat_template:
            raise RequestError("this model has no chat template, and so no system message")
        self._system = text

    def think(self, thinks: bool) -> None:
        """Lets the model reason before its next answers, or not."""
        self._variables = thinking(self.tokenizer, thinks)
        self._thinks = thinks

    def read_by(self, tokenizer: "Tokenizer") -> None:
        """Makes the next prompts for another model, of all turns again."""
        from specqd.text.reasoning import switched

        self.tokenizer = tokenizer
        self.dropped = 0
        self._variables = {} if self._thinks is None else switched(tokenizer, self._thinks)

    def without_effect(self) -> list[str]:
        """What was set, but does not change the prompts of this model."""
        has_system = self._system is None or self.tokenizer.has_chat_template
        has_switch = self._thinks is None or bool(self._variables)
        found = [] if has_system else ["the system message"]
        return found if has_switch else [*found, "the switch of the reasoning"]

    def prompt(self, message: str) -> list[int]:
        """Token ids of the conversation with this message. Changes nothing."""
        kept = self.turns[self.dropped :]
        if self.tokenizer.has_chat_template:
            messages = [*self._messages(kept), {"role": "user", "content": message}]
            return self.tokenizer.chat(messages, **self._variables)
        text = _appended(_text(kept), message)
        if not text:
            raise RequestError("there is no text to continue yet; write its beginning")
        return self.tokenizer.encode(text)

    def record(self, message: str, answer: str) -> None:
        """Appends the message and its answer."""
        self.turns.append(Turn(message, answer))

    def take_back(self) -> Turn | None:
        """Removes the last turn and returns it; None if there is none."""
        if not self.turns:
            return None
        self.dropped = min(self.dropped, len(self.turns) - 1)
        return self.turns.pop()

    def clear(self) -> None:
        """Drops all turns. The system message stays."""
        self.turns.clear()
        self.dropped = 0

    def saved(self) -> dict[str, Any]:
        """The conversation as JSON."""
        return {"messages": self._messages(self.turns)}

    def shown(self) -> str:
        """The conversation as readable text."""
        if not self.tokenizer.has_chat_template:
            return _text(self.turns)
        messages = self._messages(self.turns)
        return "\n".join(f"## {each['role']}\n\n{each['content'].strip()}\n" for each in messages)

    def _messages(self, turns: Sequence[Turn]) -> list[dict[str, str]]:
        messages = [] if self._system is None else [{"role": "system", "content": self._system}]
        for turn in turns:
            messages.append({"role": "user", "content": turn.asked})
            messages.append({"role": "assistant", "content": turn.answer})
        return messages


def _text(turns: Sequence[Turn]) -> str:
    text = ""
    for turn in turns:
        text = _appended(text, turn.asked) + turn.answer
    return text


def _appended(text: str, message: str) -> str:
    begins_line = not message or not text or text.endswith("\n")
    return text + ("" if begins_line else "\n") + message


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


def prompt_with_room(
    conversation: Conversation, message: str, context: int, max_tokens: int | None
) -> tuple[list[int], list[Turn]]:
    """The prompt of a message, with room for its answer, and the oldest turns that are dropped for
    it.

    Turns are dropped if less than `max_tokens` and less than a quarter of the context is left. Then
    half of the context becomes free: the prompt begins differently, so that all of it must be read
    again, and this must not happen at every message.
    """
    prompt = conversation.prompt(message)
    dropped: list[Turn] = []
    if context - len(prompt) >= min(max_tokens or context, context // 4):
        return prompt, dropped
    while conversation.dropped < len(conversation.turns) and context - len(prompt) < context // 2:
        dropped.append(conversation.turns[conversation.dropped])
        conversation.dropped += 1
        prompt = conversation.prompt(message)
    return prompt, dropped
