"""Layouts: one as an object at the edges, many as a struct of numpy arrays in the core."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SCHEDULES = ("none", "gpipe", "1f1b", "interleaved")
RECOMPUTES = ("none", "selective", "full")
SPLITS = ("even", "ends")
"""How layers go to the virtual stages: equally, or with embedding and loss counted as a layer."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How one training job is split over the devices. 1 means that an axis is off."""

    n_devices: int
    tp: int
    pp: int
    dp: int
    vpp: int
    """Model chunks per pipeline rank; 1 = no interleaving."""
    split: str
    """`even` or `ends`, see `SPLITS`."""
    mbs: int
    """Sequences per micro-batch and data-parallel rank."""
    gbs: int
    zero: int
    """0: nothing sharded over dp; 1: optimizer; 2: and gradients; 3: and weights."""
    sp: bool
    """Megatron sequence parallelism over the tp group."""
    schedule: str
    recompute: str
    recompute_layers: int
    """With `full`: layers recomputed per virtual stage; 0 with the other kinds."""
    stage_layers: tuple[int, ...]
    """Layers of each virtual stage in model order: stage j is chunk j // pp on rank j % pp."""
    cp: int = 1
    ep: int = 1
    etp: int = 1
    rank_order: str = "tp-cp-ep-dp-pp"

    @property
    def n_micro(self) -> int:
        """Micro-batches per step and pipeline."""
        return self.gbs // (self.mbs * self.dp)

    @property
    def dp_shard(self) -> int:
        """Size of the group over which ZeRO shards."""
        return self.dp * self.cp

    @property
    def recompute_modules(self) -> tuple[str, ...]:
        """Modules recomputed with `selective`."""
        return ("core_attn",) if self.recompute == "selective" else ()
