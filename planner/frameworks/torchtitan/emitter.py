"""Writes a plan as a torchtitan recipe, the launcher that starts it, and a job file.

Since 0.3.0 torchtitan is configured by a Python function (`--module torchtitan_recipe --config
train`), which may build a model of any size from torchtitan's own classes. Up to 0.2.2 it read a
TOML file, which can only name a registered model (`planner.frameworks.torchtitan.toml`).

Sizes stand in the recipe as constants under the names of the model file, degrees and batch sizes
as literals under torchtitan's own, so that it can be read without being run.
"""

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.emitted_text import (
    EmittedCode,
    fact_lines,
    guarded,
    head,
    keywords,
    nodes,
    stated_or_none,
    train_steps,
)
from planner.frameworks.megatron.core_details import comment_lines
from planner.frameworks.programs import TORCHTITAN_SMOKE, programs
from planner.frameworks.torchtitan.details import not_said
from planner.frameworks.torchtitan.fields import batch, compiler, parallelism
from planner.frameworks.torchtitan.model import (
    model_code,
    model_family,
    model_imports,
    model_sizes,
)
from planner.frameworks.torchtitan.releases import TOML_RELEASE, WRITTEN_MODULE
from planner.frameworks.torchtitan.toml import toml_files
from planner.specs.schema import DetailsSpec


def torchtitan_files(request: EmitRequest) -> dict[str, str]:
    """Return the recipe, its launcher, and the job file or why there is none.

    For a release that has no recipes, the job file and a launcher of it.
    """
    if request.release_of("torchtitan") == TOML_RELEASE:
        return {
            **toml_files(request),
            "torchtitan.sh": _launcher(request),
            **programs(TORCHTITAN_SMOKE),
        }
    return {
        f"{WRITTEN_MODULE}.py": recipe(request),
        "torchtitan.sh": _launcher(request),
        **programs(TORCHTITAN_SMOKE),
        **toml_files(request),
    }


