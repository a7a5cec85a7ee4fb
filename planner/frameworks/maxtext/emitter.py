"""Writes a plan as MaxText's YAML, the launcher that starts it, and a command of XPK.

The YAML extends MaxText's own `base.yml` and states every axis of the mesh that the plan has.
"""

from dataclasses import replace

from costmodels.shapes import ModelShape
from planner.frameworks.emit_request import EmitRequest, RefusedPlanError
from planner.frameworks.emitted_text import (
    TEXTS,
    fact_lines,
    guarded,
    head,
    stated_or_none,
    train_steps,
    yaml_scalar,
)
from planner.frameworks.maxtext.command import slice_name
from planner.frameworks.maxtext.model import model_keys, not_said, vocab_rows
from planner.frameworks.maxtext.settings import mesh_degrees, n_slices, over_slices, plan_keys

RELEASE_NOTE = "keys as of MaxText {release}."


def maxtext_files(request: EmitRequest) -> dict[str, str]:
    """Return the YAML, its launcher and the command of XPK."""
    slices = n_slices(request.layout, request.pool)
    if slices > 1 and not over_slices(mesh_degrees(request.layout), slices):
        raise RefusedPlanError(
            [
                f"slices: {slices} of {request.pool.scale_up_domain} devices do not divide into"
                " replicas and shards of weights, and no other axis is cut over slices; closest:"
                " a dp that the slices divide"
            ]
        )
    return {
        "maxtext.yml": _yaml(request, slices),
        "maxtext.sh": _launcher(request),
        "maxtext-xpk.txt": _xpk(request, slices),
    }


def config_keys(request: EmitRequest, slices: int) -> dict[str, dict[str, object]]:
    """Return all keys of the YAML by section, in words of a comment."""
    layout, shape, job = request.layout, request.shape, request.job
    return {
        "The model.": model_keys(shape, vocab_rows(layout, shape), request.details),
        "The plan: mesh, batch, recomputation, precision.": plan_keys(layout, shape, job, slices),
        "The run: synthetic tokens until a data set is named.": {
            "hardware": "tpu",
            "attention": _attention(shape),
            "steps": train_steps(job),
            "dataset_type": "synthetic",
            "enable_checkpointing": False,
            "learning_rate": 1.5e-4,
            "adam_b2": 0.95,
            "adam_weight_decay": 0.1,
            "gradient_clipping_threshold": 1.0,
            "log_period": 10,
        },
    }


def _attention(shape: ModelShape) -> str:
    return "flash" if shape.flash_attention else "dot_product"


def _yaml(request: EmitRequest, slices: int) -> str:
    title = f"MaxText configuration; {RELEASE_NOTE.format(release=request.release_of('maxtext'))}"
    facts = fact_lines(request, stated_or_none(request.details))
    lines = head(title, request.header, facts)[1:]
    lines += ["base_config: base.yml"]
    for section, keys in config_keys(request, slices).items():
        lines += ["", f"# {section}"]
        lines += [f"{name}: {yaml_scalar(value, TEXTS)}" for name, value in keys.items()]
    return "\n".join(lines) + "\n"


def _launcher(request: EmitRequest) -> str:
    layout, shape, job, details = request.layout, request.shape, request.job, request.details
    release = request.release_of("maxtext")
    title = f"MaxText launcher; maxtext.yml {RELEASE_NOTE.format(release=release)}"
    facts = fact_lines(request, stated_or_none(details))
    settings = _SETTINGS.replace("N_DEVICES", str(layout.n_devices))
    settings = settings.replace(
        "BATCH", f"{layout.gbs} = {layout.mbs} x {layout.n_micro} x {layout.dp}"
    )
    lines = [
        *head(title, request.header, facts),
        *guarded(settings, not_said(details, shape, job)),
        'python3 -m maxtext.trainers.pre_train.train "${HERE}/maxtext.yml" \\',
        '  run_name="${RUN_NAME}" base_output_directory="${SAVE}" \\',
        '  "$@"',
    ]
    return "\n".join(lines) + "\n"


_SETTINGS = """#
# Start it once on every TPU host, all N_DEVICES devices as JAX counts them: XPK does that, the
# command stands in maxtext-xpk.txt. The global batch is BATCH.
# Options of your own go after the script name, as `key=value`, and win over the file:
# `dataset_type=grain grain_train_files=gs://...`.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# ---- YOURS: the name of the run, and the folder or bucket of its logs and checkpoints ----
RUN_NAME="${RUN_NAME:-planned}"
SAVE="${SAVE:-${HERE}/maxtext_output}"
# -------------------------------------------------------------------------------------------
"""


def _xpk(request: EmitRequest, slices: int) -> str:
    """Return the command that starts the plan on a cluster of Google Kubernetes Engine."""
    per_slice = request.layout.n_devices // slices
    part, torus = request.pool.accelerator, request.pool.accelerator.torus
    used = replace(request.pool, scale_up_domain=per_slice)
    name = slice_name(part.name, torus, used.slice_shape) if torus else None
    return _XPK.format(
        title="\n".join(f"# {line}".rstrip() for line in request.header),
        slices=slices,
        yours=_NAMED if name else _UNNAMED.format(per_slice=per_slice),
        device_type=f"${{DEVICE_TYPE:-{name}}}" if name else "${DEVICE_TYPE}",
    )


_NAMED = """\
# YOURS: cluster, zone, image."""
_UNNAMED = """\
# YOURS: DEVICE_TYPE (a slice of {per_slice} devices, such as v5p-256 or tpu7x-4x4x8; names of v5p
# count cores, two a chip, and JAX sees two devices in a chip of tpu7x), cluster, zone, image."""
_XPK = """\
# The plan by XPK (xpk workload create); an image with MaxText and this folder in it.
{title}
{yours}
xpk workload create \\
  --cluster="${{CLUSTER}}" --zone="${{ZONE}}" --project="${{PROJECT}}" \\
  --workload="${{RUN_NAME}}" --docker-image="${{IMAGE}}" \\
  --device-type="{device_type}" --num-slices={slices} \\
  --command="RUN_NAME=${{RUN_NAME}} SAVE=${{SAVE}} bash maxtext.sh"
"""
