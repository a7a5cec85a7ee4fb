"""Writes a plan for TRL: the YAML of its script `sft` or `dpo`, and what Accelerate starts."""

from planner.frameworks.finetuning.adapter_names import module_names, tensor_names
from planner.frameworks.finetuning.tool_files import (
    accelerate_command,
    config_text,
    engine_files,
    launcher_text,
)
from planner.frameworks.finetuning.trainer_settings import (
    attention_name,
    model_dtype,
    trainer_fields,
)
from planner.frameworks.finetuning.tuned_plan import TunedPlan
from planner.frameworks.hf_config import model_type

YOURS = {
    "model_name_or_path": "path/to/model",
    "dataset_name": "path/to/dataset",
    "output_dir": "checkpoints",
}
"""What no plan can say: a model and a data set by path or name, a folder."""


def trl_files(plan: TunedPlan) -> dict[str, str]:
    """Return configuration, launcher and the files of the engine."""
    module = f"trl.scripts.{'dpo' if plan.compares_answers else 'sft'}"
    words = [f'--config "${{HERE}}/{plan.tuner.config_file}"']
    command = accelerate_command(plan, module, words)
    return {
        plan.tuner.config_file: config_text(plan, trl_settings(plan), YOURS),
        plan.tuner.launcher_file: launcher_text(plan, command),
        **engine_files(plan),
    }


def trl_settings(plan: TunedPlan) -> dict[str, object]:
    """Return the fields of TRL's SFTConfig or DPOConfig and ModelConfig that the plan decides."""
    return {
        "attn_implementation": attention_name(plan),
        "dtype": model_dtype(plan),
        **_adapters(plan),
        "max_length": plan.job.seq_len,
        **(_preferences(plan) if plan.compares_answers else _packing(plan)),
        **trainer_fields(plan),
    }


def _preferences(plan: TunedPlan) -> dict[str, object]:
    """Return where the reference is; the dropout of adapters is off unless the file keeps it."""
    has_dropout = plan.tuning is not None and plan.tuning.dropout > 0
    return {
        "precompute_ref_log_probs": plan.job.has_precomputed_reference,
        **({"disable_dropout": False} if has_dropout else {}),
    }


def _packing(plan: TunedPlan) -> dict[str, object]:
    """Return how samples become sequences; `bfd` masks them apart by their positions."""
    data = plan.job.data
    if data is None or data.packing == "none":
        return {"packing": False}
    strategy = "bfd" if data.packing == "masked" else "wrapped"
    return {"packing": True, "packing_strategy": strategy}


def _adapters(plan: TunedPlan) -> dict[str, object]:
    tuning = plan.tuning
    if tuning is None:
        return {"use_peft": False}
    names = module_names(tuning, model_type(plan.shape, plan.job, plan.request.details))
    if len(names) == 1:
        names = [rf".*\.{names[0]}"]  # TRL takes a list of one for a pattern of whole names
    tensors = tensor_names(tuning)
    return {
        "use_peft": True,
        "lora_r": tuning.rank,
        "lora_alpha": int(tuning.alpha),
        "lora_dropout": tuning.dropout,
        **({"lora_target_modules": names} if names else {}),
        **({"lora_target_parameters": tensors} if tensors else {}),
        **_base(plan, tuning.base),
    }


def _base(plan: TunedPlan, base: str) -> dict[str, object]:
    """Return how frozen weights are held; what is sharded in 4 bits is stored as if in 16."""
    if base == "int8":
        return {"load_in_8bit": True}
    if base not in ("nf4", "nf4-plain"):
        return {}
    stored = {"bnb_4bit_quant_storage": model_dtype(plan)} if plan.shards_weights else {}
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "use_bnb_nested_quant": base == "nf4",
        **stored,
    }
