"""Names the replica in each sample of its metrics for Prometheus."""

from collections.abc import Iterable
from copy import copy

from prometheus_client.core import Metric


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
