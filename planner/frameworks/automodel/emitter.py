"""Writes a plan as a recipe of NeMo AutoModel, its launcher, and the model's config.json.

The recipe trains from random weights on random tokens until data and weights are named.
"""

import json
from collections.abc import Mapping
from typing import Any

from costmodels.plans import Layout
from costmodels.shapes import ModelShape
from planner.frameworks.automodel.options import own_architectures
from planner.frameworks.automodel.settings import (
    batch_keys,
    distributed_keys,
    forces_transformers,
    model_keys,
    optimizer_keys,
)
from planner.frameworks.emit_request import EmitRequest, RefusedPlanError
from planner.frameworks.emitted_text import (
    NAMES,
    fact_lines,
    head,
    nodes,
    shown_details,
    stated_or_none,
    train_steps,
    yaml_scalar,
)
from planner.frameworks.hf_config import FILE, config_file

RECIPE = "automodel.yaml"
CONFIG = "config.json"
"""The model, beside the recipe: a folder is what its own classes are told, as of a file they would
look for weights in a repository of that name."""
ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
}
"""Architectures by `model_type`, of classes of its own; others are transformers'."""
WITH_TOKENS_CUT = ("llama", "qwen2", "qwen3")
"""Types whose plan of tensor parallelism has sequence parallelism."""


def automodel_files(request: EmitRequest) -> dict[str, str]:
    """Return the recipe, its launcher, and the config.json of the model where a class holds it."""
    model, no_model = model_config(request)
    kind = json.loads(model[CONFIG])["model_type"] if model else ""
    if request.layout.sp and request.layout.tp > 1 and kind not in WITH_TOKENS_CUT:
        raise RefusedPlanError(
            [f"sequence parallelism: no plan for {kind or 'this model'} has it; closest: sp off"]
        )
    if request.layout.ep > 1 and model and kind not in ARCHITECTURES:
        no_model = (
            f"the sizes alone are {kind}'s, of which there is no class with expert parallelism:"
            " Qwen3, DeepSeek-V3, GLM-4.5 and gpt-oss have one"
        )
        model = {}
    return {
        RECIPE: _yaml(request),
        "automodel.sh": _launcher(request, no_model),
        **model,
    }


def model_config(request: EmitRequest) -> tuple[dict[str, str], str]:
    """Return `config.json` by its name, or nothing and why no class holds the model."""
    files, why_not = config_file(request.shape, request.job, request.details)
    if not files:
        return {}, why_not
    config = json.loads(files[FILE])
    name = ARCHITECTURES.get(config["model_type"], "")
    if name in own_architectures():
        config = {"architectures": [name], **config}
    return {CONFIG: json.dumps(config, indent=2) + "\n"}, ""


def recipe(request: EmitRequest) -> dict[str, Any]:
    """Return the recipe as nested sections."""
    layout, shape, job = request.layout, request.shape, request.job
    local = batch_keys(layout)["local_batch_size"]
    steps = train_steps(job)
    return {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "seed": 1234,
        "step_scheduler": {
            **batch_keys(layout),
            "max_steps": steps,
            "num_epochs": 1,
            "ckpt_every_steps": steps,
        },
        "dist_env": {"backend": "nccl", "timeout_minutes": 30},
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_config",
            "config": {
                "_target_": "transformers.AutoConfig.from_pretrained",
                "pretrained_model_name_or_path": "${MODEL,.}",
            },
            **model_keys(layout, shape, job),
        },
        "distributed": distributed_keys(layout, shape, job),
        "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
        "optimizer": optimizer_keys(job),
        "clip_grad_norm": {"max_norm": 1.0},
        "dataset": {
            "_target_": "nemo_automodel.components.datasets.llm.mock_iterable_dataset"
            ".MockIterableDataset",
            "vocab_size": shape.vocab,
            "seq_len": job.seq_len,
            "batch_size": local,
            "num_samples": steps * max(1, layout.n_micro),
            "tokenizer": None,  # else the model's own is looked for
        },
        "dataloader": {"_target_": "torch.utils.data.DataLoader", "batch_size": None},
        "checkpoint": {"enabled": False},
    }


