"""Writes a plan for LLaMA-Factory: its YAML, and what Accelerate or DeepSpeed is started with."""

from planner.frameworks.finetuning.adapter_names import module_names
from planner.frameworks.finetuning.tool_files import (
    accelerate_command,
    config_text,
    engine_files,
    launcher_text,
    torchrun_command,
)
from planner.frameworks.finetuning.trainer_settings import attention_name, trainer_fields
from planner.frameworks.finetuning.tuned_plan import TunedPlan
from planner.frameworks.hf_config import model_type

YOURS = {
    "model_name_or_path": "path/to/model",
    "dataset": "name_of_dataset",
    "template": "default",
    "output_dir": "checkpoints",
}
"""What no plan can say: a model by path or name, data sets and a template by name, a folder."""
ATTENTION = {"flash_attention_2": "fa2", "sdpa": "sdpa", "eager": "disabled"}
"""`flash_attn` by transformers' `attn_implementation`."""
MODULE = "llamafactory.launcher"


def llama_factory_files(plan: TunedPlan) -> dict[str, str]:
    """Return configuration, launcher and the files of the engine."""
    words = [f'"${{HERE}}/{plan.tuner.config_file}"']
    start = torchrun_command if plan.on_deepspeed else accelerate_command
    return {
        plan.tuner.config_file: config_text(plan, llama_factory_settings(plan), YOURS),
        plan.tuner.launcher_file: launcher_text(plan, start(plan, MODULE, words)),
        **engine_files(plan, with_accelerate=not plan.on_deepspeed),
    }


def llama_factory_settings(plan: TunedPlan) -> dict[str, object]:
    """Return the arguments of LLaMA-Factory that the plan decides.

    Its own recomputation is on unless it is told otherwise; FSDP2 does it in its place.
    """
    fields = trainer_fields(plan)
    recomputes = fields.pop("gradient_checkpointing")
    fields.pop("gradient_checkpointing_kwargs", None)
    engine = {"deepspeed": plan.tuner.deepspeed_file} if plan.on_deepspeed else {}
    return {
        "stage": "dpo" if plan.compares_answers else "sft",
        "do_train": True,
        "flash_attn": ATTENTION[attention_name(plan)],
        **_adapters(plan),
        "cutoff_len": plan.job.seq_len,
        **_packing(plan),
        "disable_gradient_checkpointing": not recomputes,
        **fields,
        **engine,
    }


def _packing(plan: TunedPlan) -> dict[str, object]:
    """Return how samples become sequences; `neat_packing` masks them apart.

    Pairs of answers are not packed; the key would not be read.
    """
    data = plan.job.data
    if plan.compares_answers:
        return {}
    if data is None or data.packing == "none":
        return {"packing": False}
    return {"packing": True, "neat_packing": data.packing == "masked"}


def _adapters(plan: TunedPlan) -> dict[str, object]:
    tuning = plan.tuning
    if tuning is None:
        return {"finetuning_type": "full"}
    names = module_names(tuning, model_type(plan.shape, plan.job, plan.request.details))
    bits = {"int8": 8, "nf4": 4, "nf4-plain": 4}.get(tuning.base)
    quantized = {
        "quantization_bit": bits,
        "quantization_method": "bnb",
        "quantization_type": "nf4",
        "double_quantization": tuning.base == "nf4",
    }
    return {
        "finetuning_type": "lora",
        "lora_rank": tuning.rank,
        "lora_alpha": int(tuning.alpha),
        "lora_dropout": tuning.dropout,
        "lora_target": ",".join(names),
        **(quantized if bits else {}),
    }
