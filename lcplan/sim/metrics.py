"""Prometheus text: families of counters, gauges and histograms, in the form that prometheus_client writes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Labels = Mapping[str, str]


@dataclass(slots=True)
class Histogram:
    """Counts per bucket, the sum and the number of values."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    number: int = 0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, several times if it stands for several."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
        self.number += times


def family(name: str, kind: str, about: str, samples: Iterable[tuple[Labels, float]]) -> str:
    """Return a counter or gauge with its samples; a counter's name gets `_total`."""
    shown = f"{name}_total" if kind == "counter" else name
    lines = [f"# HELP {shown} {about}", f"# TYPE {shown} {kind}"]
    lines += [f"{shown}{labels_text(labels)} {number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def histogram(name: str, about: str, samples: Iterable[tuple[Labels, Histogram]]) -> str:
    """Return a histogram family."""
    lines = [f"# HELP {name} {about}", f"# TYPE {name} histogram"]
    for labels, values in samples:
        reached = 0
        for bound, count in zip((*values.bounds, float("inf")), values.counts, strict=True):
            reached += count
            edge = "+Inf" if bound == float("inf") else number(bound)
            lines.append(f"{name}_bucket{labels_text({**labels, 'le': edge})} {number(reached)}")
        lines.append(f"{name}_count{labels_text(labels)} {number(values.number)}")
        lines.append(f"{name}_sum{labels_text(labels)} {number(values.total)}")
    return "\n".join(lines) + "\n"


def labels_text(labels: Labels) -> str:
    """Return `{a="1",b="x"}` in alphabetical order, "" without labels."""
    inside = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
    return f"{{{inside}}}" if inside else ""


def number(value: float) -> str:
    """Return a number as prometheus_client prints it: always a float."""
    return repr(float(value))
