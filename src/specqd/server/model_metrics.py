"""Metrics of a server with several models: their loads, and the metrics of all together."""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# Kind, name, help, attribute of LoadCounts.
_FAMILIES = (
    (GaugeMetricFamily, "specqd:model_loaded", "1 if the model is loaded, else 0.", "is_loaded"),
    (CounterMetricFamily, "specqd:model_loads", "Loads of the model.", "loads"),
    (CounterMetricFamily, "specqd:model_unloads", "Unloads of the model.", "unloads"),
    (
        CounterMetricFamily,
        "specqd:model_load_seconds",
        "Seconds that loads of the model took.",
        "load_seconds",
    ),
)


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """Whether a model is loaded, and its loads and unloads since the server's start."""

    model_name: str
    is_loaded: bool
    loads: int
    unloads: int
    load_seconds: float


def load_families(models: Sequence[LoadCounts]) -> list[Metric]:
    """Returns the metrics of loads, with a sample for each model."""
    families: list[Metric] = []
    for kind, name, text, attribute in _FAMILIES:
        family = kind(name, text, labels=["model_name"])
        for each in models:
            family.add_metric([each.model_name], float(getattr(each, attribute)))
        families.append(family)
    return families


class Merged(Collector):
    """Collects families from several sources, each family once, with the samples of all."""

    def __init__(self, sources: Iterable[list[Metric]]) -> None:
        self._sources = list(sources)

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for family in (family for families in self._sources for family in families):
            if family.name in merged:
                merged[family.name].samples += family.samples
            else:
                merged[family.name] = copy(family)
                merged[family.name].samples = list(family.samples)
        yield from merged.values()
