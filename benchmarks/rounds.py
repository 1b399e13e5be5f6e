"""Rounds: the sides of a measurement take turns, each on a fresh database, and are compared within a round."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

from benchmarks.figures import Figure, Figures
from benchmarks.site import Host, Sample, Site

Side = Callable[[Site], Sample]


def alternate(hosts: Sequence[Host], sides: Mapping[str, Side], rounds: int) -> dict[str, Figures]:
    """Run each side on each host once a round, in alternating order. By name of the host."""
    return alternate_by_host(hosts, lambda _: sides, rounds)


def alternate_by_host(
    hosts: Sequence[Host], sides_of: Callable[[Host], Mapping[str, Side]], rounds: int
) -> dict[str, Figures]:
    """The same where not every host has the same sides."""
    turns = [(host, name, side) for host in hosts for name, side in sides_of(host).items()]
    samples: dict[tuple[str, str], list[Sample]] = {(host.name, name): [] for host, name, _ in turns}
    for number in range(rounds):
        for host, name, side in turns if number % 2 == 0 else reversed(turns):
            with host.fresh() as site:
                gc.collect()
                samples[host.name, name].append(side(site))
    found: dict[str, Figures] = {host.name: {} for host in hosts}
    for (host_name, name), taken in samples.items():
        found[host_name][name] = _by_figure(taken)
    return found


def _by_figure(samples: Sequence[Sample]) -> dict[str, Figure]:
    return {name: Figure([sample[name] for sample in samples]) for name in samples[0]}