def _lines(sections: Mapping[str, Any], depth: int = 0) -> list[str]:
    lines: list[str] = []
    for key, value in sections.items():
        space = "  " * depth
        if not depth and key in _COMMENTS:
            lines += ["", *(f"# {line}" for line in _COMMENTS[key])]
        if isinstance(value, Mapping):
            lines += [f"{space}{key}:", *_lines(value, depth + 1)]
        elif isinstance(value, list) and value and isinstance(value[0], list):
            lines += [f"{space}{key}:", *(f"{space}- {yaml_scalar(x)}" for x in value)]
        else:
            lines += [f"{space}{key}: {yaml_scalar(value, NAMES)}"]
    return lines


_COMMENTS: Mapping[str, tuple[str, ...]] = {
    "step_scheduler": ("The plan: batch, mesh, recomputation, precision.",),
    "loss_fn": ("The run: random tokens until a data set takes the place of `dataset`.",),
}


def _yaml(request: EmitRequest) -> str:
    release = request.release_of("automodel")
    title = f"Recipe of NeMo AutoModel; keys as of nemo_automodel {release}."
    facts = fact_lines(request, stated_or_none(request.details))
    lines = head(title, request.header, facts)[1:]
    lines += [f"# {line}" for line in notes(request.layout, request.shape)]
    return "\n".join([*lines, *_lines(recipe(request))]) + "\n"


def notes(layout: Layout, shape: ModelShape) -> list[str]:
    """Return where AutoModel does something else than is obvious, or than the plan counts."""
    lines = []
    if forces_transformers(layout, shape):
        lines += [
            "force_hf: transformers' class. AutoModel's own recompute parts of layers one by one,",
            "which keeps more than the plan counts, and need Transformer Engine for cp.",
        ]
    if layout.dp * layout.cp > 1:
        lines += [
            "Gradients are reduced in the type of the weights on the wire, as the plan counts it;",
            "reduce_dtype float32 is AutoModel's own and sends twice as much.",
        ]
    if layout.pp > 1:
        lines += [
            f"A local batch is the {layout.n_micro} micro-batches of {layout.mbs} that one"
            " pipeline runs in a step.",
        ]
    elif layout.n_micro > 1 and layout.zero == 2:
        lines += [
            f"{layout.n_micro} local batches are accumulated; weights are gathered for each, the"
            " plan counts it once a step.",
        ]
    return lines


def _launcher(request: EmitRequest, no_model: str) -> str:
    n_nodes, per_node = nodes(request.layout, request.pool)
    release = request.release_of("automodel")
    title = f"Launcher of NeMo AutoModel; {RECIPE} as of nemo_automodel {release}."
    facts = fact_lines(request, stated_or_none(request.details))
    settings = _SETTINGS.replace("N_NODES", str(n_nodes)).replace("MODEL_LINES", _model(no_model))
    lines = [
        *head(title, request.header, facts),
        *(f"# {line}" for line in shown_details(request.details)),
        *settings.splitlines(),
        f'torchrun --nnodes {n_nodes} --nproc-per-node {per_node} --node-rank "${{NODE_RANK}}" \\',
        '  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \\',
        f'  -m nemo_automodel.cli.app "${{HERE}}/{RECIPE}" \\',
        '  "$@"',
    ]
    return "\n".join(lines) + "\n"


def _model(no_model: str) -> str:
    if not no_model:
        return (
            "# MODEL, a folder with a config.json or a repository id, takes the place of this"
            f" {CONFIG}.\n"
            'export MODEL="${MODEL:-${HERE}}"'
        )
    note = f"# MODEL, a folder with a config.json or a repository id, is needed: {no_model}."
    return f'{note}\nexport MODEL="${{MODEL:?set it: a folder or a repository id}}"'


_SETTINGS = """#
# Run it once on each of the N_NODES node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node). Options of your own go after the script name and win over the recipe, for example
# --step_scheduler.max_steps 20.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

# ---- YOURS: the model; data and weights stand in the recipe ----
MODEL_LINES
# ----------------------------------------------------------------

"""
