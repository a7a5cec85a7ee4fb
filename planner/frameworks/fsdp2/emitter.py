"""Writes a plan as an Accelerate launch configuration with FSDP2, and what the Trainer needs.

Accelerate sets the process groups and the sharding; a training program (`data/programs`, or one of
the user's) builds the model. Batch sizes and gradient accumulation are arguments of the Hugging
Face Trainer and stand in a file of their own.
"""

import json

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from hardware.parts import Pool
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.emitted_text import (
    TEXTS,
    carried_by_config,
    fact_lines,
    head,
    nodes,
    shown_details,
    stated_or_none,
    train_steps,
    yaml_scalar,
)
from planner.frameworks.hf_config import config_file
from planner.frameworks.hf_kernels import kernel_notes, lacking_images
from planner.frameworks.optimizers import TRAINER_OPTIM
from planner.frameworks.programs import (
    SHARED,
    attention_setting,
    filled_settings,
    model_note,
    programs,
    script_setting,
    source_words,
)

PROGRAM = "fsdp2_train.py"
MIXED_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "bf16-true": "no"}
"""Accelerate's `mixed_precision` by precision of the plan."""
CP_COMM_STRATEGY = {"all-gather": "allgather", "p2p": "alltoall"}
"""Gather all keys and values, or pass them on around the ring (by all-to-alls)."""


def accelerate_files(request: EmitRequest) -> dict[str, str]:
    """Return launch configuration, arguments of the Trainer, launcher and program."""
    model, no_model = config_file(request.shape, request.job, request.details)
    return {
        "accelerate.yaml": _yaml(request),
        "trainer_args.json": json.dumps(trainer_args(request.layout, request.job), indent=2)
        + "\n",
        "accelerate.sh": _launcher(request, no_model),
        **programs(PROGRAM, SHARED),
        **model,
    }


def launch_config(layout: Layout, job: TrainingJob, pool: Pool) -> dict[str, object]:
    """Return the launch configuration as a dict."""
    n_nodes, _ = nodes(layout, pool)
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": n_nodes,
        "num_processes": layout.n_devices,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
        "mixed_precision": MIXED_PRECISION[job.precision],
        "fsdp_config": _fsdp(layout),
        "parallelism_config": _degrees(layout),
    }


def _fsdp(layout: Layout) -> dict[str, object]:
    """Return the FSDP block; ZeRO-3 frees gathered weights after the forward pass, ZeRO-2 not."""
    offload = {"fsdp_activation_checkpointing_offload": True} if layout.activation_offload else {}
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": layout.zero == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": layout.recompute == "full"
        and layout.recompute_layers > 0,
        **offload,
        # With tensor parallelism Accelerate hands the slices out as if they were whole.
        "fsdp_cpu_ram_efficient_loading": layout.tp == 1,
        "fsdp_offload_params": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _degrees(layout: Layout) -> dict[str, object]:
    """Return the degrees; FSDP shards over the context-parallel ranks too."""
    shard = layout.dp_shard // layout.cp
    sizes: dict[str, object] = {
        "dp_replicate_size": layout.dp // shard,
        "dp_shard_size": shard,
        "tp_size": layout.tp,
        "cp_size": layout.cp,
    }
    if layout.cp > 1:
        sizes["cp_comm_strategy"] = CP_COMM_STRATEGY[layout.cp_comm]
    return {f"parallelism_config_{name}": value for name, value in sizes.items()}


def trainer_args(
    layout: Layout, job: TrainingJob, *, with_optimizer: bool = True
) -> dict[str, object]:
    """Return the fields of transformers' TrainingArguments that the plan decides.

    Accumulated micro-batches keep whole gradients on every rank unless they are reduced each.
    Without `with_optimizer` the name of the optimizer stands elsewhere.
    """
    args: dict[str, object] = {
        "per_device_train_batch_size": layout.mbs,
        "gradient_accumulation_steps": layout.n_micro,
        "max_steps": train_steps(job),
        "gradient_checkpointing": False,
        "bf16": job.precision == "bf16",
        "fp16": job.precision == "fp16",
        **({"optim": TRAINER_OPTIM[job.optimizer]} if with_optimizer else {}),
        "learning_rate": 1.5e-4,
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "logging_steps": 1,
    }
    if job.precision == "fp32":
        args["tf32"] = True  # the plan prices fp32 GEMMs at TF32 rates
    if layout.n_micro > 1:
        every_batch = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
        args["accelerator_config"] = every_batch
    return args


