"""Writes a plan as a DeepSpeed JSON and the launcher that goes with it.

DeepSpeed configures the engine; a training program builds the model (`data/programs`, or one of
the user's). What the JSON cannot say (pipeline stages, which layers are recomputed) goes to it as
arguments, named in the launcher.
"""

import json

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.emitted_text import (
    carried_by_config,
    fact_lines,
    head,
    nodes,
    shown_details,
    stated_or_none,
    train_steps,
    wrap,
)
from planner.frameworks.hf_config import config_file
from planner.frameworks.hf_kernels import kernel_notes, lacking_images
from planner.frameworks.programs import (
    SHARED,
    attention_setting,
    filled_settings,
    model_note,
    programs,
    script_setting,
    source_words,
)
from searches.frameworks.deepspeed.layouts import pipeline_partition, unfound_experts
from searches.frameworks.megatron.layer_kinds import has_mixer

PROGRAM = "deepspeed_train.py"
BUCKET_LIMITS = (50_000_000, 500_000_000)
"""Elements of a bucket: enough for full bandwidth, at most DeepSpeed's default."""


def deepspeed_files(request: EmitRequest) -> dict[str, str]:
    """Return JSON, launcher and program of a plan that DeepSpeed can run."""
    config = deepspeed_config(request.layout, request.shape, request.job)
    model, no_model = config_file(request.shape, request.job, request.details)
    return {
        "deepspeed.json": json.dumps(config, indent=2) + "\n",
        "deepspeed.sh": _launcher(request, no_model),
        **programs(PROGRAM, SHARED),
        **model,
    }


def lacks(layout: Layout, shape: ModelShape) -> str:
    """Return what of a plan the program cannot do, or ''; a script of the user's may."""
    if layout.pp > 1 and shape.positions == "learned":
        return "pipeline of a model with learned positions"
    return lacking_images(shape)


