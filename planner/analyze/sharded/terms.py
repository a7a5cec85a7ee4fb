"""The terms of the step of a plan of sharded replicas: what each is, and its numbers."""

from collections.abc import Mapping
from typing import Any

from costmodels.mixed.sharded_prices import exchange_by_part_s
from planner.analyze.joined.terms import JoinedTerm
from planner.analyze.sharded.traffic import kind_traffic
from planner.solver.together.replicas.opened import OpenedSharded

_PRICES = "costmodels.mixed.sharded_prices"
SHARDED_TERMS: Mapping[str, JoinedTerm] = {
    "compute": JoinedTerm(
        "micro-batches of a replica",
        "m (f + b)",
        "m micro-batches, f forward and b backward with recomputation, tp and cp inside them",
        f"{_PRICES}.replica_times",
    ),
    "straggle": JoinedTerm(
        "the slowest node of all pools in use",
        "(S - 1) compute",
        "S straggler factor of the nodes in use",
        "costmodels.step.straggler_factor",
    ),
    "sync": JoinedTerm(
        "gathers and scatters inside a replica: waits and slowdown",
        "m (e(g, f) + e(g + r, b) + slowdown (hidden))",
        "e = what of a transfer does not hide, g all weights gathered, r all gradients scattered",
        f"{_PRICES}.replica_waits",
    ),
    "exchange": JoinedTerm(
        "gradients summed over all replicas: waits and slowdown",
        "m (e(g + r + x, b) - e(g + r, b) + slowdown (x hidden))",
        "x = sum over units max(all_reduce_u, 2 (R - 1)/R (G/B + U latency)), R replicas on U"
        " pools, all_reduce_u on pool u alone, G gradients of a unit, B of a link",
        f"{_PRICES}.exchange",
    ),
    "update": JoinedTerm(
        "optimizer of a device's shard", "update", "of 1/n of the parameters", f"{_PRICES}"
    ),
    "fixed": JoinedTerm(
        "what every step takes", "fixed", "of the software stack", "costmodels.stacks"
    ),
}
"""By name, in the order of the step."""

UNITS = ("dense layers", "experts")
"""What gradients are summed of, the second of models with experts."""


def sharded_term_values(opened: OpenedSharded, term: str) -> list[dict[str, Any]]:
    """Return the value of a term by kind of replica, with the parts that it comes of, seconds.

    `parts` of `compute`, `sync` and `exchange` are of a step, and sum to it. `micro_batch_s` of
    `exchange` is what each pool and link alone would take of a micro-batch, by what is summed
    (`UNITS`): of each the longest counts.
    """
    values = []
    alone_s = _exchange_alone(opened) if term == "exchange" else {}
    for i, kind in enumerate(opened.plan.kinds):
        parts: dict[str, float] = {}
        if term == "compute":
            one = opened.priced.kinds[i]
            parts = {
                "forward": kind.n_micro * one.forward_s,
                "backward": kind.n_micro * one.backward_s,
            }
        elif term == "sync":
            traffic = kind_traffic(opened, i)
            parts = {
                "gathers before the forward": traffic.gather_waits_s,
                "gathers and scatters of the backward": traffic.scatter_waits_s,
                "slowed down by hidden traffic": traffic.own_slowdown_s,
            }
        elif term == "exchange":
            traffic = kind_traffic(opened, i)
            parts = {
                "waited for": traffic.exchange_waits_s,
                "slowed down by hidden traffic": traffic.exchange_slowdown_s,
            }
        values.append(
            {
                "kind": i + 1,
                "pool": kind.pools[0],
                "time_s": kind.time[term],
                "by_stage_s": [],
                "parts": parts,
                "micro_batch_s": alone_s,
            }
        )
    return values


def _exchange_alone(opened: OpenedSharded) -> dict[str, dict[str, float]]:
    """Return what each pool and link alone would take of the sum of one micro-batch, by unit."""
    names = [pool.name for pool in opened.problem.pools]
    pools, links = exchange_by_part_s(opened.problem, opened.sharded)
    alone_s = {f"on {names[place]}": seconds for place, seconds in pools.items()}
    alone_s |= {f"link {names[a]} - {names[b]}": x for (a, b), x in links.items()}
    return {
        part: dict(zip(UNITS, seconds.tolist(), strict=False)) for part, seconds in alone_s.items()
    }
