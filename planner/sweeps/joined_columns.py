"""What a row of a sweep says where plans over several pools were looked for too."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from planner.solver.answer.result import Result
from planner.solver.together.pools import with_merged_pools
from planner.solver.together.records import JoinedPlan, Together
from planner.solver.together.words import pipelines_text, same_or_none
from planner.specs.inputs import ClusterInput

Facts = dict[str, Any]
"""Values by column name."""


def best_joined(result: Result) -> JoinedPlan | None:
    """Return the plan over several pools that beats all on one; None where none does."""
    together = result.together
    return together.plans[0] if together and together.plans and together.pays else None


def joined_facts(result: Result) -> Facts:
    """Return the two best plans side by side, over several pools and on one; nothing if apart."""
    together = result.together
    if together is None:
        return {}
    first = together.plans[0] if together.plans else None
    alone = [x for x in together.worth if x.alone_s is not None]
    best = min(alone, key=lambda x: x.alone_s or 0.0, default=None)
    return {
        "joined.step_time_s": first.step_time_s if first else None,
        "joined.pools": "+".join(first.devices) if first else None,
        "joined.bound_s": together.bound_s,
        "alone.step_time_s": best.alone_s if best else None,
        "alone.pool": best.pool if best else None,
    }


def best_joined_facts(plan: JoinedPlan, cluster: ClusterInput) -> Facts:
    """Return a plan over several pools as the best of a row; what differs by stage is missing."""
    own = _used_pools(plan, cluster)
    pools = own.cluster.pools
    stages = [stage for kind in plan.kinds for stage in kind.stages]
    full = max(stages, key=lambda x: x.peak_bytes / x.usable_bytes)
    return {
        "pool": "+".join(plan.devices),
        "accelerator": ", ".join(dict.fromkeys(pool.accelerator.name for pool in pools)),
        "n_devices": sum(pool.n_devices for pool in pools),
        "scale_up_domain": same_or_none([pool.scale_up_domain for pool in pools]),
        "assumed": ", ".join(own.assumed) or None,
        "best.plan_id": plan.plan_id,
        "best.layout": pipelines_text(plan),
        "best.devices": plan.n_devices,
        "best.tp": same_or_none([x.tp for x in stages]),
        "best.cp": same_or_none([x.cp for x in stages]),
        "best.ep": same_or_none([x.ep for x in stages]),
        "best.pp": same_or_none([len(kind.stages) for kind in plan.kinds]),
        "best.dp": sum(kind.n_pipelines for kind in plan.kinds),
        "best.zero": plan.zero,
        "best.mbs": same_or_none([kind.mbs for kind in plan.kinds]),
        "best.n_micro": same_or_none([kind.n_micro for kind in plan.kinds]),
        "best.schedule": "1f1b",
        "best.recompute": same_or_none([x.recompute for x in stages]),
        "best.step_time_s": plan.step_time_s,
        "best.step_time_p10_s": plan.step_time_p10_s,
        "best.step_time_p90_s": plan.step_time_p90_s,
        "best.tokens_per_s": plan.tokens_per_s,
        "best.tokens_per_s_per_device": plan.tokens_per_s / plan.n_devices,
        "best.peak_bytes": full.peak_bytes,
        "best.usable_bytes": full.usable_bytes,
        "best.run_s": plan.expected_s,
        "best.goodput_frac": plan.goodput_frac,
        "best.cost_usd": plan.cost_usd,
        "best.usd_per_million_tokens": plan.usd_per_million_tokens,
        "best.energy_j_per_token": plan.energy_j_per_token,
        "best.runs_on": ", ".join(plan.runs_on),
    }


def proof_of(together: Together, best_s: float, alone_proven: bool) -> tuple[bool, float | None]:
    """Return whether a best step, of one pool or several, is proven, and else its gap."""
    gap = 0.0 if together.bound_s is None else max(0.0, 1.0 - together.bound_s / best_s)
    is_proven = together.complete and gap <= 1e-6 and alone_proven
    return is_proven, None if is_proven else gap


def runner_up_facts(plans: Sequence[JoinedPlan]) -> Facts:
    """Return the second plan over several pools."""
    return {
        name: value
        for plan in plans
        for name, value in (
            ("runner_up.plan_id", plan.plan_id),
            ("runner_up.layout", pipelines_text(plan)),
            ("runner_up.step_time_s", plan.step_time_s),
            ("runner_up.peak_bytes", max(x.peak_bytes for k in plan.kinds for x in k.stages)),
        )
    }


def joined_cluster(cluster: ClusterInput, result: Result) -> ClusterInput:
    """Return the cluster that a result names pools of: those of one part may be one."""
    return with_merged_pools(cluster).cluster if result.together else cluster


def _used_pools(plan: JoinedPlan, cluster: ClusterInput) -> ClusterInput:
    """Return the cluster with the pools of a plan alone."""
    places = [i for i, pool in enumerate(cluster.cluster.pools) if pool.name in plan.devices]
    used = replace(cluster.cluster, pools=tuple(cluster.cluster.pools[i] for i in places))
    sources = tuple(cluster.sources[i] for i in places)
    return replace(cluster, cluster=used, sources=sources)
