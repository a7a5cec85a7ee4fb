"""One cell of the run matrix: a tiny job, a plan for it, and what runs the emitted files."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A tiny model, the pinned layout, and the feature that it shows."""

    name: str
    framework: str
    model: dict
    """Content of the model file: `model` and `training` sections."""
    pins: dict[str, object]
    """Axes as `--pin` takes them; `devices` is the number of ranks."""
    feature: str
    """Column of the table: dense, GQA, MoE, MLA, cp, pipeline, recompute, ZeRO-3, ..."""
    in_ci: bool = False
    env: dict[str, str] = field(default_factory=dict)
    """Further environment of the launcher."""
    pools: tuple[dict, ...] = ()
    """Pools of the cluster file that the plan is to span, with named hosts; none: one node."""
    grid: tuple[int, int, int] = (0, 0, 0)
    """Of a plan over several pools: stages, pipelines, and kinds of pipelines."""


NOT_RUN = {
    "bridge": "its recipes import Transformer Engine, which has no build for a CPU; the model, the"
    " groups and the schedules are megatron-core's, and its parser checks the recipe",
    "primus": "its Megatron-LM is a commit that no package index holds; scripts/check_primus asks"
    " its parser",
    "mindspeed": "it needs torch_npu; scripts/check_mindspeed asks its parser and its checks",
    "maxtext": "it needs Python 3.12 and JAX; scripts/check_maxtext --train runs it",
    "automodel": "its recipes start on GPUs alone; scripts/check_automodel --train runs their"
    " setup on a CPU, with stand-ins for calls of CUDA",
}
"""Frameworks whose files no smoke run starts, and why."""
