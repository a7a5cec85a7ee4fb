"""Writes a plan as a job file of torchtitan 0.2.2, the last release that reads one.

A job file names a registered model, so the sizes must be those of one; it has fewer options than
a recipe too. Where a plan has none, a text file says why.
"""

import json

from costmodels.plans import Layout
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.emitted_text import (
    fact_lines,
    head,
    shown_details,
    stated_or_none,
    train_steps,
)
from planner.frameworks.torchtitan.fields import batch, compiler, parallelism, pipeline
from planner.frameworks.torchtitan.primus import experiment_files
from planner.frameworks.torchtitan.releases import TOML_RELEASE
from searches.frameworks.registry import framework_rules
from searches.frameworks.table import refusals
from searches.frameworks.torchtitan.registered import registered_model

JOB_FILES = f"torchtitan@{TOML_RELEASE}"

_ROTATE = {"all-gather": "allgather", "p2p": "alltoall"}
"""`context_parallel_rotate_method`: gather all keys, or pass them on by all-to-alls."""


def toml_files(request: EmitRequest) -> dict[str, str]:
    """Return the job file, or a text that says why there is none.

    With it the same for Primus, where the accelerators are AMD's.
    """
    reasons = refusals(JOB_FILES, request.layout, request.shape, request.job)
    if reasons:
        recipe = f"the recipe is for {framework_rules('torchtitan').release} and later."
        first = f"No job file for torchtitan {TOML_RELEASE}; {recipe}"
        lines = [first, *request.header, "", *(f"- {reason}" for reason in reasons)]
        return {"torchtitan-toml.txt": "\n".join(lines) + "\n"}
    sections = job_sections(request)
    return {
        "torchtitan.toml": _job_file(request, sections),
        **experiment_files(request, sections),
    }


def _layer_step(layout: Layout) -> int:
    """Return n where recomputing every n-th layer is what the plan recomputes, else 0."""
    counts, k = set(layout.stage_layers), layout.recompute_layers
    if k >= max(counts):
        return 1
    share, rest = divmod(min(counts), k) if k else (0, 0)
    return share if len(counts) == 1 and not rest else 0


def job_sections(request: EmitRequest) -> dict[str, dict[str, object]]:
    """Return the sections of the job file."""
    layout, shape, job = request.layout, request.shape, request.job
    name, flavor = registered_model(shape) or ("", "")
    fields = parallelism(layout)
    del fields["enable_sequence_parallel"]
    if layout.pp > 1:
        fields |= pipeline(layout, "output")
    if layout.ep > 1:
        fields["expert_tensor_parallel_degree"] = layout.etp
    if layout.cp > 1:
        fields["context_parallel_rotate_method"] = _ROTATE[layout.cp_comm]
    if layout.schedule == "dualpipe-v" and layout.recompute != "none":
        fields["pipeline_parallel_expert_parallel_overlap"] = False
    asynchronous = compiler(layout)
    if asynchronous:
        fields["enable_async_tensor_parallel"] = asynchronous.pop("enable_async_tensor_parallel")
    precision = "float32" if job.precision == "fp32" else "bfloat16"
    sections: dict[str, dict[str, object]] = {
        "model": {"name": name, "flavor": flavor, "hf_assets_path": "./tests/assets/tokenizer"},
        "optimizer": {"name": "AdamW", "lr": 1.5e-4},
        "training": {
            "dataset": "c4_test",
            **batch(layout),
            "seq_len": job.seq_len,
            "steps": train_steps(job),
            "mixed_precision_param": precision,
        },
        "parallelism": fields,
        "activation_checkpoint": recompute_keys(layout),
        "metrics": {"log_freq": 1},
    }
    if asynchronous:
        sections["compile"] = asynchronous
    return sections


def _job_file(request: EmitRequest, sections: dict[str, dict[str, object]]) -> str:
    title, details = f"torchtitan job file; keys as of torchtitan {TOML_RELEASE}.", request.details
    lines = [
        *head(title, request.header, fact_lines(request, stated_or_none(details)))[1:],
        "#",
        "# torchrun ... -m torchtitan.train --job.config_file torchtitan.toml",
        "# torchtitan.sh --smoke takes this file where torchtitan 0.2 is installed.",
        "# hf_assets_path, dataset and the learning rate are yours.",
        *(f"# {line}" for line in shown_details(details)),
        *["# What the registered model has otherwise is yours."] * bool(details.stated()),
    ]
    for section, values in sections.items():
        lines += ["", f"[{section}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def recompute_keys(layout: Layout) -> dict[str, object]:
    """Return the keys of [activation_checkpoint]; {} where 0.2.2 cannot say the recomputation."""
    if layout.recompute == "none":
        return {"mode": "none"}
    step = _layer_step(layout)
    if layout.recompute == "selective" or not step:
        return {}
    if step == 1:
        return {"mode": "full"}
    return {"mode": "selective", "selective_ac_option": str(step)}