def _optimizer(job: TrainingJob) -> dict[str, object]:
    params: dict[str, object] = {"lr": 1.5e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}
    if job.optimizer == "lion":
        return {"type": "Lion", "params": params}
    adam = {"lr": 1.5e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    return {"type": "AdamW", "params": adam}


def deepspeed_config(layout: Layout, shape: ModelShape, job: TrainingJob) -> dict[str, object]:
    """Return the JSON as a dict."""
    config: dict[str, object] = {
        **_batch(layout),
        "gradient_clipping": 1.0,
        "optimizer": _optimizer(job),
        **_precision(layout, job),
        "zero_optimization": _zero(layout, shape),
    }
    if layout.tp > 1:
        # The plan splits the head and its logits over tp; without this AutoTP may keep them whole.
        config["tensor_parallel"] = {"autotp_size": layout.tp, "vocab_parallel_lm_head": True}
    if layout.cp > 1:
        # Without data_parallel_size beside it: DeepSpeed would make groups over which ZeRO neither
        # shards nor reduces; those that the training script registers span all sequence ranks.
        config["sequence_parallel_size"] = layout.cp
        config["seq_parallel_communication_data_type"] = config["communication_data_type"]
    if shape.n_experts and not unfound_experts(shape):
        config["expert_parallel"] = {"enabled": True, "autoep_size": layout.ep, **_preset(shape)}
    if layout.recompute != "none":
        config["activation_checkpointing"] = {
            "partition_activations": False,
            "contiguous_memory_optimization": False,
            "cpu_checkpointing": layout.activation_offload,
        }
    return config | {"steps_per_print": 1, "wall_clock_breakdown": False}


PRESETS = {
    "kda": "deepseek_v3",
    "sparse": "deepseek_v3",
    "gdn": "qwen3_5_moe",
    "linear": "mixtral",
}
"""Whose experts a class has that AutoEP does not know, by mixer."""


def _preset(shape: ModelShape) -> dict[str, object]:
    """Return the preset of AutoEP for classes of which it would find several."""
    names = [preset for mixer, preset in PRESETS.items() if has_mixer(shape, mixer)]
    return {"preset_model": names[0]} if names else {}


def _batch(layout: Layout) -> dict[str, int]:
    """Return the batch sizes; with AutoTP without their product.

    DeepSpeedConfig checks train_batch_size against the whole world there, not world / tp.
    """
    sizes = {
        "train_micro_batch_size_per_gpu": layout.mbs,
        "gradient_accumulation_steps": layout.n_micro,
    }
    return sizes if layout.tp > 1 else {"train_batch_size": layout.gbs, **sizes}


def _precision(layout: Layout, job: TrainingJob) -> dict[str, object]:
    """Return the number formats: compute, gradient sum, wire.

    Without ZeRO the gradients are summed in the format of the weights, and the key stays away.
    """
    recipe = job.recipe
    dtype = {"bf16": "bf16", "fp16": "fp16", "tf32": "fp32"}[recipe.gemm_precision]
    block: dict[str, object] = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    wide = job.base_precision in ("bf16", "fp16")
    if layout.zero or layout.optimizer_offload:
        block["data_types"] = {"grad_accum_dtype": "fp32" if wide else dtype}
    wire = "fp32" if recipe.grad_wire_bytes == 4 else dtype
    return block | {"communication_data_type": wire}


def _zero(layout: Layout, shape: ModelShape) -> dict[str, object]:
    """Return the ZeRO block. Buckets grow with the layers, as Hugging Face's "auto" values do."""
    low, high = BUCKET_LIMITS
    bucket = min(max(shape.hidden**2, low), high)
    # One rank alone has nothing to shard, but only ZeRO can be offloaded.
    stage = max(layout.zero, int(layout.optimizer_offload))
    zero: dict[str, object] = {"stage": stage}
    if stage == 0:
        return zero
    if layout.optimizer_offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    zero |= {
        "overlap_comm": layout.pp == 1 and layout.dp_overlap,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
    }
    if stage < 3:
        return zero | {"allgather_partitions": True, "allgather_bucket_size": bucket}
    second = {"zero_hpz_partition_size": layout.hpz} if layout.hpz > 1 else {}
    return (
        zero
        | second
        | {
            "stage3_prefetch_bucket_size": bucket * 9 // 10,
            "stage3_param_persistence_threshold": 10 * shape.hidden,
            "stage3_gather_16bit_weights_on_model_save": False,
        }
    )


def _launcher(request: EmitRequest, no_model: str) -> str:
    layout, shape, job, details = request.layout, request.shape, request.job, request.details
    n_nodes, per_node = nodes(layout, request.pool)
    options = [*_script_words(layout, job), *source_words(shape)]
    settings = {
        "SCRIPT": script_setting(PROGRAM, lacks(layout, shape)),
        "ATTENTION": attention_setting(shape, shape.flash_attention),
        "MODEL": model_note(no_model),
    }
    comments = [*shown_details(details), *carried_by_config(details)]
    release = request.release_of("deepspeed")
    lines = [
        *head(
            f"DeepSpeed launcher; deepspeed.json as of DeepSpeed {release}.",
            request.header,
            fact_lines(request, stated_or_none(details)),
        ),
        "#",
        *(f"# {line}" for line in (*_notes(layout, shape, job), *comments)),
        *filled_settings(_SETTINGS, settings).splitlines(),
        *_FUNCTION.format(n_nodes=n_nodes, per_node=per_node, world=layout.n_devices).splitlines(),
        f'deepspeed --hostfile "${{HOSTFILE}}" --num_nodes {n_nodes} --num_gpus {per_node} \\',
        '  --master_port "${MASTER_PORT}" \\',
        '  "${TRAIN_SCRIPT}" \\',
        '  --deepspeed --deepspeed_config "${HERE}/deepspeed.json" \\',
        *(f"  {line} \\" for line in wrap(options)),
        '  "$@"',
    ]
    return "\n".join(lines) + "\n"


def _script_words(layout: Layout, job: TrainingJob) -> list[str]:
    """Return what the training script must be told, because the JSON cannot say it."""
    options = ["--seq-length", str(job.seq_len), "--train-steps", str(train_steps(job))]
    if layout.pp > 1:
        options += ["--pipeline-stages", str(layout.pp)]
        options += ["--partition-method", pipeline_partition(layout)]
    if layout.recompute != "none":
        options += ["--recompute", layout.recompute]
    if layout.recompute == "full":
        options += ["--recompute-layers", str(layout.recompute_layers)]
    return options


def _notes(layout: Layout, shape: ModelShape, job: TrainingJob) -> list[str]:
    notes = [
        f"TRAIN_SCRIPT builds {shape.name} ({shape.layers} layers, sequences of {job.seq_len}) and"
        " calls deepspeed.initialize.",
        f"The arguments after deepspeed.json are for that script. {PROGRAM} is one; another",
        "has to do what the next lines say.",
    ]
    if layout.tp > 1:
        notes += [
            f"AutoTP splits a Hugging Face model over {layout.tp} ranks, which must read the same",
            "data. train_batch_size is left out: DeepSpeed would divide it by all ranks. The",
            f"global batch is {layout.gbs} = {layout.mbs} x {layout.n_micro} x {layout.dp}.",
        ]
    if layout.cp > 1:
        notes += [
            "Ulysses: mpu = UlyssesSPAttentionHF.register_with_transformers(...,",
            f"sequence_parallel_size={layout.cp}, micro_batch_size={layout.mbs},"
            f" seq_length={job.seq_len}) before the",
            "model is built, deepspeed.initialize(..., mpu=mpu), and of each sequence this rank's",
            f"part. ZeRO then shards over all {layout.dp * layout.cp} ranks.",
        ]
    if shape.n_experts and not unfound_experts(shape):
        notes += [
            f"AutoEP spreads the {shape.n_experts} experts of a Hugging Face model over"
            f" {layout.ep} ranks; a model type",
            "that it does not know needs expert_parallel.preset_model or its patterns.",
        ]
    if layout.pp > 1:
        notes += [
            "Pipeline: PipelineModule(layers, num_stages=PIPELINE_STAGES,",
            "partition_method=PARTITION_METHOD) over a list of embedding, blocks and head;",
            "`type:block` matches the class name of a block. Stages in layers:",
            f"{' '.join(map(str, layout.stage_layers))}.",
        ]
    return notes + _recompute_notes(layout) + kernel_notes(shape)


def _recompute_notes(layout: Layout) -> list[str]:
    if layout.recompute == "selective":
        return ["Recompute: the attention core only; the script decides, not the JSON."]
    if layout.recompute == "none":
        return []
    if layout.pp > 1:
        return ["Recompute: every layer, with PipelineModule(activation_checkpoint_interval=1)."]
    where = " on the host" * layout.activation_offload
    return [
        f"Recompute: the first {layout.recompute_layers} layers; the script decides which, the"
        " JSON only how",
        f"their inputs are kept{where}.",
    ]


_SETTINGS = """set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# ---- YOURS: the hosts (lines of `name slots=8`), data and checkpoints, another script ----
HOSTFILE="${HOSTFILE:-/job/hostfile}"
# DATA: a flat file of tokens (.bin), .jsonl, .parquet, a data set of Hugging Face; text needs
# TOKENIZER. SAVE: the folder of checkpoints, --resume goes on from there.
export DATA="${DATA:-}" TOKENIZER="${TOKENIZER:-}" SAVE="${SAVE:-}"
MODEL_NOTE
export MODEL="${MODEL:-}" ATTENTION="${ATTENTION:-ATTENTION_NAME}"
SCRIPT_LINE
# -------------------------------------------------------------------------------------------
MASTER_PORT="${MASTER_PORT:-29500}"
"""

_FUNCTION = """
# The deepspeed launcher starts all nodes from the first, over SSH. Slurm and Kubernetes start this
# script once on every node instead, with NODE_RANK and MASTER_ADDR set: then torchrun starts the
# processes of this node, after the launcher's own eight words.
# With --smoke: two steps on the CPU, all processes of the plan on this machine.
deepspeed() {{
  if [[ " $* " == *" --smoke "* ]]; then
    shift 8
    DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1 \\
      torchrun --standalone --nproc-per-node {world} "$@"
  elif [[ -z "${{NODE_RANK:-}}" ]]; then
    command deepspeed "$@"
  else
    shift 8
    torchrun --nnodes {n_nodes} --nproc-per-node {per_node} --node-rank "${{NODE_RANK}}" \\
      --master-addr "${{MASTER_ADDR:?set it with NODE_RANK}}" --master-port "${{MASTER_PORT}}" "$@"
  fi
}}

"""
