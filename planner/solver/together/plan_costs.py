"""What a plan over several pools costs beside its step: goodput, dollars, energy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from costmodels.problem import Problem
from costmodels.run.cost_energy import cost_usd, device_power_w, energy_j
from costmodels.run.goodput import (
    best_interval_s,
    checkpoint_time_s,
    goodput_frac,
    job_mtbf_s,
    saved_bytes,
)
from hardware.pool_links import link_between
from planner.solver.together.records import JoinedLink
from planner.specs.inputs import ClusterInput
from planner.specs.search.objectives import useful_tokens

Used = Mapping[int, int]
"""Devices in use by the place of their pool in the cluster."""


@dataclass(frozen=True, slots=True)
class RunCosts:
    """What `JoinedPlan` says of a run under the same names."""

    goodput_frac: float
    usd_per_million_tokens: float | None
    energy_j_per_token: float | None
    expected_s: float | None
    cost_usd: float | None


def run_costs(
    cluster: ClusterInput,
    used: Used,
    problem: Problem,
    links: Sequence[JoinedLink],
    step_s: float,
) -> RunCosts:
    """Return what a run of steps of so many seconds costs, failures of all pools included."""
    job = problem.job
    tokens = useful_tokens(job)
    share = joined_goodput(cluster, used, problem)
    wall_s = step_s / share if share else inf
    usd = usd_per_million_tokens(cluster, used, links, wall_s, tokens)
    return RunCosts(
        goodput_frac=share,
        usd_per_million_tokens=usd,
        energy_j_per_token=energy_j_per_token(cluster, used, wall_s, tokens),
        expected_s=wall_s * job.tokens / tokens if job.tokens and share else None,
        cost_usd=None if usd is None or not job.tokens else usd * job.tokens * 1e-6,
    )


def joined_links(
    cluster: ClusterInput,
    indices: Sequence[int],
    crossing_bytes: Mapping[tuple[int, int], float],
) -> tuple[JoinedLink, ...]:
    """Return what crosses each link; `indices` are the places of the pools in the cluster."""
    pools = [cluster.cluster.pools[i] for i in indices]
    links = []
    for (a, b), n_bytes in sorted(crossing_bytes.items()):
        link = link_between(cluster.cluster, pools[a], pools[b])
        links.append(
            JoinedLink(
                between=(pools[a].name, pools[b].name),
                bytes=n_bytes,
                usd=n_bytes * link.price_per_byte,
                bandwidth_bytes_per_s=link.bytes_per_s,
                wan=link.is_wan,
            )
        )
    return tuple(links)


def joined_goodput(cluster: ClusterInput, used: Used, problem: Problem) -> float:
    """Return the share of the time that counts: failures of all pools end a run."""
    total = sum(used.values())
    operations = cluster.operations
    rate = sum(1.0 / job_mtbf_s(operations[i], n) for i, n in used.items())
    first = operations[min(used)]
    stop_s = checkpoint_time_s(first, saved_bytes(problem), total)
    interval_s = best_interval_s(stop_s, 1.0 / rate)
    return goodput_frac(stop_s, 1.0 / rate, first.restart_s, interval_s)


def usd_per_million_tokens(
    cluster: ClusterInput, used: Used, links: Sequence[JoinedLink], wall_s: float, tokens: float
) -> float | None:
    """Return devices and traffic over links; None where a pool in use states no price."""
    prices = {i: cluster.operations[i].price_per_device_hour for i in used}
    if any(price is None for price in prices.values()) or wall_s == inf:
        return None
    devices = sum(cost_usd(price or 0.0, used[i], wall_s) for i, price in prices.items())
    return (devices + sum(link.usd for link in links)) / tokens * 1e6


def energy_j_per_token(
    cluster: ClusterInput, used: Used, wall_s: float, tokens: float
) -> float | None:
    """Return the energy of all devices in use; None where a part's power is not known."""
    total = 0.0
    for i, n in used.items():
        power = device_power_w(cluster.cluster.pools[i].accelerator, cluster.operations[i])
        if power is None or wall_s == inf:
            return None
        total += energy_j(power, n, wall_s)
    return total / tokens
