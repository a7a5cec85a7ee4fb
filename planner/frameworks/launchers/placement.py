"""Which rank talks to which, and on which host it runs: the process groups of a plan.

A framework numbers its ranks as a grid, row by row, and they start node by node in network order.
Every framework that we write for has the usual order, tensor parallelism innermost and pipelines
outermost; `Framework.grid` says how it calls the axes. Megatron also has one with data
parallelism outermost (`costmodels.axes.RANK_ORDERS`). The cost models price both
(`costmodels.shape_terms`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import RANK_ORDERS
from costmodels.comm.placement import tier_names
from costmodels.plans import Layout
from costmodels.schedule.stages import BOTH_WAYS
from costmodels.shapes import ModelShape
from hardware.parts import Fabric, Pool, used_tiers
from planner.errors import EmitError

Ints = NDArray[np.int64]


MEANINGS = {
    "tp": "share every layer (tensor parallelism)",
    "cp": "share the sequence (context parallelism)",
    "dp": "same part of the model, other data",
    "dp-cp": "sum the gradients of the dense layers",
    "zero": "shard optimizer, gradients or weights of the dense layers",
    "zero-replica": "hold the same shard",
    "hpz": "share a second copy of the weights",
    "pp": "stages of one pipeline",
    "etp": "share every expert",
    "ep": "hold different experts and exchange tokens",
    "edp": "sum the gradients of the same experts",
    "expert-zero": "shard the state of the same experts",
    "expert-replica": "hold the same shard of the experts",
    "embedding": "sum the gradients of the embedding that both ends of a pipeline hold",
    "mirror": "hold the same two stages (DualPipe)",
}
"""What the ranks of each kind of group do together."""


@dataclass(frozen=True, slots=True)
class RankGrid:
    """Ranks numbered row by row over named axes, the outermost first."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def n_ranks(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    def groups(self, *names: str) -> Ints:
        """Return the ranks that differ only in the named axes, `(n_groups, n_members)`, sorted."""
        inside = [i for i, axis in enumerate(self.axes) if axis in names]
        outside = [i for i, axis in enumerate(self.axes) if axis not in names]
        members = prod(self.sizes[i] for i in inside)
        ranks = np.arange(self.n_ranks, dtype=np.int64).reshape(self.sizes)
        return ranks.transpose(*outside, *inside).reshape(-1, members)

    def coordinate(self, name: str) -> Ints:
        """Return the place of every rank along one axis, `(n_ranks,)`."""
        i = self.axes.index(name)
        inner = prod(self.sizes[i + 1 :])
        return np.arange(self.n_ranks, dtype=np.int64) // inner % self.sizes[i]


def dense_grid(layout: Layout) -> RankGrid:
    """Return the grid of attention and of the dense layers."""
    sizes = {"pp": layout.pp, "dp": layout.dp, "cp": layout.cp, "tp": layout.tp}
    return _grid(layout, sizes, "dp")


