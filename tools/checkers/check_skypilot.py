"""SkyPilot's own parser and policy machinery on examples/schedulers/skypilot_policy.py.

Runs in an environment with SkyPilot; `planner.client` is a stand-in there that answers what
PLANNER_ANSWER, a file, holds, and notes what it was asked. Prints `ok` lines; exit 1 for the first
that fails.
"""

import copy
import json
import os
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ANSWER = json.loads(Path(os.environ["PLANNER_ANSWER"]).read_text())
ASKED = []
TASK = {
    "name": "train",
    "num_nodes": 2,
    "resources": {"accelerators": "H100:8", "cloud": "kubernetes"},
    "envs": {"PLANNER_MODEL": "llama3-8b", "PLANNER_PINS": "tp=2,zero=1,mbs=1"},
    "run": "torchrun train.py --tp $PLAN_TP",
}


class Client:
    """Stands for `planner.client.Client`."""

    @classmethod
    def from_environment(cls):
        return cls()

    def __enter__(self):
        return self

    def __exit__(self, *of):
        pass

    def solve(self, model, cluster, **more):
        ASKED.append((model, cluster, more))
        return ANSWER if more.get("pins") else {**ANSWER, "plans": []}


def applied(task):
    """Return a task as SkyPilot submits it under the policy."""
    from sky.server.requests.request_names import AdminPolicyRequestName
    from sky.utils import admin_policy_utils

    dag, _ = admin_policy_utils.apply(task, AdminPolicyRequestName.CLUSTER_LAUNCH)
    return dag.tasks[0]


def main():
    planner, client = types.ModuleType("planner"), types.ModuleType("planner.client")
    client.Client = Client
    sys.modules["planner"], sys.modules["planner.client"] = planner, client
    sys.path.insert(0, str(ROOT / "examples" / "schedulers"))
    import sky

    print(f"skypilot {sky.__version__}")
    found = applied(sky.Task.from_yaml_config(copy.deepcopy(TASK)))
    plan = ANSWER["plans"][0]
    model, cluster, more = ASKED.pop()
    assert (model, cluster, more["pins"]["tp"]) == ("llama3-8b", "2x8xh100", "2"), cluster
    assert found.envs["PLAN_ID"] == plan["plan_id"]
    assert found.envs["PLAN_TP"] == str(plan["layout"]["tp"])
    again = sky.Task.from_yaml_config(found.to_yaml_config())  # SkyPilot's schema takes it
    assert again.envs == found.envs
    print("ok: a task gets the layout of its plan, and SkyPilot's schema takes it")
    plain = applied(sky.Task.from_yaml_config({**copy.deepcopy(TASK), "envs": {"A": "b"}}))
    assert (plain.envs, ASKED) == ({"A": "b"}, [])
    print("ok: a task without a model passes as it is")
    wrong = {**copy.deepcopy(TASK), "envs": {"PLANNER_MODEL": "llama3-8b"}}
    try:
        applied(sky.Task.from_yaml_config(wrong))
    except Exception as error:
        assert "nothing fits on 2x8xh100" in str(error), error
        print("ok: what does not fit is refused")
        return 0
    print("failed: what does not fit was let through")
    return 1


if __name__ == "__main__":
    sys.exit(main())
