"""Fields of torchtitan's configuration that it refuses beside each other.

Settings are the fields with dots between the levels (`parallelism.tensor_parallel_degree`), of job
files up to 0.2.2 and of recipes from 0.3.0 alike. Codes go on from those of `torchtitan`: TTN12x
degrees and batch, TTN22x pipeline, TTN32x experts, TTN42x data parallelism, TTN52x compiler and
recompute.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from searches.frameworks.case import Case, NotStatedError
from searches.frameworks.rule import (
    Enforcement,
    FrameworkRule,
    conditions_rule,
    holding,
    setting_rule,
)
from searches.frameworks.torchtitan.layouts import MESH, PIPELINE, SCHEDULES_PY, TRAINER

CONFIGS = "torchtitan/config/configs.py"
MANAGER = "torchtitan/config/manager.py, ConfigManager"
DEGREES = (
    "data_parallel_replicate",
    "data_parallel_shard",
    "context_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
)
"""First words of the degrees, `parallelism.<..>_degree`."""
SCHEDULES = {
    "1f1b": 1,
    "gpipe": 1,
    "interleaved1f1b": 2,
    "loopedbfs": 2,
    "interleavedzerobubble": 2,
    "zbvzerobubble": 2,
    "dualpipev": 2,
    "pipelineschedulesingle": 1,
    "pipelineschedulemulti": 2,
}
"""Stages a rank of each schedule of torch.distributed.pipelining, which reads any case: one, or
two and more."""
IN_A_V = ("zbvzerobubble", "dualpipev")
"""Schedules with exactly two stages a rank."""
WORDS: Mapping[str, tuple[str, ...]] = {
    "parallelism.fsdp_reshard_after_forward": ("default", "always", "never"),
    "parallelism.spmd_backend": ("partial_dtensor", "full_dtensor", "spmd_types"),
    "parallelism.context_parallel_rotate_method": ("allgather", "alltoall"),
    "parallelism.context_parallel_load_balancer": ("headtail", "ptrr"),
    "parallelism.expert_parallel_comm_backend": ("standard", "deepep"),
    "training.dtype": ("bfloat16", "float32"),
    "training.mixed_precision_param": ("bfloat16", "float32"),
    "training.mixed_precision_reduce": ("float32",),
    "activation_checkpoint.mode": ("selective", "full", "memory_budget", "none"),
}
"""Words that fields take."""

_enforced_in = partial(Enforcement, "torchtitan")


def config_field(c: Case, name: str, default: Any = None) -> Any:
    """Return a field of the run, `default` where it is not set."""
    return c.setting(name, default)


def _degree(c: Case, axis: str) -> int:
    return int(config_field(c, f"parallelism.{axis}_degree", -1 if axis.endswith("shard") else 1))


def _mesh(c: Case) -> list[str]:
    degrees = {axis: _degree(c, axis) for axis in DEGREES}
    low = [axis for axis, n in degrees.items() if n < 1 and (axis != DEGREES[1] or n != -1)]
    if low:
        return [f"{axis}_degree {degrees[axis]}" for axis in low]
    shard = degrees.pop(DEGREES[1])
    del degrees["expert_parallel"]
    rest = 1
    for n in degrees.values():
        rest *= n
    total = rest * (shard if shard > 0 else c.n_devices // rest)
    text = " x ".join(f"{axis} {n}" for axis, n in degrees.items() if n > 1)
    sharded = f"{text} x {DEGREES[1]} {shard}" if shard > 0 else text
    return [f"{sharded or 'degrees'} do not make {c.n_devices} devices"] * (
        total != c.n_devices or rest > c.n_devices
    )


def _replicas(c: Case) -> int:
    shard = _degree(c, DEGREES[1])
    model = c.tp * c.pp * c.cp
    if shard > 0:
        return _degree(c, DEGREES[0]) * shard
    if c.n_devices % model:
        raise NotStatedError
    return int(c.n_devices // model)


def _batch(c: Case) -> list[str]:
    local = config_field(c, "training.local_batch_size", 8)
    total = config_field(c, "training.global_batch_size", -1)
    if local < 1 or total == 0:
        name, n = ("local", local) if local < 1 else ("global", total)
        return [f"training.{name}_batch_size {n}"]
    maximum = local * _replicas(c)
    if total < 0 or total % maximum == 0:
        return []
    return [f"training.global_batch_size {total} is no multiple of {local} x {_replicas(c)}"]


def _whole_batch(c: Case) -> str:
    local = config_field(c, "training.local_batch_size", 8)
    if local < 1:
        return "training.local_batch_size 1, or more"
    total, maximum = config_field(c, "training.global_batch_size", -1), local * _replicas(c)
    padded = max(1, -(-total // maximum)) * maximum
    return f"training.global_batch_size {padded}, or -1, which takes {maximum}"


def _schedule(c: Case) -> str:
    return str(config_field(c, "parallelism.pipeline_parallel_schedule", "1F1B")).lower()


def _ends(c: Case) -> tuple[int, int]:
    """Return what embedding and head weigh, in layers."""
    name = "parallelism.pipeline_parallel_{}_stage_less_layers"
    return int(config_field(c, name.format("first"), 1)), int(
        config_field(c, name.format("last"), 1)
    )


def _cut_stages(c: Case) -> int | None:
    """Return the number of stages of a named size; None where none is named."""
    per_stage = config_field(c, "parallelism.pipeline_parallel_layers_per_stage")
    if per_stage is None:
        return None
    return int(-(-(c.model.layers + sum(_ends(c))) // per_stage))


def _of_a_rank(c: Case, stages: int, least: int) -> list[str]:
    """Return what is wrong with so many stages; `least` are those that a rank has at least."""
    if stages % c.pp:
        return [f"{stages} stages do not divide by pp {c.pp}"]
    each, name = stages // c.pp, _schedule(c)
    return holding(
        {
            f"{each} stages a rank, {name} has one": SCHEDULES[name] == 1 and each != 1,
            f"{each} stages a rank, {name} has {least} at least": SCHEDULES[name] > 1
            and each < least,
            f"{each} stages a rank, {name} has exactly two": name in IN_A_V and each != 2,
        }
    )


def _stages(c: Case) -> list[str]:
    """Return what is wrong with the stages of a pipeline.

    Two a rank are asked of a loop only where layers are counted: it runs one that is spelled out.
    """
    if c.pp == 1:
        return []
    if _schedule(c) not in SCHEDULES:
        schedule = config_field(c, "parallelism.pipeline_parallel_schedule")
        return [f"parallelism.pipeline_parallel_schedule {schedule} is not known"]
    parts, cut = config_field(c, "parallelism.module_fqns_per_model_part"), _cut_stages(c)
    faults = [] if cut is None else _of_a_rank(c, cut, SCHEDULES[_schedule(c)])
    if parts is not None:
        return faults or _of_a_rank(c, len(parts), 1)
    share = (c.model.layers + sum(_ends(c))) // (cut or c.pp * SCHEDULES[_schedule(c)])
    return faults or [f"embedding or head weigh more than the {share} layers of a stage"] * (
        max(_ends(c)) > share
    )


def _micro_batches(c: Case) -> list[str]:
    local = config_field(c, "training.local_batch_size", 8)
    size = config_field(c, "parallelism.pipeline_parallel_microbatch_size", 1)
    if size < 1:
        return [f"parallelism.pipeline_parallel_microbatch_size {size}"]
    if c.pp == 1 or local % size == 0:
        return []
    return [
        f"training.local_batch_size {local} does not divide by pipeline micro-batches of {size}"
    ]


def _graphs(c: Case) -> list[str]:
    if config_field(c, "training.disable_cuda_graphs", False):
        return []
    return holding(
        {
            "CUDA graphs, on by default, exclude a pipeline": c.pp > 1,
            "CUDA graphs, on by default, exclude expert parallelism whose dispatcher waits for the"
            " host": c.ep > 1,
        }
    )


def _compiles(c: Case) -> bool:
    parts = config_field(c, "compile.components", ["model", "loss"])
    return bool(config_field(c, "compile.enable", False)) and "model" in parts


UNSPLIT = {
    "llama3": r".*_varlen(_attn)?",
    "llama4": r".*_irope",
    "deepseek_v3": r"(?!debugmodel$).*",
    "gpt_oss": r".*",
}
"""Flavors of the models of 0.2 whose attention context parallelism does not split."""


def _model(c: Case) -> tuple[str, str]:
    """Return name and flavor of the model that a job file names."""
    name = str(config_field(c, "model.name", "llama3")).removesuffix("_ft")
    return name, str(config_field(c, "model.flavor", "debugmodel"))


def _odd_words(c: Case) -> list[str]:
    return [
        f"{name} {c.settings[name] or repr('')}"
        for name, choices in WORDS.items()
        if c.setting(name) is not None and c.setting(name) not in choices
    ]


RULES: tuple[FrameworkRule, ...] = (
    setting_rule(
        "TTN120",
        "field that the configuration does not have",
        lambda c: bool(c.unknown),
        lambda c: f"unknown: {', '.join(c.unknown)}",
        "another spelling",
        _enforced_in(MANAGER),
    ),
    setting_rule(
        "TTN121",
        "word that a field does not take",
        lambda c: bool(_odd_words(c)),
        lambda c: f"unknown: {', '.join(_odd_words(c))}",
        lambda c: "; ".join(
            f"{name} {'|'.join(choices)}"
            for name, choices in WORDS.items()
            if any(odd.startswith(f"{name} ") for odd in _odd_words(c))
        ),
        _enforced_in(f"{MANAGER}; {CONFIGS}"),
    ),
    conditions_rule(
        "TTN122",
        "degrees that do not make the devices",
        _mesh,
        "data_parallel_shard_degree -1, which takes the rest",
        _enforced_in(f"{MESH}._validate", covers=("TTN100", "TTN101")),
    ),
    conditions_rule(
        "TTN123",
        "global batch that is no multiple of local batch x dp",
        _batch,
        _whole_batch,
        _enforced_in(f"{TRAINER}.__init__", "start", covers=("TTN110",)),
    ),
    setting_rule(
        "TTN124",
        "attention that cannot be split over the context",
        lambda c: c.cp > 1 and c.setting("model.attn_backend") == "varlen",
        lambda c: f"attention backend varlen with context_parallel_degree {c.cp}",
        "attention backend flex",
        _enforced_in(
            "torchtitan/models/*/model.py, Config.update_from_config", "start", versions=">=0.3"
        ),
    ),
    setting_rule(
        "TTN125",
        "model whose attention cannot be split over the context",
        lambda c: (
            c.cp > 1
            and _model(c)[0] in UNSPLIT
            and bool(re.fullmatch(UNSPLIT[_model(c)[0]], _model(c)[1]))
        ),
        lambda c: f"attention of {' '.join(_model(c))} with context_parallel_degree {c.cp}",
        "context_parallel_degree 1, or release 0.3",
        _enforced_in(
            "torchtitan/models, args.py of each, update_from_config",
            "start",
            versions=">=0.2,<0.3",
        ),
    ),
    conditions_rule(
        "TTN220",
        "stages that do not go with the schedule",
        _stages,
        "pipeline_parallel_layers_per_stage so that every rank holds one stage, two with a loop",
        _enforced_in(f"{PIPELINE}; {SCHEDULES_PY}", "start"),
    ),
    conditions_rule(
        "TTN221",
        "local batch that does not divide into pipeline micro-batches",
        _micro_batches,
        "a local batch that is a multiple",
        _enforced_in(f"{TRAINER}.Config; {PIPELINE}"),
    ),
    conditions_rule(
        "TTN222",
        "CUDA graphs beside what excludes them",
        _graphs,
        "training.disable_cuda_graphs true",
        _enforced_in(f"{TRAINER}.Config._validate_cuda_graphs", versions=">=0.3"),
    ),
    setting_rule(
        "TTN320",
        "DeepEP without expert parallelism",
        lambda c: (
            config_field(c, "parallelism.expert_parallel_comm_backend") == "deepep" and c.ep == 1
        ),
        "parallelism.expert_parallel_comm_backend deepep needs expert_parallel_degree above 1",
        "expert_parallel_comm_backend standard",
        _enforced_in(
            "torchtitan/models/llama4/infra/parallelize.py, parallelize_llama",
            "start",
            versions="<0.3",
        ),
    ),
    setting_rule(
        "TTN420",
        "symmetric memory on an old accelerator",
        lambda c: (
            config_field(c, "parallelism.enable_fsdp_symm_mem", False)
            and c.generation.startswith(("volta", "ampere", "ada"))
        ),
        lambda c: (
            f"parallelism.enable_fsdp_symm_mem needs compute capability 9, {c.generation} has less"
        ),
        "leave it out",
        _enforced_in(f"{CONFIGS}, ParallelismConfig", versions=">=0.3"),
    ),
    setting_rule(
        "TTN520",
        "asynchronous tensor parallelism without the compiler",
        lambda c: (
            bool(
                config_field(c, "compile.enable_async_tensor_parallel", False)
                or config_field(c, "parallelism.enable_async_tensor_parallel", False)
            )
            and not _compiles(c)
        ),
        "enable_async_tensor_parallel needs compile.enable and model in compile.components",
        "compile.enable true",
        _enforced_in(f"{CONFIGS}, CompileConfig"),
    ),
    setting_rule(
        "TTN521",
        "memory budget without the compiler",
        lambda c: (
            config_field(c, "activation_checkpoint.mode") == "memory_budget" and not _compiles(c)
        ),
        "activation_checkpoint by a memory budget needs compile.enable and model in"
        " compile.components",
        "compile.enable true",
        _enforced_in(f"{TRAINER}.Config"),
    ),
)
"""Rules over the fields of an existing configuration."""
