"""Traffic of sharded replicas beside compute: on the wire, waited for, slowing compute down."""

from dataclasses import dataclass

from costmodels.mixed.sharded_prices import exchange, replica_waits
from planner.solver.together.replicas.opened import OpenedSharded


@dataclass(frozen=True, slots=True)
class ReplicaTraffic:
    """Traffic of one kind of replica in a step, seconds; waits and slowdowns sum to its terms."""

    gather_s: float
    """Weights, twice a micro-batch, on the wire."""
    scatter_s: float
    """Gradients inside a replica."""
    exchange_s: float
    """Gradients over all replicas."""
    gather_waits_s: float
    """What forwards wait for."""
    scatter_waits_s: float
    """What backwards wait for inside a replica: weights again, and gradients."""
    exchange_waits_s: float
    """What backwards wait for of the sum over the replicas."""
    own_slowdown_s: float
    """What hidden traffic inside a replica slows compute down by."""
    exchange_slowdown_s: float
    """The same of the sum over the replicas; below 0 where more is waited for, and less hidden."""

    @property
    def slowdown_s(self) -> float:
        """What all hidden traffic slows compute down by."""
        return self.own_slowdown_s + self.exchange_slowdown_s


def kind_traffic(opened: OpenedSharded, index: int) -> ReplicaTraffic:
    """Return the traffic of a kind of replicas of a plan, from 0."""
    plan, problem = opened.sharded, opened.problem
    table, m = opened.row(plan.kinds[index]), plan.n_micro
    stack = problem.pools[plan.kinds[index].pool].problem.stack
    between = exchange(problem, plan.degrees, plan.pools, plan.n_replicas)
    without, with_it = replica_waits(stack, table), replica_waits(stack, table, between)
    waits_s = with_it.behind_exposed_s[0] - without.behind_exposed_s[0]
    return ReplicaTraffic(
        gather_s=2.0 * m * float(table.gather_s[0]),
        scatter_s=m * float(table.reduce_s[0]),
        exchange_s=m * between.total_s,
        gather_waits_s=m * float(without.ahead_exposed_s[0]),
        scatter_waits_s=m * float(without.behind_exposed_s[0]),
        exchange_waits_s=m * float(waits_s),
        own_slowdown_s=m * float(without.slowed_s[0]),
        exchange_slowdown_s=m * float(with_it.slowed_s[0] - without.slowed_s[0]),
    )
