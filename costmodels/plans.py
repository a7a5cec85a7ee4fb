"""Layouts: one as an object at the edges, many as a struct of numpy arrays in the core."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import (
    AXES,
    NO_SWITCHES,
    RANK_ORDERS,
    RECOMPUTE_MODULES,
    SCHEDULES,
    SwitchTable,
    Value,
    axis_names,
    modules_code,
    modules_of,
)
from costmodels.modes import ModeRows
from costmodels.schedule.stages import BOTH_WAYS, FOLDED, LOOPED, SPLITS, rank_stages, stage_layers

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ZERO_BUBBLE = SCHEDULES[4:]
"""Schedules that split the backward (`costmodels.schedule.zero_bubble`)."""
PLACEMENT_OF = {"zb-v": FOLDED, "dualpipe-v": FOLDED, "dualpipe": BOTH_WAYS}
"""Where virtual stages lie, by schedule; `LOOPED` with all others (`costmodels.schedule.stages`).
"""
PLACEMENTS = np.array([PLACEMENT_OF.get(name, LOOPED) for name in SCHEDULES], dtype=np.int32)
"""The same by position of the schedule."""
PIPELINES_INSIDE = 1
"""Position in `RANK_ORDERS`."""


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
    """`even`, `ends` or spelled out (`9-11-11-9`), see `costmodels.schedule.stages.SPLITS`."""
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
    rank_order: str = RANK_ORDERS[0]
    """One of `RANK_ORDERS`; an existing run may have another."""
    shard: int = 0
    """Ranks of one ZeRO group, neighbours in the data-parallel group; 0 means all of it. A
    smaller group is replicated dp / shard times (HSDP)."""
    cp_comm: str = ""
    """How the cp ranks exchange keys and values, see `CP_COMMS`; empty with cp 1."""
    optimizer_offload: bool = False
    """Master weights and optimizer states live, and are updated, on the host."""
    dp_overlap: bool = True
    """Data-parallel traffic runs beside compute as far as the stack overlaps it; off: nothing."""
    tp_overlap: bool = False
    """Tensor-parallel traffic in pieces beside the GEMMs that it feeds, as far as the stack has
    that (`StackProfile.tp_overlap_on`); needs sp."""
    recompute_modules: tuple[str, ...] = ()
    """Modules recomputed with `selective`, in the order of `RECOMPUTE_MODULES`; the attention core
    where none is named, and none with the other kinds."""
    activation_offload_layers: int = 0
    """Layers whose stored activations lie on the host between forward and backward: the first of
    all without recomputation, the recomputed ones (their inputs) with `full`; 0 is off."""
    hpz: int = 1
    """Ranks of one group that keeps a second copy of the weights between its members, neighbours
    in the data-parallel group (hpZ of ZeRO++, with ZeRO-3); 1 is off."""
    switches: tuple[tuple[str, Value], ...] = ()
    """Axes without a field of their own that are not off, with their values, in the order of
    `AXES`."""

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
    def activation_offload(self) -> bool:
        """Whether stored activations of some layers lie on the host."""
        return self.activation_offload_layers > 0

    def value(self, axis: str) -> Value:
        """Return the value of an axis by its name."""
        if AXES[axis].has_field:
            value: Value = getattr(self, axis)
            return value
        return dict(self.switches).get(axis, AXES[axis].off)

    @property
    def in_use(self) -> dict[str, Value]:
        """The axes that are not off, of those that are written only then, with their values."""
        names = (axis.name for axis in AXES.values() if not axis.is_always_written)
        return {name: self.value(name) for name in names if self.value(name) != AXES[name].off}

    def code(self, axis: str) -> int:
        """Return the number by which tables keep the value of an axis."""
        return AXES[axis].code(self.value(axis))

    @property
    def sp_code(self) -> int:
        """The value of the `sp` column of tables: 0 off, 1 on, 2 on with `tp_overlap`."""
        return SP_OVERLAPPED if self.sp and self.tp_overlap else int(self.sp)

    @property
    def n_micro(self) -> int:
        """Micro-batches per step and pipeline."""
        return self.gbs // (self.mbs * self.dp)

    @property
    def placement(self) -> int:
        """Where the virtual stages lie (`costmodels.schedule.stages`)."""
        return PLACEMENT_OF.get(self.schedule, LOOPED)

    @property
    def pipelines_inside(self) -> bool:
        """Whether whole pipelines lie side by side, data parallelism outermost."""
        return self.rank_order == RANK_ORDERS[PIPELINES_INSIDE] and self.pp > 1

    @property
    def stage_stride(self) -> int:
        """Ranks from one stage of a pipeline to the next."""
        return self.tp * self.cp * (1 if self.pipelines_inside else self.dp)

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


SWITCHES = {
    name: bool(axis.off)
    for name, axis in AXES.items()
    if axis.is_switch and axis.has_field and axis.table != "derived"
}
"""Switches with a field of `Layout`, with their usual position."""
SP_OVERLAPPED = 2
"""Value of the `sp` column of a plan with `tp_overlap`, which there is beside sp alone."""


def usual_schedule(pp: Ints, vpp: Ints) -> Ints:
    """Return the schedule that pp and vpp imply, an index: none, 1F1B or interleaved."""
    none, plain, chunks = (SCHEDULES.index(x) for x in ("none", "1f1b", "interleaved"))
    named = np.where(vpp > 1, chunks, plain)
    return np.where(pp > 1, named, none).astype(np.int32)


@dataclass(frozen=True, slots=True)
class ShapeTable:
    """The coupled axes of many layouts, one row a shape; every array is `(n_shapes,)`.

    A shape fixes tp, pp, dp, the virtual stages, how the layers go to them and the schedule. The
    free axes (micro-batch, ZeRO, recompute, ...) are crossed with it in a `PlanTable`.
    """

    n_devices: int
    tp: Ints
    pp: Ints
    dp: Ints
    vpp: Ints
    split: Ints
    """Index into `splits`."""
    cp: Ints
    cp_comm: Ints
    """Index into `CP_COMMS`."""
    ep: Ints
    etp: Ints
    schedule: Ints
    """Index into `SCHEDULES`."""
    rank_order: Ints
    """Index into `RANK_ORDERS`."""
    splits: tuple[str, ...] = SPLITS

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def replicas(self) -> Ints:
        """Ranks that hold the same part of the dense layers: dp cp."""
        return self.dp * self.cp

    @property
    def placement(self) -> Ints:
        """Where the virtual stages lie (`costmodels.schedule.stages`)."""
        return PLACEMENTS[self.schedule]

    @property
    def stage_ranks(self) -> Ints:
        """Ranks of one pipeline stage: tp cp dp."""
        return self.tp * self.cp * self.dp

    @property
    def pipelines_inside(self) -> Bools:
        """Whether whole pipelines lie side by side, data parallelism outermost."""
        return np.asarray((self.rank_order == PIPELINES_INSIDE) & (self.pp > 1))

    @property
    def stage_stride(self) -> Ints:
        """Ranks from one stage of a pipeline to the next: tp cp dp, or tp cp."""
        return np.where(self.pipelines_inside, self.tp * self.cp, self.stage_ranks)

    def take(self, rows: NDArray[np.intp]) -> "ShapeTable":
        """Return the shapes at `rows`."""
        return replace(self, **{name: getattr(self, name)[rows] for name in SHAPE_AXES})

    @staticmethod
    def of_columns(
        n_devices: int, columns: Mapping[str, Iterable[int]], splits: tuple[str, ...] = SPLITS
    ) -> "ShapeTable":
        """Build a table from the table values of some axes, each `(n_shapes,)`.

        An axis that is left out is off, the schedule the usual one; tp is always there.
        """
        block = {name: np.array(list(values), np.int32) for name, values in columns.items()}
        n = len(block["tp"])
        off = {
            name: np.full(n, AXES[name].code(AXES[name].off), dtype=np.int32)
            for name in SHAPE_AXES
            if name not in block
        }
        block |= off
        if "schedule" in off:
            block["schedule"] = usual_schedule(block["pp"], block["vpp"])
        return ShapeTable(n_devices, splits=splits, **block)


SHAPE_AXES = tuple(column.name for column in fields(ShapeTable) if column.name in AXES)
"""Columns of a `ShapeTable`, in the order in which shapes are sorted."""


@dataclass(frozen=True, slots=True)
class ShardingTable:
    """Ways in which the ranks of one part of a model share its states; arrays `(n,)`."""

    zero: Ints
    """0: nothing sharded; 1: optimizer; 2: and gradients; 3: and weights."""
    copies: Ints
    """Times that a ZeRO group is replicated (HSDP); 1 shards over all dp cp ranks."""
    optimizer_offload: Ints
    """1: optimizer states on the host."""
    dp_blocking: Ints
    """1: data-parallel traffic runs beside nothing, whatever the stack overlaps."""
    hpz: Ints
    """Ranks that keep a second copy of the weights between them (`Layout.hpz`); 1 is off."""

    def __len__(self) -> int:
        return len(self.zero)

    def take(self, rows: NDArray[np.intp] | list[int]) -> "ShardingTable":
        """Return the options at `rows`."""
        return ShardingTable(*(getattr(self, name)[rows] for name in ShardingTable.__slots__))

    def followed_by(self, other: "ShardingTable") -> "ShardingTable":
        """Return the options of both tables."""
        names = ShardingTable.__slots__
        both = (np.concatenate((getattr(self, x), getattr(other, x))) for x in names)
        return ShardingTable(*both)

    def with_blocking(self, value: int) -> "ShardingTable":
        """Return the options with traffic that all (1) or none (0) of them wait for."""
        return replace(self, dp_blocking=np.full_like(self.zero, value))

    @staticmethod
    def from_tuples(rows: Sequence[tuple[int, ...]]) -> "ShardingTable":
        """Build a table from tuples in the order of the columns; those left out are off.

        >>> ShardingTable.from_tuples([(0, 1), (1, 2, 1)]).optimizer_offload.tolist()
        [0, 1]
        """
        width = len(PLAIN_SHARDING)
        block = np.array([(*row, *PLAIN_SHARDING[len(row) :]) for row in rows], dtype=np.int32)
        return ShardingTable(*(np.ascontiguousarray(x) for x in block.reshape(-1, width).T))

    def shard(self, ranks: Ints) -> Ints:
        """Return the ranks of one ZeRO group among `ranks`, `(n, n_shapes)`.

        Where the copies do not divide the ranks no such group exists, and the number means
        nothing.
        """
        return np.asarray(np.maximum(1, ranks // self.copies[:, None]))

    def second_shard(self, ranks: Ints) -> Ints:
        """Return the ranks over which a weight is gathered again in a step, `(n, n_shapes)`.

        Those that share the second copy; without one, those of the ZeRO group.
        """
        group = np.minimum(self.hpz[:, None], ranks)
        return np.where(self.hpz[:, None] > 1, group, self.shard(ranks))


PLAIN_SHARDING = (0, 1, 0, 0, 1)
"""The columns of a `ShardingTable` where everything is off."""
WHOLE = ShardingTable.from_tuples([(zero, 1) for zero in range(4)])
"""The four stages of ZeRO over all data-parallel ranks."""


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Many layouts as a struct of arrays; every array is `(n,)` and indexes into `shapes`."""

    shapes: ShapeTable
    shardings: ShardingTable
    gbs: int
    shape: Ints
    """Row of `shapes`."""
    mbs: Ints
    sharding: Ints
    """Row of `shardings`."""
    sp: Ints
    """`Layout.sp_code`: 0, 1, or 2 with `tp_overlap`."""
    recompute: Ints
    """Index into `RECOMPUTES`."""
    recompute_layers: Ints
    recompute_modules: Ints
    """Sets of `RECOMPUTE_MODULES` as numbers; 0 unless selective."""
    activation_offload_layers: Ints
    switch: Ints | None = None
    """Row of `switches`; the first without it."""
    switches: SwitchTable = NO_SWITCHES

    def __len__(self) -> int:
        return len(self.shape)

    @property
    def modes(self) -> ModeRows:
        """How the layers of each plan run."""
        switch = np.zeros_like(self.sp) if self.switch is None else self.switch
        return ModeRows(self.sp, switch, self.switches)

    @property
    def n_micro(self) -> Ints:
        """Micro-batches per step and pipeline."""
        return (self.gbs // (self.mbs * self.shapes.dp[self.shape])).astype(np.int32)

    @property
    def zero(self) -> Ints:
        """ZeRO stage."""
        return self.shardings.zero[self.sharding]

    @property
    def schedule(self) -> Ints:
        """Index into `SCHEDULES`."""
        return self.shapes.schedule[self.shape]

    def take(self, rows: NDArray[np.intp] | slice) -> "PlanTable":
        """Return the plans at `rows`, over the same shapes."""
        columns = {name: getattr(self, name)[rows] for name in PLAN_COLUMNS}
        switch = None if self.switch is None else self.switch[rows]
        return replace(self, switch=switch, **columns)

    def layout(self, row: int, layers: int) -> Layout:
        """Return plan `row` as an object, for a model of `layers` layers."""
        shapes, k = self.shapes, int(self.shape[row])
        shape = {name: int(getattr(shapes, name)[k]) for name in SHAPE_AXES}
        split, z = shapes.splits[shape.pop("split")], int(self.sharding[row])
        values: dict[str, Any] = {name: AXES[name].value(code) for name, code in shape.items()}
        values |= {
            name: AXES[name].value(int(getattr(self, name)[row])) for name in RECOMPUTE_AXES
        }
        copies = int(self.shardings.copies[z])
        ranks = values["dp"] * values["cp"]
        return Layout(
            n_devices=shapes.n_devices,
            **values,
            split=split,
            stage_layers=stage_layers(layers, values["pp"], values["vpp"], split),
            mbs=int(self.mbs[row]),
            gbs=self.gbs,
            zero=int(self.shardings.zero[z]),
            shard=ranks // copies if copies > 1 else 0,
            optimizer_offload=bool(self.shardings.optimizer_offload[z]),
            dp_overlap=not self.shardings.dp_blocking[z],
            hpz=int(self.shardings.hpz[z]),
            sp=bool(self.sp[row]),
            tp_overlap=bool(self.sp[row] == SP_OVERLAPPED),
            switches=self.switches.row(0 if self.switch is None else int(self.switch[row])),
        )

    @staticmethod
    def from_layouts(layouts: Iterable[Layout]) -> "PlanTable":
        """Build a table from layouts of one job on one number of devices."""
        rows = list(layouts)
        named = dict.fromkeys(x.split for x in rows if x.split not in SPLITS)
        splits = (*SPLITS, *named)
        coded = {name: [x.code(name) for x in rows] for name in SHAPE_AXES if name != "split"}
        coded["split"] = [splits.index(x.split) for x in rows]
        shapes = ShapeTable.of_columns(rows[0].n_devices, coded, splits)

        def column(values: Iterable[int]) -> Ints:
            return np.fromiter(values, dtype=np.int32, count=len(rows))

        options = [
            (
                x.zero,
                x.dp * x.cp // x.dp_shard,
                int(x.optimizer_offload),
                int(not x.dp_overlap),
                x.hpz,
            )
            for x in rows
        ]
        distinct = sorted(set(options))
        switches = list(dict.fromkeys(x.switches for x in rows))
        return PlanTable(
            shapes,
            ShardingTable.from_tuples(distinct),
            rows[0].gbs,
            shape=np.arange(len(rows), dtype=np.int32),
            mbs=column(x.mbs for x in rows),
            sharding=column(distinct.index(option) for option in options),
            sp=column(x.sp_code for x in rows),
            **{name: column(x.code(name) for x in rows) for name in RECOMPUTE_AXES},
            switch=column(switches.index(x.switches) for x in rows),
            switches=SwitchTable.of_rows(switches),
        )


RECOMPUTE_AXES = axis_names("recompute")
"""Columns of a `PlanTable` that a recompute option fixes."""
PLAN_COLUMNS = ("shape", "mbs", "sharding", "sp", *RECOMPUTE_AXES)
"""Columns of a `PlanTable` and a `PlanBlock`, the row of the switches aside."""


@dataclass(frozen=True, slots=True)
class PlanBlock:
    """The product of batches with shardings and recompute options, as broadcastable columns.

    A batch is a shape with a micro-batch and sp. What depends on few axes is computed
    on those alone: `(1, 1, n_batches)` columns of the batch, `(n_shardings, 1, 1)` of the
    sharding, `(n_options, n_batches)` of recompute. The whole is
    `(n_shardings, n_options, n_batches)`.
    """

    shapes: ShapeTable
    shardings: ShardingTable
    gbs: int
    shape: Ints
    mbs: Ints
    sharding: Ints
    sp: Ints
    recompute: Ints
    recompute_layers: Ints
    recompute_modules: Ints
    activation_offload_layers: Ints
    switch: Ints
    """Row of `switches`, of the batch."""
    switches: SwitchTable = NO_SWITCHES

    @property
    def modes(self) -> ModeRows:
        """How the layers of each batch run."""
        return ModeRows(self.sp, self.switch, self.switches)

    @property
    def n_micro(self) -> Ints:
        """Micro-batches per step and pipeline."""
        return (self.gbs // (self.mbs * self.shapes.dp[self.shape])).astype(np.int32)

    @property
    def zero(self) -> Ints:
        """ZeRO stage."""
        return self.shardings.zero[self.sharding]

    @property
    def schedule(self) -> Ints:
        """Index into `SCHEDULES`."""
        return self.shapes.schedule[self.shape]

    @property
    def size(self) -> tuple[int, int, int]:
        """Shardings, recompute options and batches."""
        return len(self.sharding), len(self.recompute), self.shape.shape[-1]

    def of_batches(self, batches: NDArray[np.intp]) -> "PlanBlock":
        """Return the block of some of the batches."""
        names = ("shape", "mbs", "sp", "switch", *RECOMPUTE_AXES)
        return replace(self, **{name: getattr(self, name)[..., batches] for name in names})

    def rows(self, cells: NDArray[np.intp]) -> PlanTable:
        """Return the plans at flat positions of the whole as a table."""
        row, option, batch = np.unravel_index(cells, self.size)
        return PlanTable(
            self.shapes,
            self.shardings,
            self.gbs,
            shape=self.shape[0, 0, batch],
            mbs=self.mbs[0, 0, batch],
            sharding=self.sharding[row, 0, 0],
            sp=self.sp[0, 0, batch],
            **{name: getattr(self, name)[option, batch] for name in RECOMPUTE_AXES},
            switch=self.switch[0, 0, batch],
            switches=self.switches,
        )
