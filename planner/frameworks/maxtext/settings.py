"""What a plan is as keys of MaxText's YAML: mesh, batch, recomputation, precision."""

import json
import math

from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.shapes import ModelShape, TrainingJob
from hardware.parts import Pool
from searches.frameworks.maxtext import REMAT_POLICIES

STRATEGIES = {"all-gather": "all_gather", "p2p": "ring", "a2a": "ulysses"}
"""`context_parallel_strategy` by exchange of keys and values."""


def mesh_degrees(layout: Layout) -> dict[str, int]:
    """Return the degrees of the mesh by axis; their product is the number of devices.

    With ZeRO-3 the axes fsdp, context and expert share a ZeRO group; replicas are the axis data.
    """
    group = layout.dp_shard if layout.zero == 3 else 1
    fsdp = max(1, group // (layout.cp * layout.ep))
    return {
        "data": layout.dp * layout.cp // group if layout.zero == 3 else layout.dp,
        "fsdp": fsdp,
        "context": layout.cp,
        "tensor_sequence": layout.tp,
        "expert": layout.ep,
    }


def n_slices(layout: Layout, pool: Pool) -> int:
    """Return the slices that a layout spans: scale-up domains, joined by the data-centre network.

    1 where its devices do not fill whole ones.
    """
    slices, rest = divmod(layout.n_devices, max(1, pool.scale_up_domain))
    return slices if slices > 1 and not rest else 1


def over_slices(degrees: dict[str, int], slices: int) -> dict[str, int]:
    """Return how many slices each axis spans: replicas first, then shards of weights.

    Their product is `slices`; ({} where the two axes do not hold them).

    >>> over_slices({"data": 2, "fsdp": 64, "context": 1, "tensor_sequence": 4, "expert": 1}, 4)
    {'data': 2, 'fsdp': 2}
    """
    data = math.gcd(degrees["data"], slices)
    fsdp = math.gcd(degrees["fsdp"], slices // data)
    return {"data": data, "fsdp": fsdp} if data * fsdp == slices else {}


def mesh_keys(layout: Layout, slices: int = 1) -> dict[str, object]:
    """Return the keys of the mesh, every axis that can be left open stated."""
    degrees = mesh_degrees(layout)
    spread = over_slices(degrees, slices)
    keys: dict[str, object] = {}
    for axis, size in degrees.items():
        keys[f"ici_{axis}_parallelism"] = size // spread.get(axis, 1)
    for axis in ("data", "fsdp"):
        keys[f"dcn_{axis}_parallelism"] = spread.get(axis, 1)
    if layout.zero == 1 and layout.dp > 1:
        keys["shard_optimizer_over_data"] = True
    if layout.cp > 1:
        strategy = STRATEGIES[layout.cp_comm]
        keys["context_parallel_strategy"] = strategy
        if strategy != "all_gather":
            keys["use_tokamax_splash"] = True
        if strategy == "ulysses":
            keys["context_parallel_load_balance"] = False
    return keys


def sequences_of_device(layout: Layout) -> float:
    """Return `per_device_batch_size`: a micro-batch over the devices of one replica.

    MaxText cuts its product with all devices down to a whole number, which has to be mbs dp.
    """
    share = layout.mbs / (layout.tp * layout.cp * layout.pp)
    while int(layout.n_devices * share) < layout.mbs * layout.dp:
        share = math.nextafter(share, math.inf)
    return share


def batch_keys(layout: Layout, job: TrainingJob) -> dict[str, object]:
    """Return the keys of the batch."""
    share = sequences_of_device(layout)
    return {
        "per_device_batch_size": int(share) if share.is_integer() else share,
        "gradient_accumulation_steps": layout.n_micro,
        "max_target_length": job.seq_len,
    }


def remat_keys(layout: Layout) -> dict[str, object]:
    """Return the keys of the recomputation; nothing of it is `minimal_with_context`.

    `none` is no way to keep everything: release 0.2.5 reads it as no policy, and under none
    `jax.checkpoint` computes every layer again.
    """
    if layout.recompute != "full":
        return {"remat_policy": REMAT_POLICIES[layout.recompute_modules]}
    if layout.activation_offload:
        return {"remat_policy": "custom", "decoder_layer_input": "offload"}
    return {"remat_policy": "full"}


def precision_keys(job: TrainingJob) -> dict[str, object]:
    """Return the keys of precision and optimizer: weights, gradients and moments in fp32."""
    keys: dict[str, object] = {
        "dtype": "bfloat16",
        "weight_dtype": "float32",
        "grad_dtype": "float32",
        "opt_type": "adamw",
        "mu_dtype": "float32",
    }
    if job.precision == "fp8-tensorwise":
        keys |= {"quantization": "fp8_full", "use_qwix_quantization": True}
    return keys


def data_keys(layout: Layout, shape: ModelShape) -> dict[str, object]:
    """Return the keys of the data: a ring of latent attention takes no packed documents."""
    ring = layout.cp > 1 and layout.cp_comm == "p2p"
    return {"packing": False} if ring and shape.latent else {}


def plan_keys(
    layout: Layout, shape: ModelShape, job: TrainingJob, slices: int = 1
) -> dict[str, object]:
    """Return all keys that a plan decides."""
    return {
        **mesh_keys(layout, slices),
        **data_keys(layout, shape),
        **batch_keys(layout, job),
        **remat_keys(layout),
        **precision_keys(job),
    }


def maxtext_settings(layout: Layout, problem: Problem) -> dict[str, str]:
    """Return the keys of a plan with their values as text."""
    keys = plan_keys(layout, problem.shape, problem.job, n_slices(layout, problem.pool))
    return {name: json.dumps(value) for name, value in keys.items()}
