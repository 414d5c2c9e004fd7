"""The model of a conversation, which another one may replace."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from specqd.errors import RequestError, SpecqdError

if TYPE_CHECKING:
    from specqd.llm import LLM


class ChatModel:
    """A loaded model. find: fetches a model and raises SpecqdError if there is none of that name.
    open_llm: loads it."""

    def __init__(
        self,
        name: str | None,
        find: Callable[[str], object],
        open_llm: Callable[[str | None], "LLM"],
    ) -> None:
        self.name = name  # None: the shipped model
        self._find = find
        self._open = open_llm
        self.llm = open_llm(name)

    @property
    def shown(self) -> str:
        from specqd.hub import model_name

        return model_name(self.llm.directory)

    def replace(self, name: str) -> None:
        """Loads another model in the memory of this one. If that fails, this one is loaded again.

        Raises SpecqdError; also for Ctrl-C.
        """
        before, is_closed = self.shown, False
        try:
            self._find(name)
            is_closed = True
            self.llm.close()
            self.llm = self._open(name)
        except (SpecqdError, KeyboardInterrupt) as error:
            if is_closed:
                self.llm = self._open(self.name)
            raise RequestError(f"{str(error) or 'stopped'} ({before} stays)") from error
        self.name = name
