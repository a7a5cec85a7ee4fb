"""What a plan is as fields of torchtitan's recipes, or keys of its job files."""

import json

from costmodels.plans import Layout
from costmodels.problem import Problem
from planner.frameworks.runs.existing_run import NO_KEY
from planner.frameworks.torchtitan.fields import batch, compiler, parallelism
from planner.frameworks.torchtitan.toml import recompute_keys


def recipe_settings(layout: Layout, problem: Problem) -> dict[str, str]:
    """Return the fields of a plan's recipe with their values."""
    settings = {f"parallelism.{key}": json.dumps(v) for key, v in parallelism(layout).items()}
    settings |= {f"training.{key}": json.dumps(value) for key, value in batch(layout).items()}
    settings |= {f"compile.{key}": json.dumps(value) for key, value in compiler(layout).items()}
    if layout.recompute == "full":
        some = layout.recompute_layers < max(layout.stage_layers)
        what = f"first {layout.recompute_layers} layers of a stage" if some else "full"
        return settings | {"activation_checkpoint": what}
    return settings | {"activation_checkpoint": layout.recompute}


def job_file_settings(layout: Layout, problem: Problem) -> dict[str, str]:
    """Return the keys of a job file; `NO_KEY` where no key says the recomputation."""
    settings = recipe_settings(layout, problem)
    settings.pop("parallelism.enable_sequence_parallel")
    if layout.tp_overlap:
        result = settings.pop("compile.enable_async_tensor_parallel")
        settings["parallelism.enable_async_tensor_parallel"] = result
    message = settings.pop("activation_checkpoint")
    keys = recompute_keys(layout)
    if not keys:
        return settings | {NO_KEY: message}
    return settings | {f"activation_checkpoint.{key}": json.dumps(v) for key, v in keys.items()}
