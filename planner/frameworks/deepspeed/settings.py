"""What a plan is as keys of DeepSpeed's JSON."""

import json

from costmodels.plans import Layout
from costmodels.problem import Problem
from planner.frameworks.deepspeed.emitter import deepspeed_config
from planner.frameworks.runs.settings import flattened


def deepspeed_settings(layout: Layout, problem: Problem) -> dict[str, str]:
    """Return the keys of a plan with their values, and what the training script is told."""
    config = deepspeed_config(layout, problem.shape, problem.job)
    settings = {key: json.dumps(value) for key, value in flattened(config).items()}
    if layout.pp > 1:
        settings["pipeline stages"] = str(layout.pp)
    if layout.recompute != "none":
        kind = layout.recompute
        layers = f" of {layout.recompute_layers} layers" if kind == "full" else ""
        settings["recomputation in the script"] = f"{kind}{layers}"
    return settings
