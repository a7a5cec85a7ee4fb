"""Volcano's rules on jobs: its schema, and what its webhook refuses beyond it.

The webhook's rules are those of pkg/webhooks/admission/jobs/validate/admit_job.go that our jobs can
break: names, counts, partitions, network topology, plugins.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.kubernetes_api.schemas import faults

SCHEMA = Path(__file__).parent / "volcano.yaml"
PLUGINS = {"env", "svc", "ssh", "mpi", "pytorch", "tensorflow", "ray", "hcclrank"}


def spec_schema(folder: Path | None = None) -> Any:
    """Return the schema of a job's spec: of a folder with Volcano's definitions, else ours."""
    if folder is None:
        return yaml.safe_load(SCHEMA.read_text())
    for path in sorted(folder.glob("*jobs.yaml")):
        document = yaml.safe_load(path.read_text())
        if document["spec"]["names"]["plural"] == "jobs":
            (version,) = document["spec"]["versions"]
            return version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    raise FileNotFoundError(f"{folder} has no batch.volcano.sh_jobs.yaml")


def job_faults(job: Mapping[str, Any], schema: Any) -> Iterator[str]:
    """Yield what is wrong with a job."""
    spec = job["spec"]
    wrong = [*faults(spec, schema, "spec")]
    yield from wrong
    if wrong:
        return
    names = [task["name"] for task in spec["tasks"]]
    if len({*names}) < len(names):
        yield f"duplicated task name in {names}"
    total = sum(task["replicas"] for task in spec["tasks"])
    if spec.get("minAvailable", 0) > total:
        yield f"job 'minAvailable' {spec['minAvailable']} is above all replicas, {total}"
    if unknown := {*spec.get("plugins", ())} - PLUGINS:
        yield f"unable to find job plugin: {sorted(unknown)}"
    yield from _topology_faults(spec.get("networkTopology"))
    for task in spec["tasks"]:
        if task.get("minAvailable", 0) > task["replicas"]:
            yield f"'minAvailable' is greater than 'replicas' in task {task['name']}"
        policy = task.get("partitionPolicy")
        if policy is not None:
            if policy["totalPartitions"] * policy["partitionSize"] != task["replicas"]:
                yield f"'Replicas' are not TotalPartitions x PartitionSize in task {task['name']}"
            yield from _topology_faults(policy.get("networkTopology"))


def _topology_faults(topology: Mapping[str, Any] | None) -> Iterator[str]:
    if topology and "highestTierAllowed" in topology and topology.get("highestTierName"):
        yield "must not specify 'highestTierAllowed' and 'highestTierName' both"
