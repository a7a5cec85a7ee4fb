"""Writes a plan for torchtune: the YAML of one of its recipes, and the command that starts it."""

from collections.abc import Mapping

from costmodels.tuning.records import TuningJob
from planner.frameworks.emitted_text import train_steps
from planner.frameworks.finetuning.tool_files import config_text, launcher_text
from planner.frameworks.finetuning.trainer_settings import plan_nodes
from planner.frameworks.finetuning.tuned_plan import TunedPlan

ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "output_proj"}
"""Layers of attention with adapters, by their targets."""
MLP = ("gate", "up", "down")
"""Targets that `apply_lora_to_mlp` adapts together."""
OPTIMIZERS = {"adam": "torch.optim.AdamW", "adam-8bit": "bitsandbytes.optim.AdamW8bit"}
DTYPES = {"bf16": "bf16", "bf16-true": "bf16", "fp32": "fp32"}
"""The one format of a run by the precision of a plan."""
_LLAMA = "torchtune.models.llama3"
_OUTPUT = "${output_dir}"


def torchtune_files(plan: TunedPlan) -> dict[str, str]:
    """Return configuration and launcher; there is no file of an engine."""
    return {
        plan.tuner.config_file: config_text(plan, torchtune_settings(plan), _yours(plan)),
        plan.tuner.launcher_file: launcher_text(plan, _command(plan)),
    }


def recipe_name(plan: TunedPlan) -> str:
    """Return the name of the recipe: of adapters or all weights, on one device or several."""
    kind = "full" if plan.tuning is None else "lora"
    return f"{kind}_finetune_{'single_device' if plan.layout.n_devices == 1 else 'distributed'}"


def _command(plan: TunedPlan) -> list[str]:
    """Return the lines of the command; several devices are started by torchrun inside it."""
    n_nodes, per_node = plan_nodes(plan)
    config = f'  {recipe_name(plan)} --config "${{HERE}}/{plan.tuner.config_file}"'
    if plan.layout.n_devices == 1:
        return ["tune run", config]
    meeting = ['  --rdzv_backend c10d --rdzv_endpoint "${MASTER_ADDR}:${MASTER_PORT}"']
    return [
        f"tune run --nnodes {n_nodes} --nproc_per_node {per_node}",
        *(meeting if n_nodes > 1 else []),
        config,
    ]


def _yours(plan: TunedPlan) -> dict[str, object]:
    """Return what no plan can say by its names, in the sections that hold them."""
    data = plan.job.data
    return {
        "output_dir": "checkpoints",
        "tokenizer": {
            "_component_": f"{_LLAMA}.llama3_tokenizer",
            "path": "path/to/tokenizer.model",
            "max_seq_len": plan.job.seq_len,
        },
        "dataset": {
            "_component_": "torchtune.datasets.alpaca_cleaned_dataset",
            "packed": data is not None and data.packing == "masked",
        },
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            "checkpoint_dir": "path/to/model",
            "checkpoint_files": ["model.safetensors"],
            "recipe_checkpoint": None,
            "output_dir": _OUTPUT,
            "model_type": "LLAMA3",
        },
    }


def torchtune_settings(plan: TunedPlan) -> dict[str, object]:
    """Return the fields of the recipe that the plan decides."""
    x, job = plan.layout, plan.job
    sharded = {"fsdp_reshard_after_forward": x.zero == 3} if x.n_devices > 1 else {}
    return {
        "model": _model(plan),
        "batch_size": x.mbs,
        "gradient_accumulation_steps": x.n_micro,
        "epochs": 1,
        "max_steps_per_epoch": train_steps(job) if job.tokens else None,
        "optimizer": {"_component_": OPTIMIZERS[job.optimizer], "lr": 1.5e-4, "weight_decay": 0.1},
        **_scheduler(plan),
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "clip_grad_norm": 1.0,
        "compile": False,
        "device": "cuda",
        "dtype": DTYPES[job.precision],
        "enable_activation_checkpointing": plan.recomputes,
        "enable_activation_offloading": x.activation_offload,
        **sharded,
        "seed": None,
        "shuffle": True,
        "resume_from_checkpoint": False,
        "metric_logger": {
            "_component_": "torchtune.training.metric_logging.DiskLogger",
            "log_dir": f"{_OUTPUT}/logs",
        },
        "log_every_n_steps": 1,
    }


def _scheduler(plan: TunedPlan) -> dict[str, object]:
    """Return the schedule of learning rates; recipes of all weights have their own switches."""
    if plan.tuning is None:
        return {"optimizer_in_bwd": False}
    name = "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"
    return {"lr_scheduler": {"_component_": name, "num_warmup_steps": 10}}


def _model(plan: TunedPlan) -> dict[str, object]:
    """Return the builder of the model, with its sizes: those of a name cannot be told."""
    shape, tuning = plan.shape, plan.tuning
    sizes: Mapping[str, object] = {
        "vocab_size": shape.vocab,
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "embed_dim": shape.hidden,
        "max_seq_len": plan.job.seq_len,
        "intermediate_dim": shape.ffn,
        "rope_base": int(plan.request.details.rotary_base or ROPE_BASE),
    }
    if tuning is None:
        return {"_component_": f"{_LLAMA}.llama3", **sizes}
    return {"_component_": f"{_LLAMA}.lora_llama3", **_adapters(tuning), **sizes}


ROPE_BASE = 500_000
"""Base of the positions of Llama 3, where a model file says none; it costs nothing."""


def _adapters(tuning: TuningJob) -> dict[str, object]:
    return {
        "lora_attn_modules": [ATTENTION[name] for name in tuning.targets if name in ATTENTION],
        "apply_lora_to_mlp": set(MLP) <= set(tuning.targets),
        "apply_lora_to_output": False,
        "lora_rank": tuning.rank,
        "lora_alpha": tuning.alpha,
        "lora_dropout": tuning.dropout,
        "quantize_base": tuning.base == "nf4",
    }
