"""Routes a request to the replica whose cache holds the longest prefix of its prompt.

Skips a replica while it has clearly more open requests than another one. Each front estimates the
contents of the caches from the requests that it sent itself. A wrong estimate costs a prefill, but
never changes an answer.
"""

import json
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

PAGE_CHARACTERS = 256  # about the 64 tokens of a page of the KV cache
_MOST_PAGES = 64  # per prompt
_MOST_KNOWN = 1 << 16  # pages of all replicas
_MOST_AHEAD = 4  # a better cache is worth this many more open requests
_BEFORE = ("system", "instructions", "tools")  # precede the messages in a chat's text


def pages_of(body: Mapping[str, Any], client: str) -> tuple[bytes, ...]:
    """Returns hashes of the full pages of a prompt's text. Each hash covers all text before it too.

    Requests with different API keys or salts share no pages, as in the KV cache.
    """
    digest = blake2b(repr((client, body.get("cache_salt"))).encode(), digest_size=8)
    text = "".join(_parts(body))
    pages = []
    for start in range(0, len(text) - PAGE_CHARACTERS + 1, PAGE_CHARACTERS)[:_MOST_PAGES]:
        digest.update(text[start : start + PAGE_CHARACTERS].encode(errors="surrogatepass"))
        pages.append(digest.digest())
    return tuple(pages)


def _parts(body: Mapping[str, Any]) -> Iterator[str]:
    for name in _BEFORE:
        if body.get(name):
            yield json.dumps(body[name])
    prompt = next((body[each] for each in ("prompt", "messages", "input") if each in body), "")
    for part in prompt if isinstance(prompt, list) else [prompt]:
        yield part if isinstance(part, str) else f"{json.dumps(part)} "


class PrefixRouter(RequestRouter):
    """A request router for Ray Serve. A request's first argument must be a `ForwardedRequest`."""

    def initialize_state(self, **_: Any) -> None:
        self._holders: OrderedDict[bytes, set[ReplicaID]] = OrderedDict()  # by page, newest last
        self._open: defaultdict[ReplicaID, set[str]] = defaultdict(set)  # ids of requests

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Returns groups of replicas in order of preference.

        Serve takes the replica with the shortest queue from the first group with room.
        """
        replicas = list(candidate_replicas)
        if pending_request is None or not replicas:
            return [replicas]
        pending_request.routing_context.should_backoff = True  # if all are full
        fewest = min(len(self._open[each.replica_id]) for each in replicas)
        held = {
            each.replica_id: self._pages_held(each.replica_id, pending_request)
            for each in replicas
            if len(self._open[each.replica_id]) <= fewest + _MOST_AHEAD
        }
        most = max(held.values())
        best = [each for each in replicas if held.get(each.replica_id) == most]
        return [best, replicas] if most else [replicas]

    def _pages_held(self, replica: ReplicaID, request: PendingRequest) -> int:
        pages = request.args[0].pages
        return next(
            (i for i, page in enumerate(pages) if replica not in self._holders.get(page, ())),
            len(pages),
        )

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        self._open[replica_id].add(pending_request.metadata.internal_request_id)
        for page in pending_request.args[0].pages:
            self._holders.setdefault(page, set()).add(replica_id)
            self._holders.move_to_end(page)
        while len(self._holders) > _MOST_KNOWN:
            self._holders.popitem(last=False)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._open.get(replica_id, set()).discard(internal_request_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        living = {each.replica_id for each in replicas}
        for gone in self._open.keys() - living:
            del self._open[gone]
            for holders in self._holders.values():
                holders.discard(gone)
