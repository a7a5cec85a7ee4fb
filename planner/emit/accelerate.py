"""Writes a plan as an Accelerate launch configuration with FSDP2, and what the Trainer needs.

Accelerate sets the process groups and the sharding; the model is the user's code. Batch sizes and
gradient accumulation are arguments of the Hugging Face Trainer and stand in a file of their own.
"""

import json
from collections.abc import Sequence

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from hardware.parts import Pool
from planner.emit._text import (
    facts,
    head,
    nodes,
    shown_details,
    stated_or_none,
    train_steps,
)
from planner.schemas import NO_DETAILS, DetailsSpec
from searches.frameworks import RELEASES

MIXED_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}
"""Accelerate's `mixed_precision` by precision of the plan."""
CP_COMM_STRATEGY = {"all-gather": "allgather", "p2p": "alltoall"}
"""Gather all keys and values, or pass them on around the ring (by all-to-alls)."""


def accelerate_files(
    layout: Layout,
    shape: ModelShape,
    job: TrainingJob,
    pool: Pool,
    header: Sequence[str],
    details: DetailsSpec = NO_DETAILS,
) -> dict[str, str]:
    """Return the launch configuration, the arguments of the Trainer and the launcher."""
    return {
        "accelerate.yaml": _yaml(layout, shape, job, pool, header, details),
        "trainer_args.json": json.dumps(trainer_args(layout, job), indent=2) + "\n",
        "accelerate.sh": _launcher(layout, shape, job, pool, header, details),
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
    away = {"fsdp_activation_checkpointing_offload": True} if layout.activation_offload else {}
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": layout.zero == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": layout.recompute == "full"
        and layout.recompute_layers > 0,
        **away,
        "fsdp_cpu_ram_efficient_loading": True,
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


def trainer_args(layout: Layout, job: TrainingJob) -> dict[str, object]:
    """Return the fields of transformers' TrainingArguments that the plan decides.

    Accumulated micro-batches keep whole gradients on every rank unless they are reduced each.
    """
    args: dict[str, object] = {
        "per_device_train_batch_size": layout.mbs,
        "gradient_accumulation_steps": layout.n_micro,
        "max_steps": train_steps(job),
        "gradient_checkpointing": False,
        "bf16": job.precision == "bf16",
        "fp16": job.precision == "fp16",
        "optim": "adamw_torch_fused",
        "learning_rate": 1.5e-4,
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "logging_steps": 1,
    }
    if job.precision == "fp32":
        args["tf32"] = True  # the plan prices fp32 GEMMs at TF32 rates
    if layout.n_micro > 1:
        whole = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
        args["accelerator_config"] = whole
    return args


def _yaml(
    layout: Layout,
    shape: ModelShape,
    job: TrainingJob,
    pool: Pool,
    header: Sequence[str],
    details: DetailsSpec,
) -> str:
    """Return the launch configuration as text."""
    title = f"Accelerate launch configuration; keys as of Accelerate {RELEASES['fsdp2']}."
    lines = head(title, header, facts(layout, shape, job, pool, stated_or_none(details)))[1:]
    for key, value in launch_config(layout, job, pool).items():
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {k}: {_scalar(v)}" for k, v in value.items())]
        else:
            lines += [f"{key}: {_scalar(value)}"]
    return "\n".join(lines) + "\n"


def _scalar(value: object) -> str:
    """Return a YAML scalar; the word no, which YAML takes for false, in quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return '"no"' if value == "no" else str(value)


def _launcher(
    layout: Layout,
    shape: ModelShape,
    job: TrainingJob,
    pool: Pool,
    header: Sequence[str],
    details: DetailsSpec,
) -> str:
    n_nodes, _ = nodes(layout, pool)
    title = f"Accelerate launcher; accelerate.yaml as of Accelerate {RELEASES['fsdp2']}."
    lines = [
        *head(title, header, facts(layout, shape, job, pool, stated_or_none(details))),
        "#",
        *(f"# {line}" for line in (*_notes(layout, shape, job), *shown_details(details))),
        *_SETTINGS.format(n_nodes=n_nodes).splitlines(),
        'accelerate launch --config_file "${HERE}/accelerate.yaml" \\',
        '  --machine_rank "${NODE_RANK}" \\',
        '  --main_process_ip "${MASTER_ADDR}" --main_process_port "${MASTER_PORT}" \\',
        '  "${TRAIN_SCRIPT}" \\',
        f'  --trainer-args "${{HERE}}/trainer_args.json" --seq-length {job.seq_len} \\',
        '  "$@"',
    ]
    return "\n".join(lines) + "\n"


def _notes(layout: Layout, shape: ModelShape, job: TrainingJob) -> list[str]:
    # PyTorch splits the sequence inside its own scaled dot product attention.
    attention = "sdpa" if layout.cp > 1 or not shape.flash_attention else "flash_attention_2"
    notes = [
        f"TRAIN_SCRIPT builds {shape.name} ({shape.layers} layers, attn_implementation"
        f" {attention}, sequences of {job.seq_len}),",
        "reads TrainingArguments from trainer_args.json and runs the Hugging Face Trainer, or",
        "sets the same numbers in a loop of its own. The global batch is"
        f" {layout.gbs} = {layout.mbs} x {layout.n_micro} x {layout.dp}.",
    ]
    if layout.n_micro > 1:
        notes += [
            "sync_each_batch shards the gradients of every micro-batch, as the plan counts them.",
        ]
        if layout.zero == 2:
            notes += ["FSDP gathers the weights for each micro-batch, the plan counts it once."]
    if job.precision == "bf16":
        notes += ["Accelerate reduces gradients in bf16, half the traffic that the plan counts."]
    if layout.tp > 1:
        notes += [
            f'Tensor parallelism: from_pretrained(..., tp_plan="auto", tp_size={layout.tp}) of',
            "transformers 4; Accelerate 1.15 imports from it what transformers 5 moved.",
        ]
    return notes


_SETTINGS = """#
# Run it once on each of the {n_nodes} node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node).
set -euo pipefail

HERE="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
MASTER_ADDR="${{MASTER_ADDR:-localhost}}"
MASTER_PORT="${{MASTER_PORT:-29500}}"
NODE_RANK="${{NODE_RANK:-${{SLURM_NODEID:-0}}}}"

# ---- YOURS: the training script ----
TRAIN_SCRIPT="${{TRAIN_SCRIPT:-train.py}}"
# ------------------------------------
"""
