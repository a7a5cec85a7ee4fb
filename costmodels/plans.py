"""Layouts: one as an object at the edges, many as a struct of numpy arrays in the core."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.stages import BOTH_WAYS, FOLDED, LOOPED, SPLITS, rank_stages, stage_layers

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SCHEDULES = (
    "none",
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "zb-v",
    "dualpipe",
    "dualpipe-v",
)
ZERO_BUBBLE = SCHEDULES[4:]
"""Schedules that split the backward (`costmodels.zero_bubble`)."""
PLACEMENT_OF = {"zb-v": FOLDED, "dualpipe-v": FOLDED, "dualpipe": BOTH_WAYS}
"""Where virtual stages lie, by schedule; `LOOPED` with all others (`costmodels.stages`)."""
RECOMPUTES = ("none", "selective", "full")
RECOMPUTE_MODULES = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
)
"""Modules that `selective` may compute again, as Megatron-LM names them (`costmodels.recompute`).
A set of them is a number whose bit i stands for module i."""
CP_COMMS = ("", "p2p", "all-gather", "a2a")
"""How context-parallel ranks exchange keys and values; nothing at cp 1."""


def modules_code(names: Iterable[str]) -> int:
    """Return the number of a set of modules (`RECOMPUTE_MODULES`).

    >>> modules_code(["mlp", "layernorm"])
    20
    """
    return sum(1 << RECOMPUTE_MODULES.index(name) for name in set(names))


def modules_of(code: int) -> tuple[str, ...]:
    """Return the modules of a set in the order of `RECOMPUTE_MODULES`.

    >>> modules_of(20)
    ('layernorm', 'mlp')
    """
    return tuple(name for i, name in enumerate(RECOMPUTE_MODULES) if code >> i & 1)


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
    """`even`, `ends` or spelled out (`9-11-11-9`), see `costmodels.stages.SPLITS`."""
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
    """Layers of each virtual stage in model order: stage j is chunk j // pp on rank j % pp, with
    other schedules where `stages_of` says."""
    cp: int = 1
    ep: int = 1
    etp: int = 1
    rank_order: str = "tp-cp-ep-dp-pp"
    shard: int = 0
    """Ranks of one ZeRO group, neighbours in the data-parallel group; 0 means all of it. A
    smaller group is replicated dp / shard times (HSDP)."""
    cp_comm: str = ""
    """How the cp ranks exchange keys and values, see `CP_COMMS`; empty with cp 1."""
    recompute_modules: tuple[str, ...] = ()
    """Modules recomputed with `selective`, in the order of `RECOMPUTE_MODULES`; the attention core
    where none is named, and none with the other kinds."""

    def __post_init__(self) -> None:
        named = self.recompute_modules or RECOMPUTE_MODULES[:1]
        modules = modules_of(modules_code(named)) if self.recompute == "selective" else ()
        object.__setattr__(self, "recompute_modules", modules)

    @property
    def recompute_text(self) -> str:
        """The kind of recomputation; where it is not the attention core alone, the modules."""
        named = self.recompute_modules
        return self.recompute if named in ((), RECOMPUTE_MODULES[:1]) else "+".join(named)

    @property
    def n_micro(self) -> int:
        """Micro-batches per step and pipeline."""
        return self.gbs // (self.mbs * self.dp)

    @property
    def placement(self) -> int:
        """Where the virtual stages lie (`costmodels.stages`)."""
        return PLACEMENT_OF.get(self.schedule, LOOPED)

    @property
    def n_passes(self) -> int:
        """Micro-batches that each virtual stage of a rank runs: half of all in DualPipe."""
        return self.n_micro // 2 if self.placement == BOTH_WAYS else self.n_micro

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the virtual stages of a pipeline rank, in model order."""
        return rank_stages(rank, self.pp, len(self.stage_layers), self.placement)

    def chunks_of(self, rank: int) -> tuple[int, ...]:
        """Return the layers of each virtual stage of a pipeline rank."""
        return tuple(self.stage_layers[j] for j in self.stages_of(rank))

    def has_embedding(self, rank: int) -> bool:
        """Tell whether a pipeline rank holds the embedding."""
        return 0 in self.stages_of(rank)

    def has_head(self, rank: int) -> bool:
        """Tell whether a pipeline rank holds the head."""
        return len(self.stage_layers) - 1 in self.stages_of(rank)

    @property
    def dp_shard(self) -> int:
        """Size of the group over which ZeRO shards."""
        return self.shard or self.dp * self.cp


