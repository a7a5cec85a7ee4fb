"""Where a run over several pools stands among the plans of its framework on the same nodes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.analyze.check.report import Standing
from planner.solver.answer.result import Plan
from planner.solver.execution import Execution
from planner.solver.options import SolveOptions
from planner.solver.solve import solve_again
from planner.solver.together.records import JoinedPlan
from planner.specs.importers.hostlist import compress_hosts
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict
from planner.specs.search.section import TOGETHER
from searches.executors.executor import SerialExecutor

N_PLANS = 20
"""Plans that a run is ranked among."""
SAME = 1e-9
"""Share of the step that is rounding."""


@dataclass(frozen=True, slots=True)
class JoinedStanding(Standing):
    """The standing of a run over several pools: `rank` and `n_fit` are of the plans found."""

    joined: JoinedPlan | None = None
    """The best plan over these pools that the framework runs; None where none fits."""
    alone: Plan | None = None
    """The best plan on one of the pools."""
    bound_s: float | None = None
    """No plan over these pools has a shorter step."""

    def to_json(self) -> dict[str, Any]:
        """Return the standing with the field names of the report's schema, plans as `together`."""
        together = {
            "best": self.joined.to_json() if self.joined else None,
            "alone": self.alone.to_json() if self.alone else None,
            "bound_s": self.bound_s,
        }
        return {**Standing.to_json(self), "together": together}


def joined_standing(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    step_s: float,
    stop: Callable[[], bool] | None,
    *,
    fits: bool,
) -> JoinedStanding:
    """Return the place of a run among the plans that the search of its framework finds.

    On the nodes of the run alone (`nodes_of_run`). A run that does not fit has no rank.
    """
    asked = replace(options, stack="", pools=TOGETHER, top=N_PLANS)
    result = solve_again(model, cluster, asked, Execution(SerialExecutor(), stop))
    together = result.together
    plans = [x for x in together.plans if x.runs_on] if together else []
    joined = min(plans, key=lambda x: x.step_time_s, default=None)
    alone = min(result.plans, key=lambda x: x.step_time_s, default=None)
    least = min((x.step_time_s for x in (joined, alone) if x), default=None)
    n_faster = sum(x.step_time_s < step_s * (1.0 - SAME) for x in plans)
    return JoinedStanding(
        best=None,
        ratio=step_s / least if least else None,
        rank=n_faster + 1 if fits and not result.stopped else None,
        n_fit=len(plans),
        stopped=result.stopped,
        joined=joined,
        alone=alone,
        bound_s=together.bound_s if together else None,
    )


def nodes_of_run(cluster: ClusterInput, counts: Mapping[str, int]) -> ClusterInput:
    """Return the cluster with the nodes that a run starts on alone; `counts` are those by pool."""
    document = cluster.document
    entries = []
    for entry, source in zip(document["pools"], cluster.sources, strict=True):
        n = counts.get(entry["name"], 0)
        if not n:
            continue
        left_out = ("hosts", "free_nodes") if n != entry["nodes"] else ()
        own = {k: v for k, v in entry.items() if k not in left_out} | {"nodes": n}
        if left_out and len(source.hosts) >= n:
            own["hosts"] = compress_hosts(source.hosts[:n])
        entries.append(own)
    links = [x for x in document.get("links") or () if set(x["between"]) <= set(counts)]
    rest = {k: v for k, v in document.items() if k != "links"}
    return cluster_from_dict({**rest, "pools": entries, **({"links": links} if links else {})})
