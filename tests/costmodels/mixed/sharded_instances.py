"""Small jobs of sharded replicas with tables made by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from costmodels.examples import LLAMA3_8B, toy_accelerator
from costmodels.mixed.sharded_plans import ReplicaDegrees
from costmodels.mixed.sharded_tables import (
    Cuts,
    ReplicaKey,
    ReplicaTable,
    ShardedPool,
    ShardedProblem,
)
from costmodels.mixed.tables import LinkFacts
from costmodels.problem import Problem, run_by
from costmodels.shapes import TrainingJob
from costmodels.stacks import STACKS
from hardware.catalogue import load_catalogue
from hardware.parts import Fabric, Pool

DEGREES = ReplicaDegrees(2)
STACK = replace(STACKS["torchtitan"], overlap_slowdown=0.25, fixed_step_s=0.125, node_spread=0.0)


def pool(name: str, n_nodes: int, per_node: int = 2) -> Pool:
    """Return a pool of toy accelerators."""
    catalogue = load_catalogue()
    return Pool(
        name=name,
        accelerator=toy_accelerator(),
        n_nodes=n_nodes,
        devices_per_node=per_node,
        scale_up_domain=per_node,
        scale_up=catalogue.link("nvlink4"),
        nics_per_node=per_node,
        nic=catalogue.link("ib-ndr-400"),
        memory_margin_bytes=0.0,
    )


def on_pool(name: str, n_nodes: int, batch: int) -> Problem:
    """Return a job on such a pool."""
    job = TrainingJob(seq_len=1024, global_batch=batch, precision="bf16")
    return run_by(STACK, LLAMA3_8B, job, pool(name, n_nodes), Fabric())


def tables(
    problem: Problem,
    times: Mapping[tuple[int, str], float],
    peaks: Mapping[tuple[int, str], float],
) -> ShardedPool:
    """Return a pool whose replicas take `times` seconds a micro-batch, by size and recomputation.

    A third of it forward; `peaks` are shares of the usable memory.
    """
    total = np.array(list(times.values()))
    n = len(total)
    usable = problem.pool.usable_bytes
    table = ReplicaTable(
        forward_s=total / 3,
        backward_s=2 * total / 3,
        gather_s=np.full(n, 0.5),
        gather_piece_s=np.full(n, 0.1),
        reduce_s=np.full(n, 0.6),
        reduce_piece_s=np.full((1, n), 0.2),
        update_s=np.full(n, 0.25),
        states_bytes=np.zeros(n),
        activation_bytes=usable * np.array([peaks[key] for key in times]),
        other_bytes=np.zeros(n),
    )
    keys = tuple(ReplicaKey(DEGREES, mbs, recompute) for mbs, recompute in times)
    cuts = {DEGREES: Cuts(np.array([4.0]), np.array([10e9]), 80e9)}
    return ShardedPool(problem, keys, table, cuts)


def instance(
    nodes: Sequence[int],
    times: Sequence[Mapping[tuple[int, str], float]],
    peaks: Sequence[Mapping[tuple[int, str], float]],
    batch: int,
    link: LinkFacts,
) -> ShardedProblem:
    """Return a job on several pools, all joined by such a link."""
    pools = tuple(
        tables(on_pool(f"p{i}", n, batch), own, full)
        for i, (n, own, full) in enumerate(zip(nodes, times, peaks, strict=True))
    )
    n_pools = len(pools)
    links = {(i, j): link for i in range(n_pools) for j in range(i + 1, n_pools)}
    return ShardedProblem(pools, links, batch)
