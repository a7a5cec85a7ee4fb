"""Writes a plan as an experiment of Primus, and the script that starts it.

The experiment extends Primus's own presets and says everything that the plan needs in its
`overrides`, sizes of the model included. `primus-cli direct` starts the processes of one node.
"""

from collections.abc import Mapping
from typing import Any

from planner.frameworks.emit_request import EmitRequest, RefusedPlanError
from planner.frameworks.emitted_text import (
    fact_lines,
    guarded,
    head,
    nodes,
    training_only,
    yaml_scalar,
)
from planner.frameworks.megatron.core_details import comment_lines, core_details
from planner.frameworks.primus.options import odd_values, option_table
from planner.frameworks.primus.settings import plan_settings
from searches.frameworks.megatron.settings import SINGLE_QUEUE

CONFIG = "primus.yaml"
"""Name of the experiment beside the script."""
PRESETS = ("pre_trainer.yaml", "language_model.yaml")
"""Module and model that the experiment extends."""


def primus_files(request: EmitRequest) -> dict[str, str]:
    """Return the experiment of a plan and its launch script, by file name."""
    layout, shape, job, details = request.layout, request.shape, request.job, request.details
    groups = plan_settings(layout, shape, job, details)
    of_core = core_details(details, layout, shape, job)
    of_details = {**of_core.model, **of_core.experts}
    groups = {name: _said(section, of_details) for name, section in groups.items()}
    written = {k: v for section in groups.values() for k, v in section.items()}
    if lacking := odd_values(written):
        raise RefusedPlanError([f"keys: {text}" for text in lacking])
    lost = (
        f"{key} {value!r}: Primus has no such key or value"
        for key, value in of_details.items()
        if key not in written or odd_values({key: value})
    )
    missing = (*of_core.yours, *lost)
    return {
        CONFIG: _experiment(request, groups, missing),
        "primus.sh": _script(request, missing),
    }


def _said(section: Mapping[str, Any], of_details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a section without details of the model that Primus has not.

    Scaled positions that it has not are plain rotary ones.
    """
    result = dict(section)
    for key in section.keys() & of_details.keys():
        if odd_values({key: section[key]}):
            del result[key]
            if key == "position_embedding_type":
                result[key] = "rope"
    return result


def _experiment(
    request: EmitRequest, groups: dict[str, dict[str, object]], missing: tuple[str, ...]
) -> str:
    """Return the experiment as text."""
    release, commit = request.release_of("primus"), option_table()[0]["commit"][:8]
    title = f"Experiment of Primus {release}; keys as of commit {commit}, Megatron backend."
    facts = fact_lines(request, dict(request.details.stated()) or None)
    lines = [
        *head(title, request.header, facts)[1:],
        *comment_lines(training_only(missing), "Primus has no key for this."),
        "work_group: planner",
        "user_name: planner",
        f"exp_name: {yaml_scalar(request.shape.name)}",
        'workspace: "./output"',
        "",
        "modules:",
        "  pre_trainer:",
        "    framework: megatron",
        f"    config: {PRESETS[0]}",
        f"    model: {PRESETS[1]}",
        "    overrides:",
    ]
    for name, section in groups.items():
        lines += [f"      # {name}"]
        lines += [f"      {key}: {yaml_scalar(value)}" for key, value in section.items()]
    return "\n".join(lines) + "\n"


def _script(request: EmitRequest, missing: tuple[str, ...]) -> str:
    """Return the launch script of one node."""
    n_nodes, per_node = nodes(request.layout, request.pool)
    title = f"Launcher of Primus {request.release_of('primus')} for {CONFIG}."
    facts = fact_lines(request, dict(request.details.stated()) or None)
    settings = _SETTINGS.replace("N_NODES", str(n_nodes)).replace("PER_HOST", str(per_node))
    lines = [
        *head(title, request.header, facts),
        *guarded(settings, missing),
        *_environment(request),
        *_START.splitlines(),
    ]
    return "\n".join(lines) + "\n"


def _environment(request: EmitRequest) -> list[str]:
    """Return the variables that the plan needs, each with its reason."""
    layout, lines = request.layout, []
    if layout.value("ep_overlap") != "off":
        lines += [
            "# The exchange of tokens has a queue of its own beside the compute that hides it.",
            f"export {SINGLE_QUEUE}=32",
        ]
    elif layout.zero >= 2:
        lines += [
            "# Megatron-FSDP refuses the value 1, which the launcher sets where nothing is set.",
            f"export {SINGLE_QUEUE}=8",
        ]
    if request.job.recipe.fp8_recipe == "mxfp8":
        lines += [
            "# Primus takes the recipe mxfp8 only with this.",
            "export NVTE_ROCM_ENABLE_MXFP8=1",
        ]
    return [*lines, ""] if lines else []


_SETTINGS = """#
# Run it once on each of the N_NODES node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node), inside the container of Primus. Keys of your own go after the script name and win
# over those of primus.yaml, for example: primus.sh train_iters=20 save=DIR save_interval=500.
# The learning rate does not change the cost and is yours.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export NNODES="${NNODES:-N_NODES}" GPUS_PER_NODE="${GPUS_PER_NODE:-PER_HOST}"
export MASTER_ADDR="${MASTER_ADDR:-localhost}" MASTER_PORT="${MASTER_PORT:-29500}"
export NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

# ---- YOURS: where things are ----
# Folder of the Primus checkout; empty: primus-cli as installed.
PRIMUS_DIR="${PRIMUS_DIR:-}"
# As it stands the run takes synthetic data, for a timing trial. Set both for a real one:
# TRAIN_DATA_PATH=/data/corpus_text_document TOKENIZER_MODEL=meta-llama/Meta-Llama-3-8B
TRAIN_DATA_PATH="${TRAIN_DATA_PATH:-}"
TOKENIZER_MODEL="${TOKENIZER_MODEL:-}"
# ---------------------------------

"""
_START = """DATA=()
if [[ -n "${TRAIN_DATA_PATH}" ]]; then
  DATA=(mock_data=false "train_data_path=${TRAIN_DATA_PATH}" tokenizer_type=HuggingFaceTokenizer
    "tokenizer_model=${TOKENIZER_MODEL:?set it with TRAIN_DATA_PATH}")
fi
CLI=primus-cli
if [[ -n "${PRIMUS_DIR}" ]]; then CLI="${PRIMUS_DIR}/runner/primus-cli"; fi
exec "${CLI}" direct -- train pretrain --config "${HERE}/primus.yaml" \\
  "${DATA[@]+"${DATA[@]}"}" "$@"
"""
