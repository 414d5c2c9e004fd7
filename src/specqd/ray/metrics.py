"""Merges the metrics of several replicas for Prometheus. Each sample names its replica."""

from collections.abc import Iterable, Iterator
from copy import copy

from prometheus_client.core import Metric
from prometheus_client.registry import Collector


def labelled(families: Iterable[Metric], replica: str) -> list[Metric]:
    """Returns copies of the families with the label `replica` on each sample."""
    named = []
    for family in families:
        family = copy(family)
        family.samples = [
            sample._replace(labels={**sample.labels, "replica": replica})
            for sample in family.samples
        ]
        named.append(family)
    return named


class Merged(Collector):
    """Collects the families of all replicas, each family once."""

    def __init__(self, replicas: Iterable[list[Metric]]) -> None:
        self._replicas = list(replicas)

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for family in (family for families in self._replicas for family in families):
            if family.name in merged:
                merged[family.name].samples += family.samples
            else:
                merged[family.name] = copy(family)
                merged[family.name].samples = list(family.samples)
        yield from merged.values()
