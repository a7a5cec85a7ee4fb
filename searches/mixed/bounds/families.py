"""Families of plans of several kinds of pipelines, by what the exchange between them takes.

Every layer is held by as many groups as a plan has kinds, which pass their gradients round a ring.
Pools fall into sites: between any two of them the fastest link is the slowest that a ring over
all pools has to take. Then there are three cases. One kind lies in one site and another in the
other: every layer crosses that link. Some lie in one site and none in the other: layers cross it
that the others hold in the other site. All are over both: they send messages over the link.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem
from searches.mixed.fills import Way

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

THIN = 0.02
"""Of a step: where all gradients take longer over the link between sites, sites are told apart."""


@dataclass(frozen=True, slots=True)
class Family:
    """Plans with so many kinds of pipelines."""

    n_kinds: int
    spanned: tuple[frozenset[int], ...] = ()
    """Sites, by their pools, in which no kind lies alone."""
    crossing_s: tuple[float, ...] = ()
    """What gradients of the first 0, 1, ... layers take over the link between sites at least, in
    one direction: of all layers, or of those in a spanned site. Empty where none need cross it."""

    @property
    def passes(self) -> float:
        """How often a ring of the groups passes the gradients on: 2 (U - 1)/U."""
        return 2.0 * (self.n_kinds - 1) / self.n_kinds

    @property
    def exchange_s(self) -> Floats:
        """What the exchange of the first 0, 1, ... layers takes where they cross the link."""
        return self.passes * np.array(self.crossing_s)

    def crosses(self, pools: Sequence[int]) -> Bools:
        """Return whether the layers that lie in pools cross the link, `(n_pools,)`."""
        if not self.crossing_s:
            return np.zeros(len(pools), dtype=np.bool_)
        return np.array([not self.spanned or any(x in y for y in self.spanned) for x in pools])

    def holds(self, devices: Floats) -> Bools:
        """Return whether pipelines with some devices of each pool belong to such plans, `(n,)`."""
        result = np.ones(len(devices), dtype=np.bool_)
        for site in self.spanned:
            others = [i for i in range(devices.shape[1]) if i not in site]
            result &= (devices[:, others] > 0).any(axis=1)
        return result


def families_of(
    problem: MixedProblem, ways: Sequence[Way], most_kinds: int, step_s: float
) -> list[Family]:
    """Return families that hold every plan of several kinds; no step is shorter than `step_s`."""
    counts = range(most_kinds, 1, -1)
    sites, rate = sites_of(problem)
    crossing_s = _least_bytes(ways) / rate if len(sites) > 1 else np.zeros(1)
    if crossing_s[-1] <= THIN * step_s:
        return [Family(n) for n in counts]
    crossing = tuple(crossing_s.tolist())
    cases = [((), crossing), (tuple(sites), ()), *(((x,), crossing) for x in sites)]
    return [Family(n, *case) for n in counts for case in cases]


def sites_of(problem: MixedProblem) -> tuple[list[frozenset[int]], float]:
    """Return the sites of the pools in use, and the fastest rate between two of them, bytes/s."""
    pools = [i for i, x in enumerate(problem.pools) if x.n_devices > 0]
    sites = [frozenset([i]) for i in pools]
    rate = float("inf")
    links = sorted(
        ((x.bytes_per_s, pair) for pair, x in problem.links.items()), key=lambda x: (-x[0], x[1])
    )
    for bytes_per_s, (a, b) in links:
        joined = [x for x in sites if a in x or b in x]
        if len(joined) < 2:
            continue
        if len(sites) == 2:
            rate = bytes_per_s
            break
        sites = [x for x in sites if x not in joined] + [joined[0] | joined[1]]
    return sorted(sites, key=min), rate


def _least_bytes(ways: Sequence[Way]) -> Floats:
    """Return the gradients of the first 0, 1, ... layers of one model copy at least, bytes."""
    each = [np.diff(x.tables[0].grad_bytes.layers) * x.n_devices for x in ways]
    return np.concatenate([[0.0], np.cumsum(np.min(each, axis=0))])
