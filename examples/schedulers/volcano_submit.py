#!/usr/bin/env python3
"""Fill a Volcano job with the size and layout that a planning service finds best.

    volcano_submit.py < job.yaml | kubectl create -f -

The job says in annotations what it trains; its first task becomes as many pods as the plan has
nodes, all of them at once (gang), with the layout as PLAN_TP, PLAN_STAGE_LAYERS, ... Where the
plan counts on scale-up domains larger than a node, pods of a domain stay on one tier of
Volcano's network topology (HyperNodes). Where nothing fits nothing is printed (exit code 3).

    metadata.annotations:
      planner/model: llama3-70b             as in a request; so are the next
      planner/cluster: h100-x512
      planner/set: pools.0.nodes=32
      planner/pins: tp=8
      planner/domain-tier: "1"              tier of HyperNodes that is a scale-up domain
PLANNER_SERVER and PLANNER_TOKEN name the service.
"""

import sys
from typing import Any

import yaml

from planner.client import Client
from planner.errors import PlannerError


def pairs(text: str) -> dict[str, str]:
    """Return `tp=8,pp=4` as a mapping."""
    return dict(pair.split("=", 1) for pair in text.split(",") if pair)


def text(value: Any) -> str:
    """Return a value of the layout as variables hold it: `true`, `8`, `20,20,20,20`."""
    listed = value if isinstance(value, list) else [value]
    return ",".join(str(x).lower() if isinstance(x, bool) else str(x) for x in listed)


def filled(job: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return the job with the first plan of an answer."""
    plan, notes = answer["plans"][0], job["metadata"]["annotations"]
    pools = {pool["name"]: pool for pool in answer["inputs"]["cluster"]["pools"]}
    pool, layout = pools[plan["pool"]], plan["layout"]
    per_node = min(pool["accelerators_per_node"], layout["n_devices"])
    nodes = -(-layout["n_devices"] // per_node)
    task, *others = job["spec"]["tasks"]
    task |= {"replicas": nodes, "minAvailable": nodes}
    # All or nothing: no pod of a plan runs without the others.
    counts = [x.get("minAvailable", x.get("replicas", 1)) for x in others]
    job["spec"] |= {"minAvailable": nodes + sum(counts), "schedulerName": "volcano"}
    inside = pool["scale_up_domain"] // pool["accelerators_per_node"]
    tier = {"mode": "hard", "highestTierAllowed": int(notes.get("planner/domain-tier", 1))}
    if 1 < inside < nodes and nodes % inside == 0:
        task["partitionPolicy"] = {
            "totalPartitions": nodes // inside,
            "partitionSize": inside,
            "networkTopology": tier,
        }
    elif inside > 1 and nodes <= inside:
        job["spec"]["networkTopology"] = tier
    known = {"id": plan["plan_id"], **layout, "precision": plan["precision"]}
    variables = {f"PLAN_{axis.upper()}": text(value) for axis, value in known.items()}
    for container in task["template"]["spec"]["containers"]:
        container.setdefault("resources", {}).setdefault("limits", {})["nvidia.com/gpu"] = per_node
        kept = [x for x in container.get("env", []) if x["name"] not in variables]
        container["env"] = kept + [{"name": k, "value": v} for k, v in variables.items()]
    notes["planner/plan"] = plan["plan_id"]
    return job


def main() -> int:
    """Read a job, ask, print it."""
    job = yaml.safe_load(sys.stdin)
    notes = job["metadata"]["annotations"]
    fields = {x: pairs(notes[f"planner/{x}"]) for x in ("set", "pins") if f"planner/{x}" in notes}
    with Client.from_environment() as service:
        answer = service.solve(notes["planner/model"], notes["planner/cluster"], top=1, **fields)
    if not answer["plans"]:
        sys.stderr.write("nothing fits; what would help:\n")
        sys.stderr.writelines(f"  {change['change']}\n" for change in answer["relaxations"])
        return 3
    yaml.safe_dump(filled(job, answer), sys.stdout, sort_keys=False)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PlannerError as error:
        sys.exit(f"error: {error}")
    except (yaml.YAMLError, TypeError, ValueError) as error:
        sys.exit(f"error: standard input is no Volcano job: {error}")
    except KeyError as error:
        sys.exit(f"error: the job has no {error}; what it needs stands at the head of this file")
