"""Decides which sequences run: admission, preemption, and the cache pages that they need.

Knows the lengths of sequences; knows nothing of proposals, logits or text.
"""

from collections import deque

from specqd import _native
from specqd._native import Level
from specqd.engine.generation import Generation
from specqd.errors import MachineError
from specqd.model.model import Model

# Positions past the last token that a round may write: no proposal is longer than a page.
_ROUND_POSITIONS = _native.PAGE_POSITIONS
# Admission needs pages for more than one round, or the sequence would soon be preempted.
_ADMISSION_POSITIONS = 2 * _native.PAGE_POSITIONS
_SPARE_PAGES = 2  # of the cache, which no single sequence may rely on


class Scheduler:
    """The sequences that wait, in order, and those that run, the oldest first.

    A sequence is admitted when the cache has pages for its prompt and some more tokens. If a round
    might not find pages for all, the newest sequences are preempted: they go back to the head of
    the queue and are prefilled again later. No round preempts the oldest, so every sequence ends.
    None of this changes a bit of the output.
    """

    def __init__(self, level: Level, max_batch: int) -> None:
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self.preemptions = 0
        self.cached_prompt_tokens = 0  # tokens of admitted prompts that other requests had cached
        self.reuses_prefixes = True  # of prompts; a measurement of prefill turns this off
        self.max_positions = _longest_sequence(level.model.cache.total_pages)
        self._level = level
        self._model: Model = level.model
        self._max_batch = max_batch

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.running

    def preempt(self) -> None:
        """Preempts the newest until the cache has all pages that a round may need."""
        while len(self.running) > 1 and not self.has_pages(_ROUND_POSITIONS):
            self._preempt_newest()

    def make_room(self, positions: int) -> None:
        """Preempts the newest, and if need be all, until a forward between two rounds finds pages
        for one more sequence of so many positions. Preempts none if there can never be so many."""
        cache, pages = self._model.cache, -(-positions // _native.PAGE_POSITIONS)
        lacks_state = cache.has_states and not cache.free_states
        while self.running and (cache.free_pages < pages <= cache.total_pages or lacks_state):
            self._preempt_newest()
            lacks_state = cache.has_states and not cache.free_states

    def _preempt_newest(self) -> None:
        generation = self.running.pop()
        generation.sequence.is_preempted = True
        self._release(generation)
        self.waiting.appendleft(generation)
        generation.preemptions += 1
        self.preemptions += 1

    def admit(self) -> list[Generation]:
        """Starts sequences while the batch has room and the cache has pages for all; returns
        them."""
        first = len(self.running)
        followers: list[Generation] = []
        while self.waiting and len(self.running) < self._max_batch:
            generation = self.waiting.popleft()
            leader = generation.leader
            if leader is not None and leader.count == 0 and leader.finish_reason is None:
                followers.append(generation)  # shares the leader's prompt once that is prefilled
                continue
            cached = self._share(generation)
            self.running.append(generation)
            is_alone = len(self.running) == 1  # then it fits: `submit` checked its length
            if not is_alone and not self.has_pages(_ADMISSION_POSITIONS):
                self.running.pop()
                self._model.release(generation.sequence)
                self.waiting.appendleft(generation)
                break
            generation.sequence.is_preempted = False
            if not generation.preemptions:
                self._count_cached(generation, cached)
        self.waiting.extendleft(reversed(followers))
        return self.running[first:]

    def share_again(self, generation: Generation) -> bool:
        """Lets a sequence of whose prompt nothing is read yet start from pages that were published
        since its admission; returns whether there are any."""
        is_begun = generation.prompt_read > generation.cached_prompt_tokens
        if is_begun or generation.leader is not None or generation.preemptions:
            return False
        before = generation.cached_prompt_tokens
        self._model.release(generation.sequence)
        self._count_cached(generation, self._share(generation))
        return generation.cached_prompt_tokens > before

    def has_pages(self, ahead: int) -> bool:
        """Whether the cache has pages for `ahead` more positions of each running sequence, and, for
        recurrent layers, states."""
        model, missing = self._model, 0
        for generation in self.running:
            tokens = generation.sequence.tokens
            end = len(tokens) + min(ahead, generation.most_tokens - generation.count)
            # Samples share their prompt's last page until they write to it: each may need a copy.
            missing += model.missing_pages(generation.sequence, end) + (generation.params.n > 1)
        lacking = sum(model.lacks_states(generation.sequence) for generation in self.running)
        return missing <= model.cache.free_pages and lacking <= model.cache.free_states

    def remove(self, generation: Generation) -> None:
        """Drops a sequence that has ended."""
        if generation in self.running:
            self.running.remove(generation)
            self._release(generation)
        elif generation in self.waiting:
            self.waiting.remove(generation)

    def _count_cached(self, generation: Generation, cached: int) -> None:
        if generation.leader is None:  # further samples do not count as prompts either
            self.cached_prompt_tokens += cached - generation.cached_prompt_tokens
        generation.cached_prompt_tokens = generation.prompt_read = cached

    def _share(self, generation: Generation) -> int:
        """Lets a sequence start from cached pages; returns the number of positions that another
        request had cached."""
        leader, model = generation.leader, self._model
        generation.sequence.reuses_prefixes = self.reuses_prefixes  # for its drafters
        if leader is not None and leader in self.running and generation.count == 0:
            model.fork(leader.sequence, generation.sequence)
            # Nothing is shared where recurrent states, or windows, are past the prompt already.
            if model.context(generation.sequence).length > 0:
                return 0
        if self.reuses_prefixes and generation.is_prompt_scored:
            return model.adopt_prefix(generation.sequence)
        return 0

    def _release(self, generation: Generation) -> None:
        """Frees the sequence's pages; they stay cached for prompts with the same beginning."""
        self._model.publish(generation.sequence)
        self._level.release(generation.sequence)


def _longest_sequence(pages: int) -> int:
    """Positions of one sequence that a cache of so many pages can hold."""
    if pages <= _SPARE_PAGES:
        least = (_SPARE_PAGES + 1) * _native.PAGE_POSITIONS
        raise MachineError(
            f"the KV cache has {pages * _native.PAGE_POSITIONS} positions, too few for any text; "
            f"it needs {least}, and the memory for them",
            "cache_positions",
        )
    return (pages - _SPARE_PAGES) * _native.PAGE_POSITIONS
