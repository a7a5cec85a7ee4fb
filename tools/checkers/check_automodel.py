"""Ask NeMo AutoModel itself: runs in an environment that has it, on the CPU.

    check_automodel.py --configs FILE    # a line of JSON a recipe: what its own code makes of it
    torchrun ... check_automodel.py --train RECIPE --layers N [--key.of.recipe VALUE ...]
                                         # trains: mesh, placements and losses as JSON

`--configs` reads lines `{"name", "file", "n_devices", "layers"}`. The recipe goes through its
loader, `RecipeConfig` and `create_distributed_setup_from_config` over a mesh of fake processes, so
that any number of devices is asked about in one. `--train` starts the recipe's own class; calls
that there are only with CUDA stand still.
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("MODEL", "model_config.json")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

PREFIX = "automodel-check "
"""Start of the lines that are answers."""


def say(answer: dict[str, Any]) -> None:
    """Print one answer."""
    print(PREFIX + json.dumps(answer), flush=True)


def stages_of(pipeline: Any, pp: int, layers: int) -> list[int]:
    """Return the layers of each virtual stage, as its own functions cut them."""
    from nemo_automodel.components.distributed.pipelining import functional
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

    kind = get_schedule_class(pipeline.pp_schedule)
    parts = pipeline.module_fqns_per_model_part
    if parts is None:
        n_stages, _ = functional.calculate_virtual_stages(
            layers,
            pipeline.layers_per_stage,
            pp,
            issubclass(kind, PipelineScheduleSingle),
            pipeline.round_virtual_stages_to_pp_multiple,
        )
        parts = functional.generate_hf_model_fqn_per_model_part(n_stages, layers)
    if len(parts) % pp:
        raise ValueError(f"{len(parts)} stages on {pp} ranks")
    return [sum(".layers." in name for name in part) for part in parts]


def facts_of(file: str, n_devices: int, layers: int) -> dict[str, Any]:
    """Return what its own code makes of a recipe; whatever it raises goes through."""
    import torch.distributed as dist
    from nemo_automodel.cli.utils import load_yaml, resolve_recipe_name
    from nemo_automodel.components.config.loader import load_yaml_config
    from nemo_automodel.recipes._dist_utils import create_distributed_setup_from_config
    from nemo_automodel.recipes._typed_config import RecipeConfig
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torch.testing._internal.distributed.fake_pg import FakeStore

    recipe = resolve_recipe_name(load_yaml(file)["recipe"])
    dist.init_process_group("fake", rank=0, world_size=n_devices, store=FakeStore())
    try:
        raw = load_yaml_config(file)
        config = RecipeConfig(raw)
        setup = create_distributed_setup_from_config(config, world_size=n_devices)
        mesh, strategy, pipeline = setup.mesh_context, setup.strategy_config, setup.pipeline_config
        local = raw.get("step_scheduler.local_batch_size", 1)
        plan = config.step_scheduler
        plan.preemption_signal = None
        scheduler = plan.build([0] * 10**4, mesh.dp_size, local)
        shards = mesh.moe_mesh["ep_shard"].size() if mesh.moe_mesh is not None else 1
        backend = raw.get("model.backend", None)
        facts: dict[str, Any] = {
            "recipe": recipe.rpartition(".")[2],
            "ranks": mesh.device_mesh.size(),
            "tp": mesh.tp_size,
            "pp": mesh.pp_size,
            "cp": mesh.cp_size,
            "ep": mesh.ep_size,
            "dp": mesh.dp_size,
            "replicas": mesh.dp_replicate_size,
            "shard": mesh.dp_shard_size * mesh.cp_size,
            "ep_shard": shards,
            "sp": strategy.sequence_parallel,
            "recomputes": setup.activation_checkpointing,
            "reshards": strategy.reshard_after_forward,
            "defers": strategy.defer_fsdp_grad_sync,
            "param": str(strategy.mp_policy.param_dtype),
            "reduce": str(strategy.mp_policy.reduce_dtype),
            "accumulated": scheduler.grad_acc_steps,
            "max_steps": scheduler.max_steps,
            "optimizer": config.optimizer.factory.__name__,
            "seq_len": config.dataloader.dataset_config.seq_len,
            "vocab": config.dataloader.dataset_config.vocab_size,
            "loader_batch": raw.dataset.batch_size,
            "checkpoints": config.checkpoint.enabled,
            "loss": type(config.loss_fn.build()).__name__,
            "force_hf": raw.get("model.force_hf", False),
            "dispatcher": backend.instantiate().dispatcher if backend is not None else "",
        }
        if pipeline is not None:
            facts |= {
                "schedule": get_schedule_class(pipeline.pp_schedule).__name__,
                "pp_mbs": pipeline.pp_microbatch_size,
                "local": local,
                "stages": stages_of(pipeline, mesh.pp_size, layers),
            }
        return facts
    finally:
        dist.destroy_process_group()


def ask_configs(file: str) -> int:
    """Answer about every recipe of a file of lines."""
    with open(file, encoding="utf-8") as lines:
        for line in lines:
            one = json.loads(line)
            try:
                answer = facts_of(one["file"], one["n_devices"], one["layers"])
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"[:600]}
                if not isinstance(error, ValueError | TypeError | AssertionError):
                    answer["trace"] = traceback.format_exc()[-600:]
            say({"name": one["name"], **answer})
    return 0


def without_cuda() -> None:
    """Let calls that there are only with CUDA stand still, and its devices be the CPU."""
    import torch

    for name in ("reset_peak_memory_stats", "empty_cache", "synchronize", "set_device"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.max_memory_allocated = lambda *_, **__: 0
    torch.cuda.current_device = lambda: "cpu"
    real = torch.device

    class OnCpu(type):
        def __instancecheck__(cls, value: object) -> bool:
            return type(value) is real

        def __call__(cls, kind: Any = "cpu", *more: Any) -> Any:
            return real("cpu") if str(kind).startswith("cuda") else real(kind, *more)

    torch.device = OnCpu("device", (), {})


def train(file: str, words: Sequence[str]) -> int:
    """Train the recipe on the processes that torchrun started; say mesh, shards and losses."""
    import torch

    without_cuda()
    from nemo_automodel.cli.utils import load_yaml, resolve_recipe_name
    from nemo_automodel.components.config._arg_parser import parse_args_and_load_config
    from nemo_automodel.components.launcher.interactive import resolve_recipe_cls
    from torch.distributed.tensor import DTensor

    config = parse_args_and_load_config(file, argv=list(words))
    cls = resolve_recipe_cls(resolve_recipe_name(load_yaml(file)["recipe"]))
    losses: list[float] = []

    def keep_loss(self: Any, data: Any, *_: Any, **__: Any) -> None:
        losses.append(float(data.metrics["loss"]))

    cls.log_train_metrics = keep_loss
    recipe = cls(config)
    recipe.setup()
    before = [p.detach().clone() for part in recipe.model_parts for p in part.parameters()]
    recipe.run_train_validation_loop()
    after = [p.detach() for part in recipe.model_parts for p in part.parameters()]
    moved = sum(not torch.equal(_local(a), _local(b)) for a, b in zip(before, after, strict=True))
    mesh = recipe.mesh_context
    weights = {
        name: [tuple(str(x) for x in p.placements), list(p.to_local().shape), list(p.shape)]
        if isinstance(p, DTensor)
        else ["whole", list(p.shape), list(p.shape)]
        for part in recipe.model_parts
        for name, p in part.named_parameters()
    }
    say(
        {
            "rank": torch.distributed.get_rank(),
            "tp": mesh.tp_size,
            "pp": mesh.pp_size,
            "cp": mesh.cp_size,
            "ep": mesh.ep_size,
            "dp": mesh.dp_size,
            "replicas": mesh.dp_replicate_size,
            "steps": len(losses),
            "losses": losses,
            "moved": moved,
            "tensors": len(after),
            "weights": weights,
            "classes": sorted({type(part).__module__ for part in recipe.model_parts}),
        }
    )
    return 0


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def main() -> int:
    """Answer one question."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--configs")
    parser.add_argument("--train")
    given, words = parser.parse_known_args()
    if given.configs:
        return ask_configs(given.configs)
    if given.train:
        return train(given.train, words)
    parser.print_help()
    return 2


if __name__ == "__main__":
    sys.exit(main())
