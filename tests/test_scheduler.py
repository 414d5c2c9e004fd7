"""The scheduler by itself: fakes count pages, and nothing is computed."""

from types import SimpleNamespace
from typing import Any

import pytest

from specqd._native import PAGE_POSITIONS
from specqd.engine.scheduler import Scheduler
from specqd.errors import MachineError
from support.engines import fake_generation as generation


class Pages:
    """The part of a model that the scheduler uses: the pages that each sequence holds, and states
    of recurrent layers, which none holds yet."""

    def __init__(self, total: int, *, cached: int = 0, states: int = 1000) -> None:
        self.total_pages = total
        self.cache = self
        self.cached = cached  # positions of every prompt
        self.free_states = states
        self.shares = True  # a prompt with a sequence that is forked from it
        self.adopted: list[Any] = []
        self.forks: list[tuple[Any, Any]] = []
        self.held: dict[int, int] = {}

    @property
    def free_pages(self) -> int:
        return self.total_pages - sum(self.held.values())

    def missing_pages(self, sequence: Any, end: int) -> int:
        return max(-(-end // PAGE_POSITIONS) - self.held.get(sequence.key, 0), 0)

    def lacks_states(self, sequence: Any) -> bool:
        return True

    def adopt_prefix(self, sequence: Any) -> int:
        self.adopted.append(sequence)
        return self.cached

    def fork(self, sequence: Any, other: Any) -> None:
        self.forks.append((sequence, other))

    def context(self, sequence: Any) -> Any:
        is_forked = any(other is sequence for _, other in self.forks)
        return SimpleNamespace(length=10 if is_forked and self.shares else 0)

    def publish(self, sequence: Any) -> None:
        pass

    def release(self, sequence: Any) -> None:
        self.held.pop(sequence.key, None)


def scheduler(pages: Pages, max_batch: int = 8) -> Scheduler:
    level: Any = SimpleNamespace(model=pages, release=pages.release)
    return Scheduler(level, max_batch)


def test_no_more_sequences_are_admitted_than_there_are_states() -> None:
    queue = scheduler(Pages(100, states=2))
    first, second, third = (generation(10) for _ in range(3))
    queue.waiting.extend([first, second, third])
    queue.admit()
    assert queue.running == [first, second]
    queue.remove(first)
    queue.admit()
    assert queue.running == [second, third]


def test_samples_wait_for_their_leaders_prompt_and_share_it() -> None:
    pages = Pages(100)
    queue = scheduler(pages)
    leader = generation(10, n=2)
    follower, other = generation(10, n=2, leader=leader), generation(10)
    queue.waiting.extend([leader, follower, other])
    queue.admit()
    assert (queue.running, list(queue.waiting)) == ([leader, other], [follower])
    leader.sequence.tokens.append(2)
    queue.admit()
    assert queue.running == [leader, other, follower]
    assert pages.forks == [(leader.sequence, follower.sequence)]
    assert pages.adopted == [leader.sequence, other.sequence]


def test_samples_that_cannot_share_their_leaders_pages_begin_with_cached_ones() -> None:
    """Recurrent states, or pages that left a window, may be past the prompt already."""
    pages = Pages(100, cached=64)
    pages.shares = False
    queue = scheduler(pages)
    leader = generation(70, n=2)
    follower = generation(70, n=2, leader=leader)
    queue.waiting.extend([leader, follower])
    queue.admit()
    leader.sequence.tokens.append(2)
    queue.admit()
    assert pages.adopted == [leader.sequence, follower.sequence]
    assert follower.cached_prompt_tokens == 64
    assert queue.cached_prompt_tokens == 64  # a prompt counts once


def test_samples_whose_leader_has_ended_begin_with_cached_pages() -> None:
    pages = Pages(100)
    queue = scheduler(pages)
    leader = generation(10, n=2)
    leader.finish_reason = "error"
    follower = generation(10, n=2, leader=leader)
    queue.waiting.append(follower)
    queue.admit()
    assert (queue.running, pages.forks, pages.adopted) == ([follower], [], [follower.sequence])


def test_a_sample_with_tokens_of_its_own_does_not_begin_as_its_leader() -> None:
    pages = Pages(100)
    queue = scheduler(pages)
    leader = generation(10, new=3, n=2)
    follower = generation(10, new=1, n=2, leader=leader)  # preempted before
    queue.waiting.extend([leader, follower])
    queue.admit()
    assert (pages.forks, pages.adopted) == ([], [leader.sequence, follower.sequence])


def test_cached_tokens_of_a_prompt_count_once() -> None:
    pages = Pages(8, cached=64)
    queue = scheduler(pages)
    assert queue.cached_prompt_tokens == 0
    first, second = generation(70), generation(70)
    queue.waiting.extend([first, second])
    queue.admit()
    assert queue.cached_prompt_tokens == 128
    pages.total_pages = 3
    queue.preempt()
    assert (queue.running, list(queue.waiting)) == ([first], [second])
    assert (queue.preemptions, first.preemptions, second.preemptions) == (1, 0, 1)
    pages.total_pages = 8
    queue.admit()
    assert queue.running == [first, second]
    assert (queue.cached_prompt_tokens, second.cached_prompt_tokens) == (128, 64)


def test_prompts_are_prefilled_whole_to_be_measured_or_scored() -> None:
    pages = Pages(100, cached=64)
    queue = scheduler(pages)
    queue.waiting.append(generation(70, prompt_logprobs=0))
    queue.admit()
    queue.reuses_prefixes = False
    queue.waiting.append(generation(70))
    queue.admit()
    assert (len(queue.running), pages.adopted, queue.cached_prompt_tokens) == (2, [], 0)


@pytest.mark.parametrize("n", [1, 2])
def test_a_round_needs_a_page_more_for_each_sample_that_may_copy_one(n: int) -> None:
    """Each prompt of 60 tokens needs two pages to write 64 more, of which it holds one."""
    pages = Pages(2 * (n > 1) + 4)
    queue = scheduler(pages)
    queue.running = [generation(60, n=n), generation(60, n=n)]
    pages.held = {each.sequence.key: 1 for each in queue.running}
    assert queue.has_pages(64)
    pages.total_pages -= 1
    assert not queue.has_pages(64)
    queue.preempt()
    assert (len(queue.running), len(queue.waiting)) == (1, 1)


def test_a_sequence_needs_no_page_for_more_tokens_than_it_may_write() -> None:
    pages = Pages(3)
    queue = scheduler(pages)
    pages.held[-1] = 2
    queue.running = [generation(60, new=2, most_tokens=4)]  # 64 tokens in all
    assert queue.has_pages(64)
    queue.running = [generation(60, new=2, most_tokens=5)]
    assert not queue.has_pages(64)


def test_a_sequence_is_admitted_where_two_pages_more_remain_for_all() -> None:
    pages = Pages(6)
    queue = scheduler(pages)
    first, second = generation(64), generation(64)
    queue.waiting.extend([first, second])
    queue.admit()
    assert queue.running == [first, second]
    pages = Pages(5)
    queue = scheduler(pages)
    queue.waiting.extend([first, second])
    queue.admit()
    assert (queue.running, list(queue.waiting)) == ([first], [second])


def test_the_oldest_runs_in_any_cache_and_the_batch_has_a_limit() -> None:
    pages = Pages(3)
    queue = scheduler(pages, max_batch=1)
    first, second = generation(500), generation(1)
    queue.waiting.extend([first, second])
    queue.admit()
    queue.preempt()
    assert queue.running == [first]
    queue.remove(first)
    pages.total_pages = 100
    queue.waiting.append(generation(1))
    queue.admit()
    assert queue.running == [second]


def test_it_is_idle_where_nothing_waits_or_runs() -> None:
    queue = scheduler(Pages(100))
    assert queue.is_idle
    queue.waiting.append(generation(1))
    assert not queue.is_idle
    queue.admit()
    assert not queue.is_idle
    queue.remove(queue.running[0])
    assert queue.is_idle
    queue.waiting.append(generation(1))
    queue.remove(queue.waiting[0])
    assert queue.is_idle


def test_the_smallest_cache_has_one_page_more_than_its_spare_ones() -> None:
    assert scheduler(Pages(3)).max_positions == PAGE_POSITIONS
    with pytest.raises(MachineError, match=rf"has 128 positions.* needs {3 * PAGE_POSITIONS}, "):
        scheduler(Pages(2))
