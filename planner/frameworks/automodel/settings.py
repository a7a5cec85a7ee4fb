"""What a plan is as sections of a recipe: mesh, batch, stages, recomputation, precision."""

from itertools import accumulate
from typing import Any

from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.emitted_text import yaml_scalar
from searches.frameworks.automodel.layouts import SCHEDULES

BACKEND = "nemo_automodel.components.models.common.BackendConfig"
POLICY = "torch.distributed.fsdp.MixedPrecisionPolicy"
DISPATCHERS = {"alltoall": "deepep", "allgather": "torch", "deepep": "deepep"}
DISPATCHERS["hybridep"] = "hybridep"
"""`model.backend.dispatcher` by dispatcher of a plan; one that names none has its stack's."""
OPTIMIZERS = {
    "adam": "torch.optim.AdamW",
    "sgd": "torch.optim.SGD",
}


def automodel_settings(layout: Layout, problem: Problem) -> dict[str, str]:
    """Return the dotted keys of a plan, as texts, for `planner check` to say a change in."""
    from planner.frameworks.runs.settings import flattened

    recipe = {
        "step_scheduler": batch_keys(layout),
        "model": model_keys(layout, problem.shape, problem.job),
        "distributed": distributed_keys(layout, problem.shape, problem.job),
    }
    return {key: yaml_scalar(value) for key, value in flattened(recipe).items()}


def batch_keys(layout: Layout) -> dict[str, Any]:
    """Return the batch sizes: a pipeline takes all its micro-batches as one local batch."""
    local = layout.mbs * layout.n_micro if layout.pp > 1 else layout.mbs
    return {"global_batch_size": layout.gbs, "local_batch_size": local}


def forces_transformers(layout: Layout, shape: ModelShape) -> bool:
    """Tell whether a plan needs transformers' class where there is one of its own.

    Of dense layers its own classes recompute sublayers one by one, which keeps four times what
    the plan counts, and run context parallelism by Transformer Engine alone.
    """
    recomputes = layout.recompute == "full" and layout.recompute_layers > 0
    return layout.ep == 1 and (recomputes or layout.cp > 1 or shape.n_experts > 0)


def model_keys(layout: Layout, shape: ModelShape, job: TrainingJob) -> dict[str, Any]:
    """Return the keys of `model` that a plan decides."""
    keys: dict[str, Any] = {"torch_dtype": "float32"}
    if forces_transformers(layout, shape):
        keys["force_hf"] = True
    if layout.cp > 1 and layout.ep == 1:
        keys["attn_implementation"] = "sdpa"
    if layout.ep > 1:
        keys["backend"] = {
            "_target_": BACKEND,
            "attn": "te" if layout.cp > 1 else "sdpa",
            "experts": "torch_mm",
            "dispatcher": DISPATCHERS[str(layout.value("dispatcher"))],
        }
    return keys


def distributed_keys(layout: Layout, shape: ModelShape, job: TrainingJob) -> dict[str, Any]:
    """Return the section `distributed`: mesh, sharding, recomputation, precision, pipeline.

    ZeRO-3 frees gathered weights after the forward pass, ZeRO-2 keeps them until after the
    backward; of several micro-batches gradients are reduced each, as the plan counts. A pipeline
    keeps weights gathered and reduces once a step, which is ZeRO-1.
    """
    group = layout.dp_shard // layout.cp if layout.zero else layout.dp
    wide = "float32" if job.precision == "fp32" else "bfloat16"
    keys: dict[str, Any] = {
        "strategy": "fsdp2",
        "dp_size": layout.dp,
        "dp_replicate_size": layout.dp // group,
        "tp_size": layout.tp,
        "cp_size": layout.cp,
        "pp_size": layout.pp,
        "ep_size": layout.ep,
        "sequence_parallel": layout.sp and layout.tp > 1,
        "activation_checkpointing": layout.recompute == "full" and layout.recompute_layers > 0,
        "reshard_after_forward": layout.zero == 3,
        "defer_fsdp_grad_sync": layout.pp > 1 or layout.n_micro == 1,
        "mp_policy": {
            "_target_": POLICY,
            "param_dtype": wide,
            "reduce_dtype": wide,
            "cast_forward_inputs": True,
        },
    }
    if layout.tp_overlap:
        keys |= {"enable_async_tensor_parallel": True, "enable_compile": True}
    if layout.pp > 1:
        keys["pipeline"] = pipeline_keys(layout)
    return keys


def pipeline_keys(layout: Layout) -> dict[str, Any]:
    """Return the section `distributed.pipeline`."""
    own = layout.ep > 1  # classes with experts of its own are cut into stages by themselves
    return {
        "pp_schedule": SCHEDULES[layout.schedule],
        "pp_microbatch_size": layout.mbs,
        "scale_grads_in_schedule": False,
        **({"patch_inner_model": False, "patch_causal_lm_model": False} if own else {}),
        **stage_keys(layout.stage_layers, layout.pp, layout.schedule),
    }


def stage_keys(counts: tuple[int, ...], pp: int, schedule: str) -> dict[str, Any]:
    """Return what cuts a model into stages: nothing, layers of a stage, or names of modules."""
    layers, n_stages = sum(counts), len(counts)
    if own_split(layers, n_stages) == counts:
        usual = pp if schedule in ("1f1b", "gpipe") else 2 * pp
        if n_stages == usual:
            return {}
        per_stage = -(-layers // n_stages)
        if -(-layers // per_stage) == n_stages:
            return {"layers_per_stage": per_stage}
    ends = list(accumulate(counts))
    parts = [
        [f"model.layers.{i}" for i in range(end - n, end)]
        for n, end in zip(counts, ends, strict=True)
    ]
    parts[0].insert(0, "model.embed_tokens")
    parts[-1] += ["model.norm", "lm_head"]
    return {"module_fqns_per_model_part": [[*part, "model.rotary_emb"] for part in parts]}


def own_split(layers: int, n_stages: int) -> tuple[int, ...]:
    """Return its own split: even, the first stages take the rest.

    Source: nemo_automodel 0.7.0, pipelining/functional.py, generate_hf_model_fqn_per_model_part.

    >>> own_split(30, 4)
    (8, 8, 7, 7)
    """
    share, rest = divmod(layers, n_stages)
    return tuple(share + (i < rest) for i in range(n_stages))


def optimizer_keys(job: TrainingJob) -> dict[str, Any]:
    """Return the section `optimizer`."""
    keys: dict[str, Any] = {"_target_": OPTIMIZERS[job.optimizer], "lr": 1.5e-4}
    if job.optimizer == "sgd":
        return keys | {"momentum": 0.9}
    return keys | {"betas": [0.9, 0.95], "weight_decay": 0.1}