@dataclass(frozen=True, slots=True)
class ShapeTable:
    """The coupled axes of many layouts, one row a shape; every array is `(n_shapes,)`.

    A shape fixes tp, pp, dp, the virtual stages and how the layers go to them. The free axes
    (micro-batch, ZeRO, recompute, ...) are crossed with it in a `PlanTable`.
    """

    n_devices: int
    tp: Ints
    pp: Ints
    dp: Ints
    vpp: Ints
    split: Ints
    """Index into `splits`."""
    shard: Ints
    """Ranks of one ZeRO group; equal to dp cp unless the group is replicated."""
    cp: Ints
    ep: Ints
    etp: Ints
    cp_comm: Ints
    """Index into `CP_COMMS`."""
    placement: Ints
    """Where the virtual stages lie (`costmodels.stages`)."""
    splits: tuple[str, ...] = SPLITS

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def replicas(self) -> Ints:
        """Ranks that hold the same part of the dense layers: dp cp."""
        return self.dp * self.cp

    @property
    def stage_ranks(self) -> Ints:
        """Ranks of one pipeline stage: tp cp dp."""
        return self.tp * self.cp * self.dp

    def take(self, rows: NDArray[np.intp]) -> "ShapeTable":
        """Return the shapes at `rows`."""
        return ShapeTable(
            self.n_devices,
            self.tp[rows],
            self.pp[rows],
            self.dp[rows],
            self.vpp[rows],
            self.split[rows],
            self.shard[rows],
            self.cp[rows],
            self.ep[rows],
            self.etp[rows],
            self.cp_comm[rows],
            self.placement[rows],
            self.splits,
        )

    @staticmethod
    def unreplicated(
        n_devices: int, tp: Ints, pp: Ints, dp: Ints, vpp: Ints, split: Ints
    ) -> "ShapeTable":
        """Return dense, looped shapes without context parallelism, ZeRO over all of dp."""
        one, looped = np.ones_like(dp), np.full_like(dp, LOOPED)
        return ShapeTable(n_devices, tp, pp, dp, vpp, split, dp, one, one, one, 0 * one, looped)

    @staticmethod
    def from_tuples(
        n_devices: int,
        rows: Sequence[tuple[int, int, int, int, int]],
        shard: Sequence[int] = (),
        splits: tuple[str, ...] = SPLITS,
        cp: Sequence[int] = (),
        ep: Sequence[int] = (),
        etp: Sequence[int] = (),
        cp_comm: Sequence[int] = (),
        placement: Sequence[int] = (),
    ) -> "ShapeTable":
        """Build a table from (tp, pp, dp, vpp, split) tuples.

        Where not given, `shard` is dp cp, `cp_comm` 0, `placement` looped and the others are 1.
        """
        block = np.array(rows, dtype=np.int32).reshape(len(rows), 5)
        tp, pp, dp, vpp, split = (np.ascontiguousarray(block[:, i]) for i in range(5))

        def column(values: Sequence[int], default: Ints) -> Ints:
            return np.array(values, dtype=np.int32) if len(values) else default

        one = np.ones_like(dp)
        degrees = (column(cp, one), column(ep, one), column(etp, one))
        groups, kind = column(shard, dp * degrees[0]), column(cp_comm, 0 * dp)
        at = column(placement, np.full_like(dp, LOOPED))
        return ShapeTable(n_devices, tp, pp, dp, vpp, split, groups, *degrees, kind, at, splits)


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Many layouts as a struct of arrays; every array is `(n,)` and indexes into `shapes`."""

    shapes: ShapeTable
    gbs: int
    shape: Ints
    """Row of `shapes`."""
    mbs: Ints
    zero: Ints
    sp: Ints
    """0 or 1."""
    recompute: Ints
    """Index into `RECOMPUTES`."""
    recompute_layers: Ints
    schedule: Ints
    """Index into `SCHEDULES`."""
    recompute_modules: Ints
    """Sets of `RECOMPUTE_MODULES` as numbers; 0 unless selective."""

    def __len__(self) -> int:
        return len(self.shape)

    @property
    def n_micro(self) -> Ints:
        """Micro-batches per step and pipeline."""
        return (self.gbs // (self.mbs * self.shapes.dp[self.shape])).astype(np.int32)

    def take(self, rows: NDArray[np.intp] | slice) -> "PlanTable":
        """Return the plans at `rows`, over the same shapes."""
        columns = (
            self.shape,
            self.mbs,
            self.zero,
            self.sp,
            self.recompute,
            self.recompute_layers,
            self.schedule,
            self.recompute_modules,
        )
        return PlanTable(self.shapes, self.gbs, *(column[rows] for column in columns))

    def layout(self, row: int, layers: int) -> Layout:
        """Return plan `row` as an object, for a model of `layers` layers."""
        k = int(self.shape[row])
        shapes = self.shapes
        pp, vpp, split = int(shapes.pp[k]), int(shapes.vpp[k]), shapes.splits[int(shapes.split[k])]
        dp, cp, shard = int(shapes.dp[k]), int(shapes.cp[k]), int(shapes.shard[k])
        return Layout(
            n_devices=shapes.n_devices,
            tp=int(shapes.tp[k]),
            pp=pp,
            dp=dp,
            vpp=vpp,
            split=split,
            mbs=int(self.mbs[row]),
            gbs=self.gbs,
            zero=int(self.zero[row]),
            sp=bool(self.sp[row]),
            schedule=SCHEDULES[int(self.schedule[row])],
            recompute=RECOMPUTES[int(self.recompute[row])],
            recompute_layers=int(self.recompute_layers[row]),
            stage_layers=stage_layers(layers, pp, vpp, split),
            cp=cp,
            ep=int(shapes.ep[k]),
            etp=int(shapes.etp[k]),
            shard=0 if shard == dp * cp else shard,
            cp_comm=CP_COMMS[int(shapes.cp_comm[k])],
            recompute_modules=modules_of(int(self.recompute_modules[row])),
        )

    @staticmethod
    def from_layouts(layouts: Iterable[Layout]) -> "PlanTable":
        """Build a table from layouts of one job on one number of devices."""
        rows = list(layouts)
        named = dict.fromkeys(x.split for x in rows if x.split not in SPLITS)
        splits = (*SPLITS, *named)
        shapes = ShapeTable.from_tuples(
            rows[0].n_devices,
            [(x.tp, x.pp, x.dp, x.vpp, splits.index(x.split)) for x in rows],
            [x.dp_shard for x in rows],
            splits,
            [x.cp for x in rows],
            [x.ep for x in rows],
            [x.etp for x in rows],
            [CP_COMMS.index(x.cp_comm) for x in rows],
            [x.placement for x in rows],
        )

        def column(values: Iterable[int]) -> Ints:
            return np.fromiter(values, dtype=np.int32, count=len(rows))

        return PlanTable(
            shapes,
            rows[0].gbs,
            np.arange(len(rows), dtype=np.int32),
            column(x.mbs for x in rows),
            column(x.zero for x in rows),
            column(int(x.sp) for x in rows),
            column(RECOMPUTES.index(x.recompute) for x in rows),
            column(x.recompute_layers for x in rows),
            column(SCHEDULES.index(x.schedule) for x in rows),
            column(modules_code(x.recompute_modules) for x in rows),
        )


@dataclass(frozen=True, slots=True)
class PlanBlock:
    """The product of batches with ZeRO stages and recompute options, as broadcastable columns.

    A batch is a shape with a micro-batch, sp and a schedule. What depends on few axes is computed
    on those alone: `(1, 1, n_batches)` columns of the batch, `(n_zero, 1, 1)` of ZeRO,
    `(n_options, n_batches)` of recompute. The whole is
    `(n_zero, n_options, n_batches)`.
    """

    shapes: ShapeTable
    gbs: int
    shape: Ints
    mbs: Ints
    zero: Ints
    sp: Ints
    recompute: Ints
    recompute_layers: Ints
    schedule: Ints
    recompute_modules: Ints

    @property
    def n_micro(self) -> Ints:
        """Micro-batches per step and pipeline."""
        return (self.gbs // (self.mbs * self.shapes.dp[self.shape])).astype(np.int32)

    @property
    def size(self) -> tuple[int, int, int]:
        """ZeRO stages, recompute options and batches."""
        return len(self.zero), len(self.recompute), self.shape.shape[-1]

    def rows(self, cells: NDArray[np.intp]) -> PlanTable:
        """Return the plans at flat positions of the whole as a table."""
        zero, option, batch = np.unravel_index(cells, self.size)
        return PlanTable(
            self.shapes,
            self.gbs,
            self.shape[0, 0, batch],
            self.mbs[0, 0, batch],
            self.zero[zero, 0, 0],
            self.sp[0, 0, batch],
            self.recompute[option, batch],
            self.recompute_layers[option, batch],
            self.schedule[0, 0, batch],
            self.recompute_modules[option, batch],
        )
