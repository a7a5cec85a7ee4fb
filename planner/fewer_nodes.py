"""Plans for a dump of a cluster whose free nodes are a number that no layout of the job fills.

How many nodes are free when a dump is made is chance, often a number with a large prime factor. A
cluster file states the nodes that the job is to use; a dump states what could be used.
"""

import dataclasses
from collections.abc import Iterator

from planner.errors import SearchError, SpecError
from planner.inputs import ClusterInput, ModelInput, cluster_from_dict
from planner.intake.hostlist import compress_hosts
from planner.options import SolveOptions
from searches.feasibility import any_fits
from searches.rules import Context

MOST_TRIED = 64
"""Numbers of nodes tried, from the largest down."""


def with_fewer_nodes(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions
) -> ClusterInput | None:
    """Return the cluster with the most nodes of its one pool on which the job has a plan.

    The nodes are the first of the list, which are neighbours in the network. None for a cluster
    that is no dump or has several pools, and when at most `MOST_TRIED` fewer nodes do not help.
    """
    from planner.solving import make_problem

    if not cluster.from_dump or len(cluster.cluster.pools) > 1:
        return None
    restrictions = dataclasses.replace(options.search_options(), n_finalists=1)
    for fewer in _smaller(cluster):
        try:
            problem = make_problem(model, fewer, options)
        except SearchError:
            return None
        if any_fits(Context(problem, restrictions, problem.pool.n_devices)):
            return fewer
    return None


def _smaller(cluster: ClusterInput) -> Iterator[ClusterInput]:
    """Yield the cluster with one node less each time, whole scale-up domains in racks."""
    pool, source = cluster.cluster.pools[0], cluster.sources[0]
    entry = cluster.document["pools"][0]
    per_domain = max(1, pool.scale_up_domain // pool.devices_per_node)
    for n in range(pool.n_nodes - 1, max(0, pool.n_nodes - 1 - MOST_TRIED), -1):
        if per_domain > 1 and n > per_domain and n % per_domain:
            continue
        smaller = {**entry, "nodes": n}
        if per_domain > n:
            smaller["scale_up_domain"] = n * pool.devices_per_node
        if source.hosts:
            smaller["hosts"] = compress_hosts(source.hosts[:n])
        try:
            found = cluster_from_dict({**cluster.document, "pools": [smaller]})
        except SpecError:  # a domain that a number of nodes does not divide
            continue
        said = (
            f"cluster: {pool.n_nodes} nodes ({pool.n_devices} devices) are free, and no layout of"
            f" the job fits them: planned for {n}, the first of the list; --set"
            " pools.0.free_nodes=N takes another number"
        )
        yield dataclasses.replace(
            found, path=cluster.path, notes=(*cluster.notes, said), from_dump=True
        )
