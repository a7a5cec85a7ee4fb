"""What a plan is as keys of Accelerate's file and arguments of the Trainer."""

import json

from costmodels.plans import Layout
from costmodels.problem import Problem
from planner.frameworks.fsdp2.emitter import launch_config, trainer_args
from planner.frameworks.runs.settings import flattened


def fsdp2_settings(layout: Layout, problem: Problem) -> dict[str, str]:
    """Return the keys of a plan with their values."""
    config = launch_config(layout, problem.job, problem.pool)
    settings = {key: json.dumps(value) for key, value in flattened(config).items()}
    return settings | {k: json.dumps(v) for k, v in trainer_args(layout, problem.job).items()}
