"""A policy of SkyPilot that lets a planning service choose the layout of training tasks.

In ~/.sky/config.yaml, or in that of the API server, with this file on its path:

    admin_policy: skypilot_policy.PlannerPolicy

A task says what it trains; its nodes and accelerators are those of the question:

    num_nodes: 4
    resources: {accelerators: H100:8}
    envs:
      PLANNER_MODEL: llama3-70b          # without it a task passes as it is
      PLANNER_CLUSTER: 4x8xh100@roce400  # only where the network matters: else 4x8xh100
      PLANNER_SET: training.seq_len=8192
      PLANNER_PINS: tp=8

It gets the layout of the best plan as PLAN_TP, PLAN_STAGE_LAYERS, ... for its commands. What does
not fit is refused with what would help. PLANNER_SERVER and PLANNER_TOKEN name the service.
"""

from typing import Any

import sky

from planner.client import Client

FIELDS = ("set", "pins")


def cluster_of(task: sky.Task) -> str:
    """Return the devices of a task in words: four nodes of eight H100 are `4x8xh100`."""
    parts = {}
    for resources in task.resources:
        parts |= resources.accelerators or {}
    if len(parts) != 1:
        shown = ", ".join(parts) or "none"
        raise ValueError(f"resources.accelerators must be of one kind to be planned, not {shown}")
    ((name, count),) = parts.items()
    return f"{task.num_nodes}x{count:g}x{name.lower()}"


def pairs(text: str) -> dict[str, str]:
    """Return `tp=8,pp=4` as a mapping."""
    return dict(pair.split("=", 1) for pair in text.split(",") if pair)


def text(value: Any) -> str:
    """Return a value of the layout as variables hold it: `true`, `8`, `20,20,20,20`."""
    listed = value if isinstance(value, list) else [value]
    return ",".join(str(x).lower() if isinstance(x, bool) else str(x) for x in listed)


def planned(service: Client, task: sky.Task) -> dict[str, str]:
    """Return the layout of the best plan for a task as variables; `ValueError` for none."""
    fields = {name: pairs(task.envs.get(f"PLANNER_{name.upper()}") or "") for name in FIELDS}
    cluster = task.envs.get("PLANNER_CLUSTER") or cluster_of(task)
    answer = service.solve(task.envs["PLANNER_MODEL"], cluster, top=1, **fields)
    if not answer["plans"]:
        changes = "; ".join(str(x["change"]) for x in answer["relaxations"][:3])
        raise ValueError(f"nothing fits on {cluster}; would help: {changes}")
    plan = answer["plans"][0]
    layout = {"id": plan["plan_id"], **plan["layout"], "precision": plan["precision"]}
    return {f"PLAN_{axis.upper()}": text(value) for axis, value in layout.items()}


class PlannerPolicy(sky.AdminPolicy):
    """Gives tasks that name a model the layout of their best plan."""

    @classmethod
    def validate_and_mutate(cls, user_request: sky.UserRequest) -> sky.MutatedUserRequest:
        """Return the request with the layout among the variables of its task."""
        task = user_request.task
        if "PLANNER_MODEL" in task.envs:
            with Client.from_environment() as service:
                task.update_envs(planned(service, task))
        return sky.MutatedUserRequest(task, user_request.skypilot_config)