def vocab_rows(layout: Layout, shape: ModelShape) -> int:
    """Return the rows of the vocabulary matrices: padded only to what tp divides."""
    return -(-shape.vocab // layout.tp) * layout.tp


def recipe(request: EmitRequest) -> str:
    """Return the recipe."""
    layout, shape, job, details = request.layout, request.shape, request.job, request.details
    release = request.release_of("torchtitan")
    title = f"torchtitan recipe; fields as of torchtitan {release}."
    policy = _policy(layout)
    functions = [
        model_code(shape, details),
        *([policy] if policy else []),
        _train(layout, shape, job),
    ]
    missing = not_said(details, shape, job, model_family(shape, details))
    yours = [*comment_lines(missing, "torchtitan's model does not have this.")]
    parts = [
        "\n".join(head(title, request.header, fact_lines(request, stated_or_none(details)))[1:]),
        _PREAMBLE.replace(*_FREE).replace("\n (", "\n(") if details.stated() else _PREAMBLE,
        _imports(layout, shape, details),
        *(["\n".join(yours) + "\n"] if yours else []),
        _YOURS,
        model_sizes(shape, vocab_rows(layout, shape), job.seq_len, details),
        "\n\n".join(functions),
    ]
    return "\n".join(parts)


def _imports(layout: Layout, shape: ModelShape, details: DetailsSpec) -> str:
    """Return the imports, sorted."""
    loss = "torchtitan.models.deepseek_v3" if shape.mtp_layers else "torchtitan.components.loss"
    own = {
        loss: ["MTPLoss" if shape.mtp_layers else "CrossEntropyLoss"],
        "torchtitan.components.metrics": ["MetricsProcessor"],
        "torchtitan.components.optimizer": ["default_adamw"],
        "torchtitan.config": [
            *["CompileConfig"] * layout.tp_overlap,
            "ParallelismConfig",
            "TrainingConfig",
        ],
        "torchtitan.hf_datasets.text_datasets": ["HuggingFaceTextDataLoader"],
        "torchtitan.trainer": ["Trainer"],
    }
    if _recompute(layout) != "None":
        own["torchtitan.distributed.activation_checkpoint"] = ["FullAC"]
    model = model_imports(shape, details)
    lines = ["import os"]
    lines += ["from dataclasses import dataclass"] * bool(_policy(layout))
    lines += ["from functools import partial", "", "import torch.nn as nn"]
    for module in sorted(own | model):
        names = sorted(own.get(module, []) + model.get(module, []), key=_case)
        line = f"from {module} import {', '.join(names)}"
        if len(line) > 99:
            line = f"from {module} import (\n" + "".join(f"    {n},\n" for n in names) + ")"
        lines += [line]
    return "\n".join(lines) + "\n"


def _case(name: str) -> tuple[bool, str]:
    """Sort classes before functions, as isort does."""
    return name[0].islower(), name


def _policy(layout: Layout) -> str:
    """Return the class of a recomputation that torchtitan does not have, else ''."""
    if layout.recompute == "selective":
        return _ATTENTION_CORE
    if layout.recompute == "full" and 0 < layout.recompute_layers < max(layout.stage_layers):
        return _FIRST_LAYERS
    return ""


def _recompute(layout: Layout) -> str:
    if layout.recompute == "none" or (layout.recompute == "full" and not layout.recompute_layers):
        return "None"
    if layout.recompute == "selective":
        return "AttentionCoreAC.Config()"
    if layout.recompute_layers < max(layout.stage_layers):
        return f"FirstLayersAC.Config(layers={layout.recompute_layers})"
    return "FullAC.Config()"


def _train(layout: Layout, shape: ModelShape, job: TrainingJob) -> str:
    """Return the function that torchtitan calls."""
    training = {
        **batch(layout),
        "seq_len": EmittedCode("SEQ_LEN"),
        "steps": train_steps(job),
        "mixed_precision_param": "float32" if job.precision == "fp32" else "bfloat16",
        "disable_cuda_graphs": True,
    }
    loss = "MTPLoss" if shape.mtp_layers else "CrossEntropyLoss"
    notes = [f"    # {line}\n" for line in _notes(layout)]
    return _TRAIN.format(
        notes="".join(notes),
        loss=loss,
        training=keywords(training, 12),
        parallelism=keywords(parallelism(layout), 12),
        recompute=_recompute(layout),
        compile=_compile(layout),
    )


def _compile(layout: Layout) -> str:
    """Return the argument that switches the compiler on, "" where the plan does without it."""
    fields = compiler(layout)
    return f"        compile=CompileConfig(\n{keywords(fields, 12)}        ),\n" if fields else ""


def _notes(layout: Layout) -> list[str]:
    """Return where torchtitan does something else than the plan counts, or hides what it does."""
    notes = []
    if layout.tp_overlap:
        notes += [
            "Asynchronous tensor parallelism needs torch.compile, which takes less time for the",
            "elementwise operators than the plan says.",
        ]
    if layout.pp > 1:
        notes += [
            f"A local batch is the {layout.n_micro} micro-batches of {layout.mbs} that one",
            "pipeline runs in a step; nothing is accumulated beside them.",
        ]
    elif layout.n_micro > 1:
        notes += [f"{layout.n_micro} local batches are accumulated in a step."]
        if layout.zero in (0, 2) and layout.dp * layout.cp > 1:
            what = "reduces gradients" if layout.zero == 0 else "gathers weights"
            notes += [f"torchtitan {what} for each of them, the plan counts it once a step."]
    return notes


def _launcher(request: EmitRequest) -> str:
    shape, details = request.shape, request.details
    n_nodes, per_node = nodes(request.layout, request.pool)
    missing = not_said(details, shape, request.job, model_family(shape, details))
    release = request.release_of("torchtitan")
    is_recipe = release != TOML_RELEASE
    file = f"{WRITTEN_MODULE}.py" if is_recipe else "torchtitan.toml"
    title = f"torchtitan launcher; {file} as of torchtitan {release}."
    lines = [
        *head(title, request.header, fact_lines(request, stated_or_none(details))),
        *guarded(_settings(n_nodes, is_recipe=is_recipe), missing),
        *_SMOKE.format(n_ranks=request.layout.n_devices).splitlines(),
        f'torchrun --nnodes {n_nodes} --nproc-per-node {per_node} --node-rank "${{NODE_RANK}}" \\',
        '  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \\',
        f"  -m torchtitan.train {_RECIPE_WORDS if is_recipe else _JOB_FILE_WORDS} \\",
        '  "$@"',
    ]
    return "\n".join(lines) + "\n"


def _settings(n_nodes: int, *, is_recipe: bool) -> str:
    """Return the settings of the launcher: a job file says itself where things are."""
    file, torch = ("recipe", _TORCH) if is_recipe else ("job file", "")
    start = _START.format(n_nodes=n_nodes, file=file, torch=torch)
    return start + (_PLACES if is_recipe else "") + _ALLOCATOR


_RECIPE_WORDS = f"--module {WRITTEN_MODULE} --config train"
_JOB_FILE_WORDS = '--job.config_file "${HERE}/torchtitan.toml"'
_TORCH = " It takes PyTorch 2.14 or later: with 2.13 torchtitan 0.3.0 does not start."

_START = """#
# Run it once on each of the {n_nodes} node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node). Options of your own go after the script name and win over the {file}, for example
# --training.steps 20.{torch}
# With --smoke all ranks run on this machine's CPUs for two steps: torchtitan_smoke.py.
set -euo pipefail

HERE="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
MASTER_ADDR="${{MASTER_ADDR:-localhost}}"
MASTER_PORT="${{MASTER_PORT:-29500}}"
NODE_RANK="${{NODE_RANK:-${{SLURM_NODEID:-0}}}}"

"""

_PLACES = """# ---- YOURS: where things are; torchtitan_recipe.py reads them ----
# Folder of the tokenizer, as torchtitan's scripts/download_hf_assets.py leaves it.
export HF_ASSETS="${HF_ASSETS:-./tests/assets/tokenizer}"
# A data set that torchtitan knows (c4, c4_test), and its folder where it is a local copy.
export DATASET="${DATASET:-c4_test}" DATASET_PATH="${DATASET_PATH:-}"
# ------------------------------------------------------------------
export PYTHONPATH="${HERE}${PYTHONPATH:+:${PYTHONPATH}}"
"""

_ALLOCATOR = """export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"

"""

_SMOKE = """if [[ " $* " == *" --smoke "* ]]; then
  exec env CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}" \\
    python "${{HERE}}/torchtitan_smoke.py" {n_ranks} "$@"
fi

"""

_PREAMBLE = '''"""One plan for torchtitan: `--module torchtitan_recipe --config train`.

torchtitan.sh beside this file starts it. Options of the command line win over what stands here.
Learning rate, rotary base, router and initialisation do not change the cost and are yours; so is
torch.compile (--compile.enable), without which the plan is priced.
"""
'''

_FREE = (
    "Learning rate, rotary base, router and initialisation do not change the cost and are yours;"
    " so is\ntorch.compile",
    "The learning rate does not change the cost and is yours; so is torch.compile\n",
)
"""What no figure of a plan depends on, without and with details of the model."""

_YOURS = """# ---- YOURS: where things are; torchtitan.sh sets them ----
HF_ASSETS = os.environ.get("HF_ASSETS", "./tests/assets/tokenizer")
DATASET = os.environ.get("DATASET", "c4_test")
DATASET_PATH = os.environ.get("DATASET_PATH") or None
# ----------------------------------------------------------
"""

_ATTENTION_CORE = '''class AttentionCoreAC(FullAC):
    """Recompute the attention core of every layer, as Megatron-LM's selective recomputation."""

    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        pass

    def apply(self, model: nn.Module) -> None:
        for block in model.get_submodule("layers").children():
            core = block.attention.inner_attention
            block.attention.inner_attention = self._wrap_block(core)
'''

_FIRST_LAYERS = '''class FirstLayersAC(FullAC):
    """Recompute the first layers of every stage."""

    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        layers: int

    def apply(self, model: nn.Module) -> None:
        blocks = model.get_submodule("layers")
        for name, block in list(blocks.named_children())[: self.config.layers]:
            blocks.register_module(name, self._wrap_block(block))
'''

_TRAIN = '''def train() -> Trainer.Config:
    """Return the configuration of the run."""
{notes}    return Trainer.Config(
        model_spec=model_spec(),
        hf_assets_path=HF_ASSETS,
        dataloader=HuggingFaceTextDataLoader.Config(dataset=DATASET, dataset_path=DATASET_PATH),
        loss={loss}.Config(global_vocab_size=VOCAB),
        optimizer=default_adamw(lr=1.5e-4),
        metrics=MetricsProcessor.Config(log_freq=1),
        training=TrainingConfig(
{training}        ),
        parallelism=ParallelismConfig(
{parallelism}        ),
        activation_checkpoint={recompute},
{compile}    )
'''
