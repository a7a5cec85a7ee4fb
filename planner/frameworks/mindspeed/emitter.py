"""Writes a plan as a launch script of MindSpeed-LLM: torchrun, on every node.

Options stand as plain words after `pretrain_gpt.py`, as in scripts for Megatron-LM. HCCL finds its
ranks by the address of torchrun: no rank table is needed.
"""

from planner.frameworks.emit_request import EmitRequest, RefusedPlanError
from planner.frameworks.emitted_text import fact_lines, guarded, head, nodes, training_only, wrap
from planner.frameworks.megatron.core_details import comment_lines
from planner.frameworks.megatron.details import stated_details
from planner.frameworks.megatron.emitter import refuse_lacking
from planner.frameworks.mindspeed.options import odd_options, parse_options
from planner.frameworks.mindspeed.reader import as_megatron
from planner.frameworks.mindspeed.settings import option_groups

SCRIPT = "mindspeed.sh"


def mindspeed_files(request: EmitRequest) -> dict[str, str]:
    """Return the script of a plan that MindSpeed-LLM can run, by file name."""
    layout, details = request.layout, request.details
    if layout.tp_overlap:
        raise RefusedPlanError(
            ["tp_overlap: --tp-comm-overlap needs Transformer Engine's buffers"]
        )
    groups, missing = option_groups(layout, request.shape, request.job, details)
    words = [word for _, flags in groups for word in flags]
    if odd := odd_options(words):
        raise RefusedPlanError([f"options: {text}" for text in odd])
    release = request.release_of("mindspeed")
    refuse_lacking(f"mindspeed@{release}", words)
    n_nodes, per_node = nodes(layout, request.pool)
    lines = [line for _, flags in groups for line in wrap(flags)]
    title = f"Launch script of MindSpeed-LLM {release}, on Megatron-LM core_v0.12.1."
    facts = fact_lines(request, _unsaid(words, request) if details.stated() else None)
    script = [
        *head(title, request.header, facts),
        *guarded(_SETTINGS.replace("N_NODES", str(n_nodes)), missing),
        *_FUNCTION.splitlines(),
        "",
        *comment_lines(training_only(missing), "MindSpeed-LLM has no option for this."),
        "# Options, each group from a new line:",
        f"# {', '.join(name for name, _ in groups)}.",
        f'torchrun --nnodes {n_nodes} --nproc-per-node {per_node} --node-rank "${{NODE_RANK}}" \\',
        '  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \\',
        "  pretrain_gpt.py \\",
        *(f"  {line} \\" for line in lines[:-1]),
        f"  {lines[-1]}",
    ]
    return {SCRIPT: "\n".join(script) + "\n"}


def _unsaid(words: list[str], request: EmitRequest) -> dict[str, object]:
    """Return the details that the options do not give back; null: those that they alone have."""
    parsed = parse_options([word.strip("'") for word in words])
    result = stated_details(as_megatron(parsed).parsed.settings)
    back, fields = {name: value for name, value, _ in result}, request.details.stated()
    lost = {name: value for name, value in fields.items() if back.get(name) != value}
    return lost | {name: None for name in back if name not in fields}


_SETTINGS = """#
# Run it once on each of the N_NODES node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node), where CANN and torch_npu are set up. Further options of your own go after the script
# name and win over those below, for example: mindspeed.sh --train-iters 20.
# The learning rate does not change the cost and is yours.
set -euo pipefail

MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

# Megatron-LM asks for one queue with tensor or context parallelism.
export CUDA_DEVICE_MAX_CONNECTIONS=1
# Ranks of large jobs start minutes apart: HCCL waits for them, and for slow steps.
export HCCL_CONNECT_TIMEOUT="${HCCL_CONNECT_TIMEOUT:-3600}"
export HCCL_EXEC_TIMEOUT="${HCCL_EXEC_TIMEOUT:-3600}"
# Less fragmentation, launches in two threads, processes bound to cores of their own.
export PYTORCH_NPU_ALLOC_CONF="${PYTORCH_NPU_ALLOC_CONF:-expandable_segments:True}"
export TASK_QUEUE_ENABLE="${TASK_QUEUE_ENABLE:-2}" CPU_AFFINITY_CONF="${CPU_AFFINITY_CONF:-1}"

# ---- YOURS: where things are ----
# Folder of the MindSpeed-LLM checkout, with megatron/ of core_v0.12.1 in it.
MINDSPEED_LLM_DIR="${MINDSPEED_LLM_DIR:-.}"
# As it stands the run takes synthetic data, for a timing trial. Set both for a real one:
# DATA_PATH=/data/corpus_text_document TOKENIZER_PATH=/models/Meta-Llama-3-8B
DATA_PATH="${DATA_PATH:-}"
TOKENIZER_PATH="${TOKENIZER_PATH:-}"
# ---------------------------------

EXTRA=("$@")
cd "${MINDSPEED_LLM_DIR}"

"""
_FUNCTION = """# Puts real data in place of the synthetic and adds the options of your own.
torchrun() {
  local words=() word
  for word in "$@"; do
    if [[ -n "${DATA_PATH}" && "${word}" == "--mock-data" ]]; then
      # Several weighted paths are several words.
      # shellcheck disable=SC2206
      words+=(--data-path ${DATA_PATH} --split "99,1,0")
    elif [[ -n "${DATA_PATH}" && "${word}" == "NullTokenizer" ]]; then
      words+=(PretrainedFromHF --tokenizer-name-or-path)
      words+=("${TOKENIZER_PATH:?set it with DATA_PATH}")
    else
      words+=("${word}")
    fi
  done
  command torchrun "${words[@]}" "${EXTRA[@]+"${EXTRA[@]}"}"
}
"""
