"""What layers cost on each pool, as prefix sums over layers: all that mixed plans are priced by.

Tables may come of the cost model (`mixed.layer_tables`) or of profiles that somebody measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TableKey = tuple[int, int, int, int, int, str]
"""Pool, tp, cp, ep, micro-batch, recomputation."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A figure of stages: the sum over their layers, and what the ends of the model add."""

    layers: Floats
    """Sum over the first 0, 1, ... layers of the model, `(1 + n_layers,)`."""
    embedding: float = 0.0
    head: float = 0.0

    def of(self, start: int, end: int) -> float:
        """Return the figure of the stage that holds layers `start` to `end` (exclusive)."""
        value = float(self.layers[end] - self.layers[start])
        value += self.embedding * (start == 0)
        return value + self.head * (end == len(self.layers) - 1)

    def scaled(self, factor: float) -> "Prefix":
        """Return the figure times a factor."""
        return Prefix(self.layers * factor, self.embedding * factor, self.head * factor)

    def plus(self, other: "Prefix") -> "Prefix":
        """Return the sum of two figures."""
        return Prefix(
            self.layers + other.layers, self.embedding + other.embedding, self.head + other.head
        )


@dataclass(frozen=True, slots=True)
class StageTable:
    """Layers on one pool, run in one way: tensor and context parallel, micro-batch, recomputation.

    Seconds are of one micro-batch, bytes on one device of the stage.
    """

    pool: int
    tp: int
    cp: int
    mbs: int
    recompute: str
    forward_s: Prefix
    backward_s: Prefix
    """With recomputation."""
    whole_bytes: Prefix
    """Weights, gradients and all else that every pipeline holds."""
    shared_bytes: Prefix
    """Optimizer states of one pipeline, which ZeRO 1 divides by the pipelines of a kind."""
    activation_bytes: Prefix
    """What one micro-batch in flight keeps."""
    working_bytes: Prefix
    """Of a stage whatever it holds (in the ends alone: `layers` are 0): temporaries, buffers."""
    fixed_bytes: float
    """Of every device: the same, whatever the stage."""
    grad_bytes: Prefix
    """Gradients on the wire of one pass."""
    weight_bytes: Prefix
    """Weights on the wire of one gather."""
    update_s: Prefix
    """Optimizer of one pipeline, which ZeRO 1 divides by the pipelines of a kind."""
    clear_s: Prefix
    """Setting gradients to zero, which nothing divides."""
    message_bytes: float
    """What a device of the stage sends to the next stage for one micro-batch."""
    ep: int = 1
    pipelines_multiple: int = 1
    """The pipelines of a kind are a multiple of this: expert-parallel groups span as many."""
    tied_bytes: float = 0.0
    """Gradients of a matrix that the first and the last stage both hold."""

    @property
    def n_devices(self) -> int:
        """Devices of one stage of one pipeline."""
        return self.tp * self.cp

    @property
    def key(self) -> TableKey:
        """What tells tables apart."""
        return self.pool, self.tp, self.cp, self.ep, self.mbs, self.recompute


@dataclass(frozen=True, slots=True)
class Ring:
    """Data-parallel collectives of some ranks of one pool: seconds, and seconds a byte."""

    reduce_scatter: tuple[float, float]
    all_gather: tuple[float, float]
    all_reduce: tuple[float, float]


@dataclass(frozen=True, slots=True)
class MixedPool:
    """What of a pool mixed plans depend on."""

    name: str
    n_devices: int
    devices_per_node: int
    usable_bytes: float
    nic_bytes_per_s: float
    """One-way, a device's share when all of its node send."""
    rings: Mapping[tuple[int, int], Ring]
    """By the devices of a stage and its pipelines; without traffic where there is no entry."""
    inside_hop: tuple[float, float]
    """A message between stages of the pool: seconds, and seconds a byte."""
    price_per_device_s: float = 0.0
    """US dollars."""


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """The link between two pools."""

    bytes_per_s: float
    """Of all flows, one-way."""
    latency_s: float
    price_per_byte: float = 0.0


@dataclass(frozen=True, slots=True)
class Overlap:
    """Data-parallel traffic in pieces, beside the last backward and the first forward."""

    piece_bytes: float
    """Least size of a piece, bytes of gradients."""
    piece_bytes_per_rank: float
    """The same for each pipeline of a kind; the larger of the two counts."""
    slowdown: float
    """Growth of compute beside hidden traffic, as a share of that traffic."""


@dataclass(frozen=True)
class MixedProblem:
    """One job on several pools."""

    pools: tuple[MixedPool, ...]
    links: Mapping[tuple[int, int], LinkFacts]
    """By the places of two pools, the smaller first."""
    tables: tuple[StageTable, ...]
    n_layers: int
    global_batch: int
    zero: int = 1
    fixed_s: float = 0.0
    """Of every step."""
    overlap: Overlap | None = None
    """None: nothing runs beside compute."""
    straggler_factor: float = 1.0
    """On the pipeline: the slowest of many nodes decides."""

    def link(self, first: int, second: int) -> LinkFacts:
        """Return the link between two pools."""
        return self.links[min(first, second), max(first, second)]

    @cached_property
    def by_key(self) -> dict[TableKey, StageTable]:
        """The tables by pool, tp, cp, ep, micro-batch and recomputation."""
        return {x.key: x for x in self.tables}
