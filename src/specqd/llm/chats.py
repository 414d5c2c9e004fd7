"""The prompt of a chat, and how its answers are read. Knows templates, but no models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specqd.errors import FieldError, shown
from specqd.llm.inputs import Messages, is_sampling
from specqd.llm.replies import Reply
from specqd.llm.results import Completion, Result
from specqd.text.messages import read_messages
from specqd.text.parts import PartReader
from specqd.text.reasoning import Reasoning, answer_begun, reasoning_of
from specqd.text.tokenizer import Tokenizer
from specqd.text.tool_calls import CallForm, call_form


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation as one model reads it."""

    prompt: list[int]
    is_answer: bool  # False: the new text continues that of the last message
    _tokenizer: Tokenizer
    _reasoning: Reasoning | None
    _form: CallForm | None  # of calls; None: neither tools nor calls
    _names: tuple[str, ...]  # of the tools

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        messages: object,
        chat_template_kwargs: object,
        template_variables: Mapping[str, Any],
    ) -> "Chat":
        """The last two arguments hold variables of the template, among them `tools`, and
        `continue_final_message`. Raises RequestError for messages or variables that the template
        does not take."""
        variables = _variables(chat_template_kwargs, template_variables)
        names = _names_of(variables.get("tools"))
        asked, answer = messages_of(messages), None
        if variables.pop("continue_final_message", False):
            asked, answer = _answer_split_off(asked)
            variables.pop("add_generation_prompt", None)
        form = call_form(tokenizer) if names or any(map(_has_call, asked)) else None
        if form is None:
            text = tokenizer.render_chat(asked, **variables)
        else:
            text = form.rendered(tokenizer, asked, variables.pop("tools", None), variables)
        if answer is not None:
            text = answer_begun(tokenizer, text, answer)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        reasoning = reasoning_of(tokenizer, prompt)
        if answer is not None and reasoning is not None and not reasoning.is_open:
            reasoning = None  # it would come before what the answer begins with
        return cls(prompt, not answer, tokenizer, reasoning, form, names)

    def replied(self, result: Result) -> Result:
        """The result with the parts of its answers."""
        answers = [replace(each, reply=self._reply(each)) for each in result.completions]
        return replace(result, completions=answers)

    def _reply(self, completion: Completion) -> Reply:
        has_hidden = self._form is not None and self._form.has_hidden_tags
        has_hidden |= self._reasoning is not None and self._reasoning.has_special_marks
        text = self._whole_text(completion) if has_hidden else completion.text
        reader = PartReader(self._reasoning, self._form, self._names)
        return Reply.of(reader.read(text, is_last=True), f"{self.prompt}{text}")

    def _whole_text(self, completion: Completion) -> str:
        """The text with the special tokens that mark its parts, but without what ended it."""
        tokens = completion.tokens
        if completion.finish_reason == "stop" and tokens[-1:] and self._ends(tokens[-1]):
            tokens = tokens[:-1]
        before = () if self.is_answer else self.prompt
        whole = self._tokenizer.decode_after(before, tokens, skip_special_tokens=False)
        shown = self._tokenizer.decode_after(before, tokens)
        if shown.startswith(completion.text):  # what follows it is a string that ends answers
            whole = whole.removesuffix(shown[len(completion.text) :])
        return whole

    def _ends(self, token: int) -> bool:
        return token in self._tokenizer.special_ids


def messages_of(messages: object) -> Messages:
    """The messages of a chat, read as the server reads them; raises FieldError if they are not a
    list, one has no content, or has other parts than texts."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        example = '[{"role": "user", "content": "Hello"}]'
        raise FieldError("messages", f"{shown(messages)} is not a list of messages like {example}")
    read = read_messages(messages)
    for at, message in enumerate(read):
        if message.get("content") is None and not message.get("tool_calls"):
            raise FieldError(f"messages[{at}].content", "is missing; a text is needed")
    return read


def _answer_split_off(messages: Messages) -> tuple[Messages, str]:
    """The messages before the last one, and that one's text, which the answer continues."""
    *before, last = messages or [{}]
    is_text = isinstance(last.get("content"), str)
    if not is_text or last.get("role") != "assistant" or not before:
        problem = "the last message is not a text of the assistant's after other messages; add one"
        raise FieldError("continue_final_message", problem)
    return before, last["content"]


def _has_call(message: Mapping[str, Any]) -> bool:
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def _names_of(tools: object) -> tuple[str, ...]:
    """The names of tools in OpenAI's form; raises FieldError for another one."""
    if tools is None:
        return ()
    names = []
    for tool in tools if isinstance(tools, Sequence) else [tools]:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            example = '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
            raise FieldError("tools", f"{shown(tool)} is not a function like {example}")
        names.append(name)
    return tuple(names)


def _variables(given: object, words: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of a chat template: those of vLLM's argument, and keyword arguments.

    Raises FieldError if a keyword is a sampling parameter, because it would have no effect.
    """
    if given is not None and not isinstance(given, Mapping):
        raise FieldError("chat_template_kwargs", f"{shown(given)} is not a dict of variables")
    for name in words:
        if is_sampling(name):
            raise FieldError(name, f"goes into SamplingParams({name}=...), the second argument")
    variables = {**(given or {}), **words}
    if reserved := {"messages", "self"} & set(variables):
        raise FieldError("chat_template_kwargs", f"{min(reserved)} cannot be set; leave it out")
    return variables
