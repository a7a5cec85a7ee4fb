"""Which axis of a plan a process group of a trace serves.

Descriptions are those of Megatron-LM (`group_desc` in megatron/core/parallel_state.py, such as
`TENSOR_MODEL_PARALLEL_GROUP`) and of PyTorch's DeviceMesh (`mesh_` and the name of the dimension;
names of torchtitan in torchtitan/distributed/parallel_dims.py). DeepSpeed and older releases give
none: there the ranks of the group, its size, the collective and the size of its messages decide,
in this order, as far as the plan tells them apart.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodels.plans import Layout
from costmodels.shapes import ModelShape
from costmodels.traffic import PlanTransfer
from planner.analyze.kineto.kernels import collective_of
from planner.analyze.kineto.reader import CollectiveCall
from planner.frameworks.launchers.placement import dense_grid, expert_grid

OTHER = "other"
"""Groups that belong to no axis: the norm of gradients, logging, barriers."""
AMBIGUOUS = "ambiguous"
SAME_SIZE = 1.5
"""Messages within this factor count as of the size that the plan predicts."""

_KERNEL_AXES = (("userbuffers", "tp"), ("deep_ep", "ep"))
"""Kernels that run on one axis alone: Transformer Engine's overlap of tp, DeepEP's exchange."""

_DESCRIPTIONS: tuple[tuple[str, str], ...] = (
    (r"HIERARCHICAL_CONTEXT_PARALLEL.*|HYBRID_DP_CP_GROUP.*|CONTEXT_PARALLEL_GROUP", "cp"),
    (r"TENSOR_MODEL_PARALLEL_GROUP", "tp"),
    (r"PIPELINE_MODEL_PARALLEL_GROUP|(POSITION_)?EMBEDDING_GROUP", "pp"),
    (r"(INTRA_PARTIAL_|INTER_PARTIAL_)?(EXPERT_)?DATA_PARALLEL_GROUP.*", "dp"),
    (r"INT(RA|ER)_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "dp"),
    (r"EXPERT_(MODEL|TENSOR|TENSOR_AND_MODEL)_PARALLEL_GROUP", "ep"),
    (r"MODEL_PARALLEL_GROUP|TENSOR_AND_.*|EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", OTHER),
    (r"mesh_(tp|cp|pp)", r"\1"),
    (r"mesh_(ep|etp|ep_tp|ep_etp)", "ep"),
    (r"mesh_(dp|fsdp|efsdp|hsdp|batch|ddp|replicate|shard).*", "dp"),
    (r"mesh_(loss|world).*", OTHER),
)


def described_axis(description: str) -> str:
    """Return the axis that the description of a process group names; empty where none does.

    >>> described_axis("mesh_dp_shard_cp"), described_axis("default_pg")
    ('dp', '')
    """
    for pattern, axis in _DESCRIPTIONS:
        if match := re.fullmatch(pattern, description):
            return match.expand(axis)
    return ""


@dataclass(frozen=True, slots=True)
class PlanGroups:
    """What a plan says about its communicators."""

    sizes: Mapping[str, frozenset[int]]
    """Group sizes of each axis, those of a single rank left out."""
    ranks: Mapping[str, tuple[frozenset[int], ...]]
    """The groups of each axis that hold the rank of the trace; empty where it is not known."""
    transfers: Sequence[PlanTransfer]

    def message_bytes(self, axis: str, collective: str) -> tuple[float, ...]:
        """Return the predicted message sizes of one collective on one axis."""
        return tuple(
            x.message_bytes
            for x in self.transfers
            if x.axis == axis and x.collective in _alike(collective)
        )


def _alike(collective: str) -> tuple[str, ...]:
    """Return the collectives of the cost model that a kernel of this kind may run."""
    if collective == "send-receive":
        return ("point-to-point", "all-to-all")
    return (collective,)


def plan_groups(
    layout: Layout, shape: ModelShape, transfers: Sequence[PlanTransfer], rank: int | None
) -> PlanGroups:
    """Return the groups of a layout, those of one global rank where it is known.

    Groups that ZeRO cuts out of the data-parallel one (HSDP, hpZ) count with their sizes.
    """
    dense = dense_grid(layout)
    grids = [(axis, dense.groups(axis)) for axis in ("tp", "cp", "pp", "dp")]
    grids.append(("dp", dense.groups("dp", "cp")))
    if shape.n_experts:
        experts = expert_grid(layout)
        grids += [("ep", experts.groups("ep")), ("ep", experts.groups("etp"))]
        grids += [("ep", experts.groups("ep", "etp")), ("dp", experts.groups("edp"))]
    sizes: dict[str, set[int]] = {}
    own: dict[str, list[frozenset[int]]] = {}
    for axis, groups in grids:
        if groups.shape[1] == 1:
            continue
        sizes.setdefault(axis, set()).add(int(groups.shape[1]))
        if rank is not None:
            row = groups[(groups == rank).any(axis=1)][0]
            own.setdefault(axis, []).append(frozenset(int(x) for x in row))
    for one in transfers:
        if one.axis == "dp" and one.group_size > 1:
            sizes.setdefault("dp", set()).add(one.group_size)
        if one.axis == "pp" and one.collective == "all-reduce":
            sizes.setdefault("pp", set()).add(one.group_size)
    return PlanGroups(
        sizes={axis: frozenset(values) for axis, values in sizes.items()},
        ranks={axis: tuple(dict.fromkeys(values)) for axis, values in own.items()},
        transfers=tuple(transfers),
    )


@dataclass(frozen=True, slots=True)
class Assigned:
    """The axis of a communicator, and what told it."""

    axis: str
    """`tp`, `cp`, `ep`, `pp`, `dp`, `OTHER` or `AMBIGUOUS`."""
    by: str
    """`description`, `kernel`, `ranks`, `group size`, `collective`, `message size`, `stream` (that
    of other calls of the axis), `elimination` (the only one without a stream), or why not."""
    candidates: tuple[str, ...] = ()
    """Axes between which an ambiguous one could not be decided."""


def assign(call: CollectiveCall, kernel: str, plan: PlanGroups) -> Assigned:
    """Return the axis of one call of a trace."""
    if axis := described_axis(call.description):
        return Assigned(axis, "description")
    for part, axis in _KERNEL_AXES:
        if part in kernel.lower():
            return Assigned(axis, "kernel")
    by, results = "group size", [a for a, n in plan.sizes.items() if call.group_size in n]
    if call.ranks and plan.ranks:
        by = "ranks"
        own = frozenset(call.ranks)
        results = [axis for axis, groups in plan.ranks.items() if own in groups]
    if not call.group_size:
        by, results = "collective", list(plan.sizes)
    collective = collective_of(kernel, call.collective)
    if not results:
        return Assigned(OTHER, "no axis of the plan has this group")
    if len(results) > 1 or not call.group_size:
        sends = [axis for axis in results if plan.message_bytes(axis, collective)]
        if len(sends) == 1:
            return Assigned(sends[0], "collective")
        if not sends:
            return Assigned(AMBIGUOUS, "no such collective in the plan", tuple(sorted(results)))
        results = sends
        if call.n_bytes:
            near = [axis for axis in results if _near(call.n_bytes, plan, axis, collective)]
            if len(near) == 1:
                return Assigned(near[0], "message size")
        return Assigned(AMBIGUOUS, "several axes send such messages", tuple(sorted(results)))
    return Assigned(results[0], by)


def _near(n_bytes: int, plan: PlanGroups, axis: str, collective: str) -> bool:
    return any(
        size > 0 and abs(math.log(n_bytes / size)) <= math.log(SAME_SIZE)
        for size in plan.message_bytes(axis, collective)
    )
