#!/usr/bin/env python3
"""Build the model of one rank with torchtitan's own code and compare it with the plan. CPU only.

  build_torchtitan.py DIR...      # folders with an emitted torchtitan_recipe.py; a fork per folder

The recipe runs, ParallelDims builds its mesh over a pretended world, parallelize_fn and pipelining_fn
split, shard and wrap the model on meta tensors: everything of a start but memory and traffic. Compared
are the layers of each model part, the micro-batches, the ranks that FSDP shards and replicates over,
what it does after the forward pass, and which modules are recomputed; parameters are printed.
Exit 0 as planned, 1 a difference or a refusal.
"""
import importlib.util
import json
import logging
import os
import sys
import time
import traceback

FACTS = "# layout: "


def load():
    """Import what every fork needs once."""
    logging.disable(logging.WARNING)
    import torchtitan.tools.utils as utils

    utils.device_type = "cpu"  # before the mesh is built with it
    for name in ("trainer", "models.llama3", "models.qwen3", "models.deepseek_v3", "models.gpt_oss"):
        importlib.import_module(f"torchtitan.{name}")


def build(folder, plan):
    """Return the parts of the last rank's model, and the configuration."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import utils as titan

    world = plan["n_devices"]
    os.environ.update(RANK=str(world - 1), WORLD_SIZE=str(world), LOCAL_RANK="0")
    dist.init_process_group("fake", store=FakeStore(), rank=world - 1, world_size=world)
    sys.path.insert(0, folder)
    cfg = ConfigManager().parse_args(["--module", "torchtitan_recipe", "--config", "train"])
    dims = ParallelDims.from_config(cfg.parallelism, world)
    dims.build_mesh()
    titan.set_spmd_backend(cfg.parallelism.spmd_backend)
    spec = cfg.model_spec
    spec.model.update_from_config(config=cfg)
    with torch.device("meta"):
        model = spec.model.build()
    model.verify_module_protocol()
    n_params = sum(p.numel() for p in model.parameters())
    known = {"parallel_dims": dims, "training": cfg.training, "parallelism": cfg.parallelism,
             "compile_config": cfg.compile, "ac_config": cfg.activation_checkpoint, "dump_folder": folder}
    if not dims.pp_enabled:
        batch = cfg.training.local_batch_size * dims.dp_replicate * dims.dp_shard
        return [spec.parallelize_fn(model, **known)], cfg.training.global_batch_size // batch, n_params
    schedule, parts, _, _ = spec.pipelining_fn(
        model, **known, device=torch.device("cpu"), model_config=spec.model, parallelize_fn=spec.parallelize_fn,
        loss_fn=cfg.loss.build(compile_config=cfg.compile))
    return parts, schedule._n_microbatches, n_params


def derived(folder, plan):
    """Return what torchtitan made of the recipe."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
    from torch.distributed.fsdp import FSDPModule

    parts, n_micro, n_params = build(folder, plan)
    groups = [g for part in parts for block in part.layers.children() for module in block.modules()
              if isinstance(module, FSDPModule) for g in module._get_fsdp_state()._fsdp_param_groups]
    mesh = groups[0].mesh_info
    return {
        "layers": [[int(name) for name in part.layers] for part in parts],
        "n_micro": n_micro,
        "shard": mesh.shard_mesh_size,
        "replicas": getattr(mesh, "replicate_mesh_size", 1),
        "reshard": groups[0]._reshard_after_forward,
        "recomputed": [sum(isinstance(m, CheckpointWrapper) for m in part.modules()) for part in parts],
        "params": n_params,
    }


def wanted(plan):
    """Return the same according to the plan."""
    counts, pp, rank = plan["stage_layers"], plan["pp"], plan["pp"] - 1
    held = range(rank, len(counts), pp)
    if plan["schedule"] in ("zb-v", "dualpipe-v"):
        held = sorted((rank, 2 * pp - 1 - rank))
    layers = [list(range(sum(counts[:j]), sum(counts[:j + 1]))) for j in held]
    ranks = plan["dp"] * plan["cp"]
    shard = (plan["shard"] or ranks) if plan["zero"] else 1
    most = {"none": 0, "full": plan["recompute_layers"]}.get(plan["recompute"])
    return {
        "layers": layers,
        "n_micro": plan["n_micro"],
        "shard": shard,
        "replicas": ranks // shard,
        "reshard": plan["zero"] == 3,
        "recomputed": [len(x) if most is None else min(most, len(x)) for x in layers],
    }


def check(folder):
    """Return (what was derived, what differs)."""
    with open(os.path.join(folder, "torchtitan_recipe.py")) as f:
        plan = json.loads(next(line for line in f if line.startswith(FACTS))[len(FACTS):])
    try:
        got = derived(folder, plan)
    except BaseException:
        return {}, [traceback.format_exc()[-2000:]]
    return got, [f"{k} is {got[k]}, the plan says {v}" for k, v in wanted(plan).items() if got[k] != v]


def main():
    load()
    code = 0
    for name in sys.argv[1:]:
        folder, started = os.path.abspath(name), time.monotonic()
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(write, json.dumps(check(folder)).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            got, differs = json.loads(pipe.read() or b'[{}, ["died"]]')
        os.waitpid(pid, 0)
        code |= bool(differs)
        short = {k: v for k, v in got.items() if k != "layers"}
        print("DIFFERS" if differs else "as planned", os.path.basename(folder), short,
              f"{time.monotonic() - started:.1f} s", *differs, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