def expert_grid(layout: Layout) -> RankGrid:
    """Return the grid of the routed experts.

    Of the tp cp dp ranks of a stage the innermost etp share an expert, the next ep hold different
    ones, the others hold copies. Raises `EmitError` where that does not divide, or where pipelines
    would differ from those of the dense grid, which Megatron refuses.
    """
    stage_ranks, inner = layout.tp * layout.cp * layout.dp, layout.ep * layout.etp
    if stage_ranks % inner:
        raise EmitError(
            f"ep {layout.ep} x etp {layout.etp} do not divide the {stage_ranks} ranks of a"
            " pipeline stage",
            "choose degrees that do",
        )
    sizes = {"pp": layout.pp, "edp": stage_ranks // inner, "ep": layout.ep, "etp": layout.etp}
    grid = _grid(layout, sizes, "edp")
    if not np.array_equal(grid.groups("pp"), dense_grid(layout).groups("pp")):
        raise EmitError(
            f"rank order {layout.rank_order}: the experts' pipelines (ep {layout.ep} x etp"
            f" {layout.etp}) are not those of attention (tp {layout.tp} x cp {layout.cp})",
            f"choose degrees with ep etp = tp cp, or rank order {RANK_ORDERS[0]}",
        )
    return grid


def _grid(layout: Layout, sizes: Mapping[str, int], copies: str) -> RankGrid:
    axes = list(sizes)
    if layout.pipelines_inside:
        axes.remove(copies)
        axes.insert(0, copies)
    return RankGrid(tuple(axes), tuple(sizes[axis] for axis in axes))


@dataclass(frozen=True, slots=True)
class ProcessGroups:
    """All groups of one kind, and how far the widest of them reaches."""

    name: str
    """One of `MEANINGS`."""
    ranks: Ints
    """`(n_groups, n_members)`; every row is one group, sorted."""
    n_nodes: int
    n_domains: int
    """Scale-up domains."""
    tier: str
    """Highest level of the network that a group enters (`costmodels.comm.placement.tier_names`).
    """

    @property
    def n_members(self) -> int:
        """Ranks of one group."""
        return int(self.ranks.shape[1])

    @property
    def stride(self) -> int:
        """Distance between neighbours; 0 when it varies or a group has one rank."""
        steps = np.diff(self.ranks, axis=1)
        return int(steps.flat[0]) if steps.size and (steps == steps.flat[0]).all() else 0


def units_touched(ranks: Ints, unit: int) -> int:
    """Return in how many units of `unit` consecutive ranks the widest group has members."""
    units = ranks // unit  # rows are sorted, so a unit's members stand together
    return 1 + int((np.diff(units, axis=1) != 0).sum(axis=1).max(initial=0))


def process_groups(
    layout: Layout, shape: ModelShape, pool: Pool, fabric: Fabric
) -> tuple[ProcessGroups, ...]:
    """Return every kind of group of a layout, in the order of `MEANINGS`.

    tp, cp, dp and pp always, those of the experts for a model that has some; the others where
    they have several ranks.
    """
    dense, copies = dense_grid(layout), layout.dp * layout.cp
    gradients = dense.groups("dp", "cp")
    entries = {axis: dense.groups(axis) for axis in ("tp", "cp", "dp", "pp")}
    if layout.cp > 1:
        entries["dp-cp"] = gradients
    if layout.zero and copies > 1:
        entries["zero"], entries["zero-replica"] = _shards(gradients, layout.dp_shard)
    if layout.hpz > 1:
        entries["hpz"], _ = _shards(gradients, layout.hpz)
    if shape.n_experts:
        experts = expert_grid(layout)
        entries |= {axis: experts.groups(axis) for axis in ("etp", "ep", "edp")}
        if layout.zero and copies > 1:
            shards = _expert_shards(entries["edp"], copies // layout.dp_shard)
            entries["expert-zero"], entries["expert-replica"] = shards
    pipelines = entries["pp"]
    if layout.pp > 1 and layout.placement == BOTH_WAYS:
        pairs = np.stack([pipelines, pipelines[:, ::-1]], axis=2)[:, : layout.pp // 2]
        entries["mirror"] = pairs.reshape(-1, 2)
    elif layout.pp > 1 and (shape.tied or shape.mtp_layers):
        ends = [
            r for r in range(layout.pp) if layout.has_embedding(r) or layout.has_head(r)
        ]  # one rank where the pipeline is folded
        entries["embedding"] = pipelines[:, ends]
    always = {"tp", "cp", "dp", "pp", "etp", "ep", "edp"}
    return tuple(
        _measured(name, entries[name], pool, fabric)
        for name in MEANINGS
        if name in entries and (name in always or entries[name].shape[1] > 1)
    )


def _shards(copies: Ints, n_shards: int) -> tuple[Ints, Ints]:
    """Return the ZeRO groups, neighbours among the copies, and the ranks with the same shard."""
    cut = copies.reshape(len(copies), -1, n_shards)
    return cut.reshape(-1, n_shards), cut.transpose(0, 2, 1).reshape(-1, cut.shape[1])


def _expert_shards(same: Ints, n_replicas: int) -> tuple[Ints, Ints]:
    """Return the ZeRO groups of the experts: as many replicas of the state as the rest has."""
    if same.shape[1] % n_replicas:
        raise EmitError(
            f"{same.shape[1]} copies of every expert do not divide into {n_replicas} replicated"
            " ZeRO groups",
            "choose ZeRO groups of all data-parallel ranks, or other expert degrees",
        )
    return _shards(same, same.shape[1] // n_replicas)


def _measured(name: str, ranks: Ints, pool: Pool, fabric: Fabric) -> ProcessGroups:
    n_domains = units_touched(ranks, pool.scale_up_domain)
    tier = 0 if n_domains == 1 else 1
    for level, entry in enumerate(used_tiers(fabric, pool)):
        if n_domains > 1 and units_touched(ranks, entry.n_nodes * pool.devices_per_node) > 1:
            tier = level + 2
    n_nodes = units_touched(ranks, pool.devices_per_node)
    return ProcessGroups(name, ranks, n_nodes, n_domains, tier_names(fabric)[tier])


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranks on hosts: rank r is device r % devices_per_node of host r // devices_per_node."""

    layout: Layout
    hosts: tuple[str, ...]
    """One name a node, in network order."""
    hosts_known: bool
    """False when the names are placeholders, `node0000` and on."""
    devices_per_node: int
    """Processes on each node."""
    nodes_per_domain: int
    """Nodes of one scale-up domain; 1 when a domain is a node or less."""
    groups: tuple[ProcessGroups, ...]
    grids: tuple[RankGrid, ...]
    """The dense one, and that of the experts for a model that has some."""

    @property
    def n_ranks(self) -> int:
        """Number of ranks."""
        return self.layout.n_devices

    def host(self, rank: int) -> str:
        """Return the host of a rank."""
        return self.hosts[rank // self.devices_per_node]

    def local_rank(self, rank: int) -> int:
        """Return the device of a rank on its host."""
        return rank % self.devices_per_node

    def group(self, name: str) -> ProcessGroups:
        """Return the groups of one kind; `KeyError` when the plan has none."""
        return {group.name: group for group in self.groups}[name]


def place_plan(
    layout: Layout, shape: ModelShape, pool: Pool, fabric: Fabric, hosts: Sequence[str] = ()
) -> Placement:
    """Return where every rank of a layout runs.

    `hosts` names the nodes in network order: those of a domain, then of a leaf, stand together.
    More than the plan needs are left over at the end; without any, placeholders stand in.
    Raises `EmitError` for too few or repeated hosts, or devices that do not fill whole nodes.
    """
    per_node = min(layout.n_devices, pool.devices_per_node)
    n_nodes, rest = divmod(layout.n_devices, per_node)
    if rest:
        raise EmitError(
            f"{layout.n_devices} devices do not fill whole nodes of {pool.devices_per_node}",
            "plan for a multiple of it",
        )
    grids = [dense_grid(layout)]
    if shape.n_experts:
        grids.append(expert_grid(layout))
    return Placement(
        layout=layout,
        hosts=_host_names(hosts, n_nodes),
        hosts_known=bool(hosts),
        devices_per_node=per_node,
        nodes_per_domain=max(1, min(pool.scale_up_domain // pool.devices_per_node, n_nodes)),
        groups=process_groups(layout, shape, pool, fabric),
        grids=tuple(grids),
    )


def _host_names(hosts: Sequence[str], n_nodes: int) -> tuple[str, ...]:
    if not hosts:
        width = max(4, len(str(n_nodes - 1)))
        return tuple(f"node{i:0{width}d}" for i in range(n_nodes))
    if len(hosts) < n_nodes:
        message = f"the plan needs {n_nodes} hosts, named: {len(hosts)}"
        raise EmitError(message, "name all of them", "hosts")
    name, times = Counter(hosts).most_common(1)[0]
    if times > 1:
        raise EmitError(f"host {name} is named {times} times", "name every host once", "hosts")
    return tuple(hosts[:n_nodes])
