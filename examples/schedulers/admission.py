#!/usr/bin/env python3
"""Admit a suspended Kubernetes job at the size that a planning service finds best: for Kueue.

    kubectl get job train -o json | admission.py --free-nodes 24 | kubectl apply -f -

As an admission check of Kueue, or a plug-in of Volcano, would: the job states a range of nodes and
what it trains, the scheduler says how many nodes are free, and the service says which sizes are
legal and how fast each is. Taken is the largest one at which a device still does `--efficiency` of
what it does at the smallest. The job starts with its `parallelism`, its devices a node and the
layout of the plan as PLAN_TP, PLAN_SP, ...; where no size fits it waits, and says why (code 3).

    metadata.annotations:
      planner/model: llama3-70b             as in a request; so is the next
      planner/cluster: h100-x512            its nodes are of the kind that is free
      planner/nodes: 8-64                   fewest and most
PLANNER_SERVER and PLANNER_TOKEN name the service.
"""

import argparse
import json
import sys
from typing import Any

from planner.client import Client
from planner.errors import PlannerError


def chosen(service: Client, job: dict[str, Any], free: int, least_efficiency: float) -> Any:
    """Return the answer of the size to start at, or a reason why there is none."""
    notes = job["metadata"]["annotations"]
    asked = {"model": notes["planner/model"], "cluster": notes["planner/cluster"]}
    fewest, _, most = notes["planner/nodes"].partition("-")
    low, high = int(fewest), min(int(most or fewest), free)
    if low > high:
        return f"{free} nodes are free, and it takes {low}"
    pool = service.check_spec(asked["cluster"])["document"]["pools"][0]
    per_node = pool["accelerators_per_node"]
    curve = service.scale(**asked, from_=low * per_node, to=high * per_node)
    sizes = [row for row in curve["rows"] if row["best.step_time_s"] is not None]
    if not sizes:
        return f"nothing fits on {low} to {high} nodes"
    good = [row for row in sizes if row["scale.efficiency"] >= least_efficiency] or sizes[:1]
    nodes = good[-1]["scale.size"] // per_node
    return service.solve(**asked, set={"pools.0.nodes": nodes}, top=1)


def text(value: Any) -> str:
    """Return a value of the layout as variables hold it: `true`, `8`, `20,20,20,20`."""
    listed = value if isinstance(value, list) else [value]
    return ",".join(str(x).lower() if isinstance(x, bool) else str(x) for x in listed)


def admitted(job: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return the job as it starts with the first plan of an answer."""
    plan, pool = answer["plans"][0], answer["inputs"]["cluster"]["pools"][0]
    per_node = pool["accelerators_per_node"]
    nodes = -(-plan["layout"]["n_devices"] // per_node)
    job["metadata"]["annotations"] |= {
        "planner/admitted": "Ready",
        "planner/plan": plan["plan_id"],
        "planner/step-time": f"{plan['step_time_s']:.3f}s",
    }
    job["spec"] |= {"suspend": False, "parallelism": nodes, "completions": nodes}
    for container in job["spec"]["template"]["spec"]["containers"]:
        limits = container.setdefault("resources", {}).setdefault("limits", {})
        limits["nvidia.com/gpu"] = per_node
        layout = plan["layout"] | {"precision": plan["precision"]}
        known = {f"PLAN_{axis.upper()}": text(x) for axis, x in layout.items()}
        kept = [one for one in container.get("env", []) if one["name"] not in known]
        container["env"] = kept + [{"name": k, "value": v} for k, v in known.items()]
    return job


def main() -> int:
    """Read a job, decide, print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--free-nodes", type=int, required=True)
    parser.add_argument("--efficiency", type=float, default=0.8)
    given = parser.parse_args()
    job = json.load(sys.stdin)
    with Client.from_environment() as service:
        found = chosen(service, job, given.free_nodes, given.efficiency)
    if isinstance(found, str):
        job["metadata"]["annotations"] |= {"planner/admitted": "Retry", "planner/reason": found}
    print(json.dumps(job if isinstance(found, str) else admitted(job, found), indent=1))
    return 3 if isinstance(found, str) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PlannerError as error:
        sys.exit(f"error: {error}")
    except json.JSONDecodeError as error:
        sys.exit(f"error: standard input is no job in JSON: {error}")
    except KeyError as error:
        sys.exit(f"error: the job has no {error}; the annotations that it needs stand in --help")
