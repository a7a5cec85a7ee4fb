"""Ray Train on examples/schedulers/ray_train.py: a local cluster, two workers, gloo on the CPU.

Runs in an environment with ray[train] and torch; `planner.client` is a stand-in that answers what
PLANNER_ANSWER, a file, holds. Prints `ok` lines; exit 1 where a worker did not get the layout.
"""

import json
import os
import sys
import tempfile
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ANSWER = json.loads(Path(os.environ["PLANNER_ANSWER"]).read_text())
N_WORKERS = 2


class Service:
    """Stands for `planner.client.Client`: a node of two devices, and the plan for it."""

    def __init__(self):
        self.asked = []

    def check_spec(self, cluster):
        return {"document": {"pools": [{"accelerators_per_node": N_WORKERS, "nodes": 4}]}}

    def solve(self, model, cluster, **more):
        self.asked.append(more)
        return ANSWER


def loop(config):
    """Note what a worker was told; ranks meet once."""
    import torch.distributed as dist

    dist.barrier()
    path = Path(config["folder"]) / f"{dist.get_rank()}.json"
    path.write_text(json.dumps({"world": dist.get_world_size(), **config}))


def main():
    planner, client = types.ModuleType("planner"), types.ModuleType("planner.client")
    client.Client = Service
    sys.modules["planner"], sys.modules["planner.client"] = planner, client
    sys.path.insert(0, str(ROOT / "examples" / "schedulers"))
    import ray
    import ray_train

    print(f"ray {ray.__version__}")
    ray.init(num_cpus=N_WORKERS + 1, num_gpus=N_WORKERS, include_dashboard=False)
    service = Service()
    plan, per_node = ray_train.best_plan(service, "llama3-8b", "2xh100")
    assert service.asked == [{"set": {"pools.0.nodes": 1}, "top": 1}], service.asked
    print("ok: it asks for the nodes that are there")
    genuine = ray_train.ScalingConfig

    def on_cpu(**fields):
        assert genuine(**fields).use_gpu  # Ray takes what the example says
        return genuine(**{**fields, "use_gpu": False})

    ray_train.ScalingConfig = on_cpu
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAY_AIR_LOCAL_CACHE_DIR"] = folder
        plan["layout"] = {**plan["layout"], "folder": folder}
        ray_train.run(plan, per_node, loop)
        told = [json.loads((Path(folder) / f"{i}.json").read_text()) for i in range(N_WORKERS)]
    for one in told:
        assert (one["world"], one["plan_id"], one["tp"]) == (
            N_WORKERS,
            plan["plan_id"],
            plan["layout"]["tp"],
        ), one
    print(f"ok: {N_WORKERS} workers of TorchTrainer got the layout of plan {plan['plan_id']}")
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
