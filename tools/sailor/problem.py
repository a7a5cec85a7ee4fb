"""One search: a model, the devices that may be used, and what is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tools.sailor.profiles import BYTES_PER_VALUE, Data, End, Profile
from tools.sailor.step import RUNTIME_BYTES, STATE_BYTES, ring_s

Floats = NDArray[np.float64]
MOST_TP = 4
"""Devices of a node."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices of one part in zones of one region, which the search takes for one place."""

    part: str
    zones: tuple[tuple[str, int], ...]
    """Zones and their devices."""

    @property
    def n_devices(self) -> int:
        """Of all zones."""
        return sum(n for _, n in self.zones)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for: the least of one figure within a limit on the other."""

    objective: str = "time"
    """`time` or `cost`."""
    most_s: float = float("inf")
    most_cost: float = float("inf")


def region_of(zone: str) -> str:
    """Return the region of a zone: `us-central1` of `us-central1-a`."""
    return zone.rsplit("-", 1)[0]


def pools_of(devices: Mapping[tuple[str, str], int]) -> tuple[Pool, ...]:
    """Return the pools of devices by part and zone, in their order."""
    groups: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for (part, zone), n in devices.items():
        groups.setdefault((part, region_of(zone)), []).append((zone, n))
    return tuple(Pool(part, tuple(zones)) for (part, _), zones in groups.items())


@dataclass(frozen=True, slots=True)
class Kind:
    """How a stage runs: on one pool, or on two at once (each replica on one of them)."""

    ends: tuple[tuple[int, int], ...]
    """Pool and tensor parallelism, one or two."""

    @property
    def is_mixed(self) -> bool:
        """Whether its replicas lie in two pools."""
        return len(self.ends) > 1


@dataclass(frozen=True)
class Problem:
    """The tables of a search with one micro-batch."""

    data: Data
    profile: Profile
    pools: tuple[Pool, ...]
    mbs: int

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Ways to run a stage: every part's tensor parallelisms, then pairs of two pools."""
        own = [
            [(k, t) for t in self.profile.tps(pool.part, self.mbs) if t <= MOST_TP]
            for k, pool in enumerate(self.pools)
        ]
        alone = [Kind((x,)) for ends in own for x in ends]
        pairs = [
            Kind((a, b))
            for i in range(len(own))
            for j in range(i + 1, len(own))
            for a, b in product(own[i], own[j])
        ]
        return (*alone, *pairs)

    @cached_property
    def time_of(self) -> Floats:
        """Seconds of layers `start` to `end` by kind, `(n_kinds, n + 1, n + 1)`."""
        n = self.profile.n_layers
        result = np.zeros((len(self.kinds), n + 1, n + 1))
        for i, kind in enumerate(self.kinds):
            for pool, tp in kind.ends:
                layers = self.profile.layer_s[self.pools[pool].part, tp, self.mbs]
                sums = np.concatenate([[0.0], np.cumsum(layers)])
                result[i] = np.maximum(result[i], sums[None, :] - sums[:, None])
        return result

    @cached_property
    def held_most(self) -> NDArray[np.int64]:
        """Stages from this to the last that memory allows, by kind, start and end."""
        n = self.profile.n_layers
        result = np.full((len(self.kinds), n + 1, n + 1), n, dtype=np.int64)
        for i, kind in enumerate(self.kinds):
            for pool, tp in kind.ends:
                memory = self.data.parts.memory_bytes[self.pools[pool].part]
                params = np.concatenate([[0.0], np.cumsum(self.profile.params[tp])])
                kept = np.concatenate([[0.0], np.cumsum(self.profile.kept[tp])])
                room = memory - RUNTIME_BYTES[tp > 1]
                room = room - STATE_BYTES * (params[None, :] - params[:, None])
                each = BYTES_PER_VALUE * self.mbs * (kept[None, :] - kept[:, None])
                with np.errstate(divide="ignore", invalid="ignore"):
                    most = np.where(each > 0, np.floor(room / each), n)
                most = np.where(room < 0, 0, np.clip(most, 0, n))
                result[i] = np.minimum(result[i], most.astype(np.int64))
        return result

    def message_s(self, size_bytes: float) -> Floats:
        """Return the seconds of a message from kind to kind, at least, `(n_kinds, n_kinds)`.

        The fastest pair of zones of each two pools; of mixed kinds the slowest pair of pools.
        """
        links = self.data.links
        ends = sorted({x for kind in self.kinds for x in kind.ends})
        times: dict[tuple[tuple[int, int], tuple[int, int]], float] = {}
        for (a, s), (b, r) in product(ends, ends):
            one, other = self.pools[a], self.pools[b]
            times[(a, s), (b, r)] = min(
                float(links.message_s(np.array(size_bytes), (x, one.part, s), (y, other.part, r)))
                for (x, _), (y, _) in product(one.zones, other.zones)
            )

        def between(one: Kind, other: Kind) -> float:
            if one.is_mixed and other.is_mixed:  # at least those of equal places
                return max(times[a, b] for a, b in zip(one.ends, other.ends, strict=True))
            return max(times[a, b] for a, b in product(one.ends, other.ends))

        return np.array([[between(a, b) for b in self.kinds] for a in self.kinds])

    def sync_s(self, n_replicas: int) -> Floats:
        """Return the ring of layers `start` to `end` by kind, at least, `(n_kinds, n+1, n+1)`."""
        n = self.profile.n_layers
        result = np.zeros((len(self.kinds), n + 1, n + 1))
        if n_replicas == 1:
            return result
        params = np.concatenate([[0.0], np.cumsum(self.profile.params[1])])
        weights = BYTES_PER_VALUE * np.maximum(0.0, params[None, :] - params[:, None])
        sizes, places = np.unique(weights, return_inverse=True)
        known: dict[tuple[object, ...], Floats] = {}
        for i, kind in enumerate(self.kinds):
            least = min(tp for _, tp in kind.ends)
            edges = self._edges(kind)
            if (least, edges) not in known:
                each = [ring_s(sizes / least, n_replicas, self.data.links, x) for x in edges]
                known[least, edges] = np.min(each, axis=0)
            result[i] = known[least, edges][places].reshape(n + 1, n + 1)
        return result

    def _edges(self, kind: Kind) -> tuple[tuple[End, End], ...]:
        """Return the edges of which a ring of a kind has one: pairs of zones."""
        pools = [self.pools[k] for k, _ in kind.ends]
        a, b = pools[0], pools[-1]
        there = [((x, a.part, 1), (y, b.part, 1)) for (x, _), (y, _) in product(a.zones, b.zones)]
        return (*there, *((y, x) for x, y in there if kind.is_mixed))

    def update_s(self) -> Floats:
        """Return the optimizer's seconds by kind, `(n_kinds,)`."""
        return np.array(
            [
                max(
                    float(self.profile.update_s[self.pools[k].part, tp, self.mbs].min())
                    for k, tp in kind.ends
                )
                for kind in self.kinds
            ]
        )
