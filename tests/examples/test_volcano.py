"""The example for Volcano: what it fills in, and Volcano's rules, which can refuse it."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.handlers.calls import call
from tests.examples.conftest import ROOT
from tools.checkers.check_volcano import job_faults, spec_schema

SCHEDULERS = ROOT / "examples" / "schedulers"
RACK = {"pools.0.nodes": 8, "pools.0.scale_up_domain": 16}


def job() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((SCHEDULERS / "volcano_job.yaml").read_text())
    return found


def filled(cluster: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the example's job with the plan of a cluster, and that plan."""
    monkeypatch.setattr(sys, "path", [str(SCHEDULERS), *sys.path])
    import volcano_submit

    pins = {"tp": "2", "pp": "1", "zero": "1", "mbs": "1"}
    request = {"model": "llama3-8b", "cluster": cluster, "set": changes, "pins": pins, "top": 1}
    answer = call("solve", request)
    return volcano_submit.filled(job(), answer), answer["plans"][0]


def test_a_job_is_a_gang_with_the_layout_of_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    found, plan = filled("4x8xh100", {}, monkeypatch)
    assert [*job_faults(found, spec_schema())] == []
    (task,) = found["spec"]["tasks"]
    assert (task["replicas"], task["minAvailable"], found["spec"]["minAvailable"]) == (4, 4, 4)
    assert "partitionPolicy" not in task
    (container,) = task["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    env = {x["name"]: x["value"] for x in container["env"]}
    assert (env["PLAN_ID"], env["PLAN_TP"], env["PLAN_SP"]) == (plan["plan_id"], "2", "true")
    assert {f"PLAN_{axis.upper()}" for axis in plan["layout"]} <= {*env}
    assert found["metadata"]["annotations"]["planner/plan"] == plan["plan_id"]


def test_pods_of_a_domain_stay_on_one_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = filled("gb200-nvl72-x576", RACK, monkeypatch)
    assert [*job_faults(found, spec_schema())] == []
    (task,) = found["spec"]["tasks"]
    tier = {"mode": "hard", "highestTierAllowed": 1}
    assert task["partitionPolicy"] == {
        "totalPartitions": 2,
        "partitionSize": 4,
        "networkTopology": tier,
    }
    one, _ = filled("gb200-nvl72-x576", RACK | {"pools.0.nodes": 4}, monkeypatch)
    assert one["spec"]["networkTopology"] == tier
    assert "partitionPolicy" not in one["spec"]["tasks"][0]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.minAvailable", 9, "above all replicas"),
        ("spec.minAvailable", -1, "greater than or equal to 0"),
        ("spec.tasks", [], "must have 1 to"),
        ("spec.tasks.0.name", "No_Name", "does not match"),
        ("spec.tasks.0.minAvailable", 9, "'minAvailable' is greater"),
        ("spec.plugins", {"none": []}, "unable to find job plugin"),
        ("spec.nodes", 4, "unknown field"),
        (
            "spec.tasks.0.partitionPolicy",
            {"totalPartitions": 3, "partitionSize": 4},
            "TotalPartitions x PartitionSize",
        ),
        ("spec.networkTopology", {"highestTierAllowed": 1, "highestTierName": "x"}, "both"),
    ],
)
def test_volcano_refuses(path: str, value: Any, said: str) -> None:
    found = copy.deepcopy(job())
    *parents, name = path.split(".")
    at: Any = found
    for part in parents:
        at = at[int(part)] if part.isdigit() else at[part]
    at[name] = value
    assert said in "; ".join(job_faults(found, spec_schema()))


def test_definitions_of_a_folder_are_taken(tmp_path: Path) -> None:
    schema = {"properties": {"spec": {"type": "object", "properties": {}}}}
    version = {"name": "v1alpha1", "schema": {"openAPIV3Schema": schema}}
    spec = {"names": {"plural": "jobs"}, "versions": [version]}
    (tmp_path / "batch.volcano.sh_jobs.yaml").write_text(yaml.safe_dump({"spec": spec}))
    assert any("unknown field" in x for x in job_faults(job(), spec_schema(tmp_path)))
    with pytest.raises(FileNotFoundError):
        spec_schema(tmp_path / "none")
