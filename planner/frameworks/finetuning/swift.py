"""Writes a plan for ms-swift: the YAML of `swift sft` or `swift rlhf`, and its FSDP2 file."""

import json

from planner.frameworks.finetuning.adapter_names import module_names, tensor_names
from planner.frameworks.finetuning.tool_files import config_text, engine_files, launcher_text
from planner.frameworks.finetuning.trainer_settings import (
    accelerate_settings,
    attention_name,
    model_dtype,
    plan_nodes,
    trainer_fields,
)
from planner.frameworks.finetuning.tuned_plan import TunedPlan
from planner.frameworks.hf_config import model_type

YOURS = {
    "model": "path/to/model",
    "dataset": ["path/to/dataset"],
    "output_dir": "checkpoints",
}
"""What no plan can say: a model and data sets by path or name, a folder."""
FSDP_FILE = "swift-fsdp2.json"


def swift_files(plan: TunedPlan) -> dict[str, str]:
    """Return configuration, launcher and the files of the engine."""
    sharding = {FSDP_FILE: json.dumps(_fsdp(plan), indent=2) + "\n"} if plan.is_sharded else {}
    return {
        plan.tuner.config_file: config_text(plan, swift_settings(plan), YOURS),
        plan.tuner.launcher_file: launcher_text(plan, _command(plan)),
        **sharding,
        **engine_files(plan, with_accelerate=False),
    }


def swift_settings(plan: TunedPlan) -> dict[str, object]:
    """Return the arguments of ms-swift that the plan decides; its packs always have masks."""
    data = plan.job.data
    return {
        **({"rlhf_type": "dpo"} if plan.compares_answers else {}),
        "attn_impl": attention_name(plan),
        "torch_dtype": model_dtype(plan),
        **_adapters(plan),
        "max_length": plan.job.seq_len,
        "packing": data is not None and data.packing == "masked",
        **trainer_fields(plan),
        **({"deepspeed": plan.tuner.deepspeed_file} if plan.on_deepspeed else {}),
        **({"fsdp": FSDP_FILE} if plan.is_sharded else {}),
    }


def _adapters(plan: TunedPlan) -> dict[str, object]:
    tuning = plan.tuning
    if tuning is None:
        return {"tuner_type": "full"}
    names = module_names(tuning, model_type(plan.shape, plan.job, plan.request.details))
    tensors = tensor_names(tuning)
    return {
        "tuner_type": "lora",
        "lora_rank": tuning.rank,
        "lora_alpha": tuning.alpha,
        "lora_dropout": tuning.dropout,
        "target_modules": names,
        **({"target_parameters": tensors} if tensors else {}),
        **_base(plan, tuning.base),
    }


def _base(plan: TunedPlan, base: str) -> dict[str, object]:
    """Return how frozen weights are held; what is sharded in 4 bits is stored as if in 16."""
    bits = {"int8": 8, "nf4": 4, "nf4-plain": 4}.get(base)
    if bits is None:
        return {}
    stored = {"bnb_4bit_quant_storage": model_dtype(plan)} if plan.shards_weights else {}
    nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": base == "nf4", **stored}
    return {"quant_method": "bnb", "quant_bits": bits, **(nf4 if bits == 4 else {})}


def _fsdp(plan: TunedPlan) -> dict[str, object]:
    """Return the file that `fsdp` names: words for the Trainer, and Accelerate's section."""
    block = accelerate_settings(plan)["fsdp_config"]
    assert isinstance(block, dict)  # as it is written
    names = {key: key.removeprefix("fsdp_") for key in block if key != "fsdp_version"}
    plain = {"fsdp_version": block["fsdp_version"]}
    plain |= {name: block[key] for key, name in names.items() if name != "offload_params"}
    kind = "full_shard" if plan.layout.zero == 3 else "shard_grad_op"
    return {"fsdp": f"{kind} auto_wrap", "fsdp_config": plain}


def _command(plan: TunedPlan) -> list[str]:
    """Return the lines of the command: ms-swift starts torchrun by these variables."""
    n_nodes, per_node = plan_nodes(plan)
    task = "rlhf" if plan.compares_answers else "sft"
    return [
        f'NNODES={n_nodes} NPROC_PER_NODE={per_node} NODE_RANK="${{NODE_RANK}}"',
        '  MASTER_ADDR="${MASTER_ADDR}" MASTER_PORT="${MASTER_PORT}"',
        f'  swift {task} "${{HERE}}/{plan.tuner.config_file}"',
    ]
