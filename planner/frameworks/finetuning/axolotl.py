"""Writes a plan for axolotl: one YAML, in which FSDP2 or the file of DeepSpeed is named too."""

from planner.frameworks.finetuning.adapter_names import module_names, tensor_names
from planner.frameworks.finetuning.tool_files import (
    config_text,
    engine_files,
    launcher_text,
    torchrun_command,
)
from planner.frameworks.finetuning.trainer_settings import (
    accelerate_settings,
    attention_name,
    trainer_fields,
)
from planner.frameworks.finetuning.tuned_plan import TunedPlan
from planner.frameworks.hf_config import model_type

SAMPLES, PAIRS = "chat_template", "chat_template.default"
"""How a data set of conversations is read, and one of pairs of answers."""
RENAMED = {
    "per_device_train_batch_size": "micro_batch_size",
    "num_train_epochs": "num_epochs",
    "optim": "optimizer",
}
"""Fields of the Trainer that axolotl calls otherwise."""


def axolotl_files(plan: TunedPlan) -> dict[str, str]:
    """Return configuration, launcher and the files of the engine."""
    command = torchrun_command(
        plan, "axolotl.cli.train", [f'"${{HERE}}/{plan.tuner.config_file}"']
    )
    return {
        plan.tuner.config_file: config_text(plan, axolotl_settings(plan), _yours(plan)),
        plan.tuner.launcher_file: launcher_text(plan, command),
        **engine_files(plan, with_accelerate=False),
    }


def _yours(plan: TunedPlan) -> dict[str, object]:
    """Return what no plan can say: a model and data sets by path or name, a folder."""
    kind = PAIRS if plan.compares_answers else SAMPLES
    return {
        "base_model": "path/to/model",
        "datasets": [{"path": "path/to/dataset", "type": kind}],
        "output_dir": "checkpoints",
    }


def axolotl_settings(plan: TunedPlan) -> dict[str, object]:
    """Return the fields of axolotl's configuration that the plan decides."""
    trainer = {RENAMED.get(key, key): value for key, value in trainer_fields(plan).items()}
    return {
        "attn_implementation": attention_name(plan),
        **_adapters(plan),
        "sequence_len": plan.job.seq_len,
        **(_preferences(plan) if plan.compares_answers else _packing(plan)),
        **trainer,
        **_engine(plan),
    }


def _preferences(plan: TunedPlan) -> dict[str, object]:
    return {"rl": "dpo", "precompute_ref_log_probs": plan.job.has_precomputed_reference}


def _packing(plan: TunedPlan) -> dict[str, object]:
    packs = plan.job.data is not None and plan.job.data.packing == "masked"
    return {"sample_packing": packs, "pad_to_sequence_len": packs}


def _adapters(plan: TunedPlan) -> dict[str, object]:
    tuning = plan.tuning
    if tuning is None:
        return {}
    is_nf4 = tuning.base in ("nf4", "nf4-plain")
    tensors = tensor_names(tuning)
    names = module_names(tuning, model_type(plan.shape, plan.job, plan.request.details))
    plain_scales = {"bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}}
    return {
        "adapter": "qlora" if is_nf4 else "lora",
        "lora_r": tuning.rank,
        "lora_alpha": int(tuning.alpha),
        "lora_dropout": tuning.dropout,
        **({"lora_target_modules": names} if names else {}),
        **({"lora_target_parameters": tensors} if tensors else {}),
        **({"load_in_4bit": True} if is_nf4 else {}),
        **({"load_in_8bit": True} if tuning.base == "int8" else {}),
        **(plain_scales if tuning.base == "nf4-plain" else {}),
    }


def _engine(plan: TunedPlan) -> dict[str, object]:
    """Return how the engine shards; nothing for plain replicas."""
    if plan.on_deepspeed:
        return {"deepspeed": plan.tuner.deepspeed_file}
    if not plan.is_sharded:
        return {}
    launch = accelerate_settings(plan)
    block, sizes = launch["fsdp_config"], launch["parallelism_config"]
    assert isinstance(block, dict)  # as they are written
    assert isinstance(sizes, dict)
    plain = {key.removeprefix("fsdp_"): value for key, value in block.items()}
    version = plain.pop("version")
    plain.pop("activation_checkpointing_offload", None)
    return {
        "dp_replicate_size": sizes["parallelism_config_dp_replicate_size"],
        "dp_shard_size": sizes["parallelism_config_dp_shard_size"],
        "fsdp_version": version,
        "fsdp_config": plain,
    }
