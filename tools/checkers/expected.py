"""From emitted files to what their framework is asked, and what it must have understood.

A plan stands in the files as JSON after `# layout: `. Needs nothing beyond the standard library.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments import BRIDGE, MEGATRON, TITAN_TOML, CannotRun

Facts = dict[str, Any]
FACTS = "# layout: "
ARCHITECTURE = {"ampere": 8, "hopper": 9, "blackwell": 10, "rubin": 10}


@dataclass(frozen=True)
class Question:
    """One file, for one checker."""

    id: str
    case: Facts
    """What the checker reads, besides the id."""
    wants: Facts = field(default_factory=dict)
    """What the framework must have derived; empty where only the verdict counts."""


@dataclass(frozen=True)
class Checker:
    """One program that asks a framework."""

    name: str
    framework: str
    """Name in `planner emit --for`."""
    script: str
    package: str
    """Package whose release decides."""
    ask: Callable[[Mapping[str, str], Facts], Facts | None]
    """What to ask about the files of a plan; None when they hold nothing for this checker."""
    wants: Callable[[Facts], Facts]
    source: str = ""
    """Release that is unpacked beside the environment instead of the installed one."""
    core: str = ""
    """Release of megatron-core that is unpacked too."""


def plan_of(files: Mapping[str, str]) -> Facts | None:
    """Return the plan that emitted files repeat in a comment."""
    for text in files.values():
        for line in text.splitlines():
            if line.startswith(FACTS):
                plan: Facts = json.loads(line.removeprefix(FACTS))
                return plan
    return None


def questions(
    checker: Checker, name: str, files: Mapping[str, str], changed: Facts | None = None
) -> Iterator[Question]:
    """Yield what a checker is asked about the files of one plan: nothing, or one question.

    `changed` adds to the plan what the files do not say: `n_devices` where they do not tell how many
    start, `shape` with the sizes of the model.
    """
    mine = {
        file: text for file, text in files.items() if file.startswith(PREFIX[checker.framework])
    }
    plan = plan_of(mine)
    if plan is None:
        if any(not file.endswith(".txt") for file in mine):
            raise CannotRun(f"{name}: no line that starts with {FACTS!r}; emitted by the planner?")
        return
    plan |= {"sublayers": sublayers_each(mine, plan), **(changed or {})}
    case = checker.ask(mine, plan)
    if case is not None:
        yield Question(name, case, checker.wants(plan))


def sublayers_each(files: Mapping[str, str], plan: Facts) -> int:
    """Return how many symbols of a hybrid pattern stand for one layer of the plan; 1 without one."""
    found = re.search(r"hybrid.layer.pattern[ =]+['\"]([^'\"/]+)", "\n".join(files.values()))
    return len(found[1].replace("|", "")) // int(plan["layers"]) if found else 1


def folder_questions(checker: Checker, folder: Path) -> Iterator[Question]:
    """Yield the questions to a folder of `planner solve --emit ... --out DIR`."""
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = {file.name: file.read_text() for file in sorted(place.iterdir()) if file.is_file()}
        yield from questions(checker, place.name, files)


# ---- Megatron-LM --------------------------------------------------------------------------------


def ask_megatron(files: Mapping[str, str], plan: Facts) -> Facts | None:
    """Return the script, and the GPU that it is for."""
    if "megatron.sh" not in files:
        return None
    return {"flags": files["megatron.sh"], "gpu_arch": ARCHITECTURE.get(plan["generation"], 9)}


def megatron_wants(plan: Facts) -> Facts:
    """Return what Megatron-LM must have derived from the script."""
    pp, vpp, each = plan["pp"], plan["vpp"], plan.get("sublayers", 1)
    counts = [each * n for n in plan["stage_layers"]]
    full = plan["recompute"] == "full" and plan["recompute_layers"] > 0
    none = plan["recompute"] == "none" or (plan["recompute"] == "full" and not full)
    fsdp, away = plan["zero"] >= 2, plan.get("optimizer_offload", False)
    beside = plan.get("dp_overlap", True) and plan["dp"] * plan["cp"] > 1
    dtype = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    precision = plan["precision"].removesuffix("-grads")
    fp8 = precision.removeprefix("fp8-") if precision.startswith("fp8-") else None
    wants: Facts = {
        "world": plan["n_devices"],
        "tp": plan["tp"],
        "pp": pp,
        "cp": plan["cp"],
        "ep": plan["ep"],
        "vpp": vpp if vpp > 1 else None,
        "dp": plan["dp"],
        "micro_batch_size": plan["mbs"],
        "global_batch_size": plan["gbs"],
        "num_microbatches": plan["n_micro"],
        "num_layers": each * plan["layers"],
        "layers_per_stage": [counts[rank::pp] for rank in range(pp)],
        "padded_vocab_size": plan["padded_vocab"],
        "sequence_parallel": plan["sp"] and plan["tp"] > 1,
        "use_distributed_optimizer": plan["zero"] > 0 or away,
        "overlap_grad_reduce": beside,
        "overlap_param_gather": beside and plan["zero"] > 0,
        "tp_comm_overlap": plan.get("tp_overlap", False),
        "use_megatron_fsdp": fsdp,
        "recompute_granularity": None if none else plan["recompute"],
        "recompute_num_layers": plan["recompute_layers"] if full else None,
        "cpu_offloading_num_layers": plan.get("activation_offload_layers", 0),
        "params_dtype": "torch." + ("bfloat16" if fp8 else dtype[precision]),
        "accumulate_allreduce_grads_in_fp32": plan["precision"] in ("bf16", f"fp8-{fp8}"),
        "groups": megatron_groups(plan),
        "num_distributed_optimizer_instances": plan["dp"] * plan["cp"] // zero_group(plan),
    }
    if fp8:
        wants["fp8_recipe"] = fp8
    if away:
        wants |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}
    if plan["recompute"] == "selective":
        wants["recompute_modules"] = list(plan.get("recompute_modules", ["core_attn"]))
    if plan["cp"] > 1:
        named = {"p2p": "p2p", "all-gather": "all_gather", "a2a": "a2a"}
        wants["cp_comm_type"] = [named[plan["cp_comm"]]]
    if fsdp:
        strategies = {2: "optim_grads", 3: "optim_grads_params"}
        wants["data_parallel_sharding_strategy"] = strategies[plan["zero"]]
    inner = plan["ep"] * plan["etp"]
    if inner > 1:
        wants["expert_dp"] = plan["tp"] * plan["cp"] * plan["dp"] // inner
        wants["etp"] = plan["etp"]
    return wants


def zero_group(plan: Facts) -> int:
    """Return the ranks of one ZeRO group."""
    whole: int = plan["dp"] * plan["cp"]
    return plan["shard"] or whole if plan["zero"] else whole


def megatron_groups(plan: Facts) -> Facts:
    """Return the ranks that the first rank shares each group with, as (size, stride)."""
    sizes = {axis: plan[axis] for axis in ("tp", "cp", "dp", "pp")}
    stride, found = 1, {}
    for axis in plan["rank_order"].split("-"):
        if axis != "ep":
            found[axis] = [sizes[axis], stride if sizes[axis] > 1 else 1]
            stride *= sizes[axis]
    return found


def ask_bridge(files: Mapping[str, str], plan: Facts) -> Facts | None:
    """Return the recipe of Megatron-Bridge, and the environment of its launcher."""
    if "bridge_recipe.py" not in files:
        return None
    env = re.findall(r"^export (CUDA_\w+)=(\S+)$", files.get("bridge.sh", ""), re.M)
    return {
        "text": files["bridge_recipe.py"],
        "function": "pretrain_config",
        "world_size": plan["n_devices"],
        "env": dict(env),
        "gpu_arch": ARCHITECTURE.get(plan["generation"], 9),
    }


def bridge_wants(plan: Facts) -> Facts:
    """Return what Megatron-Bridge must have derived: what Megatron-LM does, under its own names."""
    wants = megatron_wants(plan)
    del wants["tp_comm_overlap"]  # which Megatron-Bridge switches off without Transformer Engine
    wide = wants.pop("accumulate_allreduce_grads_in_fp32")
    wants["grad_reduce_in_fp32"] = wide or plan["precision"] == "fp32"
    return wants


# ---- DeepSpeed ----------------------------------------------------------------------------------


def ask_deepspeed(files: Mapping[str, str], plan: Facts) -> Facts | None:
    """Return the JSON, and what the launcher says besides."""
    if "deepspeed.json" not in files:
        return None
    case = {
        "json": files["deepspeed.json"],
        "world_size": plan["n_devices"],
        "pp": plan["pp"],
        "gpus_per_node": plan["devices_per_node"],
    }
    if plan["pp"] > 1:
        case["pipeline"] = {"layers": plan["layers"], "method": plan["pipeline_partition"]}
    if launcher := re.search(r"--pipeline-stages (\d+)", files.get("deepspeed.sh", "")):
        case["pp"] = int(launcher[1])
    if plan.get("shape"):
        case["model"] = plan["shape"]
    return case


def deepspeed_wants(plan: Facts) -> Facts:
    """Return what DeepSpeed must have derived from the JSON."""
    precision, away = plan["precision"], plan.get("optimizer_offload", False)
    wants: Facts = {
        "world_size": plan["n_devices"],
        "tp": plan["tp"],
        "pp": plan["pp"],
        "dp": plan["dp"],
        "train_micro_batch_size_per_gpu": plan["mbs"],
        "gradient_accumulation_steps": plan["n_micro"],
        "zero_stage": max(plan["zero"], away),
        "cpu_checkpointing": plan.get("activation_offload_layers", 0) > 0,
        "sp": plan["cp"],
        "ep": plan["ep"],
        "bf16": precision.startswith("bf16"),
        "fp16": precision.startswith("fp16"),
    }
    if away:
        wants["offload_optimizer"] = "cpu"
    wants["zero_hpz_partition_size"] = plan.get("hpz", 1)
    if plan["zero"]:
        wide = precision in ("bf16", "fp16", "fp32")
        wants["grad_accum_dtype"] = "fp32" if wide else precision.removesuffix("-grads")
    if plan["tp"] == 1:
        wants["train_batch_size"] = plan["gbs"]
    if plan["pp"] > 1:
        wants["layers_per_stage"] = plan["stage_layers"]
    return wants


# ---- torchtitan ---------------------------------------------------------------------------------

CAPABILITY = {"ampere": [8, 0], "hopper": [9, 0], "blackwell": [10, 0], "rubin": [10, 0]}


def ask_torchtitan(files: Mapping[str, str], plan: Facts) -> Facts | None:
    """Return the recipe of torchtitan 0.3.0 or later."""
    if "torchtitan_recipe.py" not in files:
        return None
    return {
        "kind": "recipe",
        "text": files["torchtitan_recipe.py"],
        "config": "train",
        "world_size": plan["n_devices"],
        "capability": CAPABILITY.get(plan["generation"], [9, 0]),
    }


def ask_torchtitan_toml(files: Mapping[str, str], plan: Facts) -> Facts | None:
    """Return the job file of torchtitan 0.2."""
    if "torchtitan.toml" not in files:
        return None
    return {
        "kind": "toml",
        "text": files["torchtitan.toml"],
        "world_size": plan["n_devices"],
        "capability": CAPABILITY.get(plan["generation"], [9, 0]),
    }


def torchtitan_wants(plan: Facts) -> Facts:
    """Return what torchtitan must have derived, whichever of its formats says it."""
    pp, dp, cp, zero = plan["pp"], plan["dp"], plan["cp"], plan["zero"]
    shard = (plan["shard"] or dp * cp) // cp if zero else 1
    wants: Facts = {
        "world": plan["n_devices"],
        "tp": plan["tp"],
        "pp": pp,
        "cp": cp,
        "ep": plan["ep"],
        "dp": dp,
        "dp_shard": shard,
        "dp_replicate": dp // shard,
        "global_batch_size": plan["gbs"],
        "gradient_accumulation_steps": 1 if pp > 1 else plan["n_micro"],
        "pipeline_microbatches": plan["n_micro"] if pp > 1 else 1,
        "sequence_parallel": plan["sp"] and plan["tp"] > 1,
        "layers": plan["layers"],
        "mixed_precision_param": "float32" if plan["precision"] == "fp32" else "bfloat16",
        "reshard_after_forward": "always" if zero == 3 else "never",
        "compile": plan.get("tp_overlap", False),
    }
    if pp > 1:
        counts = plan["stage_layers"]
        wants["layers_per_stage"] = counts
        wants["vpp"] = plan["vpp"]
        last = len(counts) - 1
        if plan["schedule"] in ("zb-v", "dualpipe-v"):
            wants["stages_of_rank"] = [[rank, last - rank] for rank in range(pp)]
        else:
            wants["stages_of_rank"] = [list(range(rank, last + 1, pp)) for rank in range(pp)]
    return wants


# ---- Accelerate (FSDP2) -------------------------------------------------------------------------


def ask_accelerate(files: Mapping[str, str], plan: Facts) -> Facts | None:
    """Return the launch configuration and the arguments of the Trainer."""
    if "accelerate.yaml" not in files:
        return None
    return {
        "text": files["accelerate.yaml"],
        "trainer": files.get("trainer_args.json"),
        "world_size": plan["n_devices"],
    }


def accelerate_wants(plan: Facts) -> Facts:
    """Return what Accelerate and the Trainer must have derived."""
    dp, cp, zero = plan["dp"], plan["cp"], plan["zero"]
    shard = (plan["shard"] or dp * cp) // cp
    precision = plan["precision"].removesuffix("-grads")
    full = plan["recompute"] == "full" and plan["recompute_layers"] > 0
    return {
        "distributed_type": "FSDP",
        "world": plan["n_devices"],
        "num_machines": plan["n_nodes"],
        "fsdp_version": 2,
        "tp": plan["tp"],
        "cp": cp,
        "sp": 1,
        "dp": dp,
        "dp_shard": shard,
        "dp_replicate": dp // shard,
        "reshard_after_forward": zero == 3,
        "activation_checkpointing": full,
        "activation_checkpointing_offload": plan.get("activation_offload_layers", 0) > 0,
        "mixed_precision": "no" if precision == "fp32" else precision,
        "trainer_bf16": precision == "bf16",
        "trainer_fp16": precision == "fp16",
        "per_device_train_batch_size": plan["mbs"],
        "gradient_accumulation_steps": plan["n_micro"],
        "global_batch_size": plan["gbs"],
        "sync_each_batch": plan["n_micro"] > 1,
        "cpu_offload": False,
    }


CHECKERS = {
    checker.name: checker
    for checker in (
        Checker("megatron", "megatron", "check_megatron.py", "megatron-core",
                ask_megatron, megatron_wants, MEGATRON),
        Checker("bridge", "bridge", "check_bridge.py", "megatron-bridge",
                ask_bridge, bridge_wants, BRIDGE, MEGATRON),
        Checker("deepspeed", "deepspeed", "check_deepspeed.py", "deepspeed",
                ask_deepspeed, deepspeed_wants),
        Checker("torchtitan", "torchtitan", "check_torchtitan.py", "torchtitan",
                ask_torchtitan, torchtitan_wants),
        Checker("torchtitan-toml", "torchtitan", "check_torchtitan.py", "torchtitan",
                ask_torchtitan_toml, torchtitan_wants, TITAN_TOML),
        Checker("accelerate", "fsdp2", "check_accelerate.py", "accelerate",
                ask_accelerate, accelerate_wants),
    )
}
"""All checkers by name."""
PREFIX = {
    "megatron": ("megatron",),
    "deepspeed": ("deepspeed",),
    "torchtitan": ("torchtitan",),
    "fsdp2": ("accelerate", "trainer_args", "fsdp2"),
    "bridge": ("bridge",),
}
"""Starts of the names of the files that are written for each framework."""
OLDEST = {
    "megatron": "0.17.0",
    "bridge": "0.5.1",
    "deepspeed": "0.18.9",
    "torchtitan": "0.2.2",
    "fsdp2": "1.12.0",
}
"""The oldest release of each framework whose parser is asked in CI; for torchtitan that with TOML."""
SINCE = {
    "megatron": {"gated_delta_net & --context-parallel-size": "0.18"},
    "bridge": {"hybrid_provider": "0.6.2"},
    "deepspeed": {"expert_parallel": "0.19.2", "vocab_parallel_lm_head": "0.19.8"},
    "fsdp2": {"fsdp_activation_checkpointing_offload": "1.15.0"},
}
"""Keys that we write only where a plan needs them, and the release that brought them: files with
such a key are for that release or later. With ` & `: several that go together since then."""


def newer_keys(checker: Checker, question: Question) -> list[str]:
    """Return the keys of a file that the oldest supported release does not have."""
    text = json.dumps(question.case)
    keys = SINCE.get(checker.framework, {})
    return [key for key in keys if all(part in text for part in key.split(" & "))]