def _yaml(request: EmitRequest) -> str:
    """Return the launch configuration as text."""
    release = request.release_of("fsdp2")
    title = f"Accelerate launch configuration; keys as of Accelerate {release}."
    facts = fact_lines(request, stated_or_none(request.details))
    lines = head(title, request.header, facts)[1:]
    for key, value in launch_config(request.layout, request.job, request.pool).items():
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {k}: {yaml_scalar(v, TEXTS)}" for k, v in value.items())]
        else:
            lines += [f"{key}: {yaml_scalar(value, TEXTS)}"]
    return "\n".join(lines) + "\n"


def _launcher(request: EmitRequest, no_model: str) -> str:
    layout, shape, job, details = request.layout, request.shape, request.job, request.details
    n_nodes, _ = nodes(layout, request.pool)
    fused = layout.cp > 1 or shape.flash_attention
    settings = {
        "SCRIPT": script_setting(PROGRAM, lacking_images(shape)),
        "ATTENTION": attention_setting(shape, fused),
        "MODEL": model_note(no_model),
    }
    text = _SETTINGS.replace("N_NODES", str(n_nodes))
    words = " ".join(["--seq-length", str(job.seq_len), *source_words(shape)])
    release = request.release_of("fsdp2")
    title = f"Accelerate launcher; accelerate.yaml as of Accelerate {release}."
    comments = [*shown_details(details), *carried_by_config(details)]
    lines = [
        *head(title, request.header, fact_lines(request, stated_or_none(details))),
        "#",
        *(f"# {line}" for line in (*_notes(layout, shape, job), *comments)),
        *filled_settings(text, settings).splitlines(),
        'accelerate launch --config_file "${HERE}/accelerate.yaml" \\',
        '  --machine_rank "${NODE_RANK}" \\',
        '  --main_process_ip "${MASTER_ADDR}" --main_process_port "${MASTER_PORT}" \\',
        '  "${TRAIN_SCRIPT}" \\',
        f'  --trainer-args "${{HERE}}/trainer_args.json" {words} \\',
        '  "$@"',
    ]
    return "\n".join(lines) + "\n"


def _notes(layout: Layout, shape: ModelShape, job: TrainingJob) -> list[str]:
    notes = [
        f"TRAIN_SCRIPT builds {shape.name} ({shape.layers} layers, sequences of {job.seq_len}) and"
        " reads the numbers of",
        f"trainer_args.json: {PROGRAM}, or a script of yours around the Hugging Face Trainer.",
        f"The global batch is {layout.gbs} = {layout.mbs} x {layout.n_micro} x {layout.dp}.",
    ]
    if layout.cp > 1:
        notes += ["PyTorch splits sequences inside its own attention: attn_implementation sdpa."]
    if layout.n_micro > 1:
        notes += [
            "sync_each_batch shards the gradients of every micro-batch, as the plan counts them.",
        ]
    if job.precision == "bf16":
        notes += ["Accelerate reduces gradients in bf16, as the plan counts it."]
    if layout.tp > 1:
        notes += [
            f"Tensor parallelism: {PROGRAM} applies the plan of a model's class of",
            "transformers 5 over Accelerate's mesh, as Accelerate 1.15 itself does for 4 alone.",
        ]
    return notes + kernel_notes(shape)


_SETTINGS = """#
# Run it once on each of the N_NODES node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node).
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

# ---- YOURS: data and checkpoints, another model or script ----
# DATA: a flat file of tokens (.bin), .jsonl, .parquet, a data set of Hugging Face; text needs
# TOKENIZER. SAVE: the folder of checkpoints, --resume goes on from there.
export DATA="${DATA:-}" TOKENIZER="${TOKENIZER:-}" SAVE="${SAVE:-}"
MODEL_NOTE
export MODEL="${MODEL:-}" ATTENTION="${ATTENTION:-ATTENTION_NAME}"
SCRIPT_LINE
# --------------------------------------------------------------

# With --smoke: two steps on the CPU, all processes of the plan on this machine; words of the
# launcher's own up to the port are given anew, the port as a free one.
accelerate() {
  if [[ " $* " == *" --smoke "* ]]; then
    shift 9
    CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1 command accelerate launch --num_machines 1 \\
      --config_file "${HERE}/accelerate.yaml" --main_process_port 0 "$@"
  else
    command accelerate "$@"
  fi
}

"""
