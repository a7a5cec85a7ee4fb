#!/usr/bin/env python3
"""Start training on a Ray cluster with the layout that a planning service chooses.

    ray_train.py llama3-70b h100-x512 my_module:train_loop

The loop is called on every worker, one a device, with the axes of the plan in its configuration;
workers are packed onto nodes, so that ranks lie as the plan was priced. Where nodes are lost, Ray
calls the loop again on those that are left: it is planned anew for them before that.
PLANNER_SERVER and PLANNER_TOKEN name the service.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchTrainer

from planner.client import Client


def whole_nodes(per_node: int) -> int:
    """Return how many nodes of the Ray cluster are there with all their devices."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sum(node["Resources"].get("GPU", 0) >= per_node for node in alive)


def best_plan(service: Client, model: str, cluster: str) -> tuple[dict[str, Any], int]:
    """Return the best plan for the nodes that are there, and the devices of one."""
    pool = service.check_spec(cluster)["document"]["pools"][0]
    per_node = pool["accelerators_per_node"]
    nodes = min(pool["nodes"], whole_nodes(per_node))
    answer = service.solve(model, cluster, set={"pools.0.nodes": nodes}, top=1)
    if not answer["plans"]:
        sys.exit(f"nothing fits on {nodes} nodes: {answer['relaxations'][:1]}")
    return answer["plans"][0], per_node


def run(plan: dict[str, Any], per_node: int, loop: Callable[[dict[str, Any]], None]) -> None:
    """Train with a plan until it ends."""
    layout = plan["layout"]
    nodes = -(-layout["n_devices"] // per_node)
    trainer = TorchTrainer(
        loop,
        train_loop_config={"plan_id": plan["plan_id"], **layout},
        scaling_config=ScalingConfig(
            num_workers=layout["n_devices"],
            use_gpu=True,
            placement_strategy="PACK",
        ),
        run_config=RunConfig(
            name=f"plan-{plan['plan_id']}-{nodes}-nodes",
            failure_config=FailureConfig(max_failures=0),
        ),
    )
    trainer.fit()


def main(model: str, cluster: str, loop: str) -> None:
    """Plan, train, and plan again where nodes were lost."""
    module, _, name = loop.partition(":")
    function = getattr(importlib.import_module(module), name)
    ray.init(address="auto")
    with Client.from_environment() as service:
        for attempt in range(5):
            try:
                return run(*best_plan(service, model, cluster), function)
            except TrainingFailedError as error:
                print(f"attempt {attempt + 1} ended: {error}; planning for what is left")
        sys.exit("gave up after five attempts")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
