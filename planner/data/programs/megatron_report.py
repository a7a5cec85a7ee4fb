"""Says what a running Megatron job is: its groups, stages, batches, shards, experts and losses.

Everything is read from process groups, model chunks, tensors and calls, nothing from flags.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

MODULES = {
    "self_attention.core_attention": "core_attn",
    "input_layernorm": "layernorm",
    "pre_mlp_layernorm": "layernorm",
    "self_attention.linear_q_up_proj": "mla_up_proj",
    "self_attention.linear_kv_up_proj": "mla_up_proj",
    "mlp.shared_experts": "shared_experts",
}
"""Names in `--recompute-modules` of parts of a layer; `mlp` is `moe` where it has experts."""


@dataclass
class Seen:
    """What one rank has seen of its job."""

    chunks: list[Any] = field(default_factory=list)
    """Its model chunks, without what is wrapped around them."""
    wrapped: list[Any] = field(default_factory=list)
    optimizer: Any = None
    n_counted: int = 0
    """Parameters that this rank counts, so that over all ranks each counts once. As in published
    totals, rows that pad the vocabulary and multi-token prediction are left out."""
    n_dense: int = 0
    """Parameters outside experts, whole, as this rank would hold them without sharding."""
    batches: list[int] = field(default_factory=list)
    """Sequences of each micro-batch that went through a chunk."""
    losses: list[float | None] = field(default_factory=list)
    recomputed: set[tuple[int, str]] = field(default_factory=set)
    """Layer of the first chunk, and part of it, that ran again during a backward pass."""


SEEN = Seen()


def saw_batch(tokens: torch.Tensor) -> None:
    """Count a micro-batch on its way into a model chunk."""
    SEEN.batches.append(tokens.shape[0])


def saw_step(loss: object) -> None:
    """Keep the loss of a step; None on ranks that do not have it."""
    SEEN.losses.append(None if loss is None else float(loss))  # type: ignore[arg-type]


def watch_models(vocab: Callable[[], int]) -> None:
    """Keep every model chunk that is built from here on, and watch its layers.

    `vocab` says how many tokens the vocabulary has without padding.
    """
    from megatron.core.models.gpt import GPTModel

    build = GPTModel.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        SEEN.chunks.append(self)
        _count(self, vocab())
        if len(SEEN.chunks) == 1:
            _watch_recomputation(self)

    GPTModel.__init__ = __init__


def watch(training: Any) -> None:
    """Watch a job of Megatron-LM; `training` is the module with its loop."""
    watch_models(lambda: int(training.get_args().vocab_size))
    set_up, log = training.setup_model_and_optimizer, training.training_log

    def setup_model_and_optimizer(*args: Any, **kwargs: Any) -> Any:
        found = set_up(*args, **kwargs)
        SEEN.wrapped, SEEN.optimizer = found[0], found[1]
        return found

    def training_log(losses: Any, *args: Any, **kwargs: Any) -> Any:
        saw_step(losses.get("lm loss"))
        return log(losses, *args, **kwargs)

    training.setup_model_and_optimizer = setup_model_and_optimizer
    training.training_log = training_log


_VOCABULARY = ("word_embeddings.weight", "output_layer.weight")


def _is_expert(name: str) -> bool:
    return ".mlp.experts." in name


def _count(chunk: Any, vocab: int) -> None:
    """Count the parameters of a chunk that has just been built: whole, on the rank's own share."""
    from megatron.core import parallel_state as groups

    first_tp = groups.get_tensor_model_parallel_rank() == 0
    first_dp = groups.get_data_parallel_rank(with_context_parallel=True) == 0
    first_expert_dp = groups.get_expert_data_parallel_rank() == 0
    for name, weight in chunk.named_parameters():
        extra = name.startswith("mtp.")
        if _is_expert(name):
            SEEN.n_counted += weight.numel() * (first_expert_dp and not extra)
            continue
        SEEN.n_dense += weight.numel()
        split = getattr(weight, "tensor_model_parallel", False)
        copied = getattr(weight, "shared", False)  # tied embedding on a later stage
        counts = first_dp and not copied and not extra
        SEEN.n_counted += weight.numel() * (counts and (split or first_tp))
        if name.endswith(_VOCABULARY) and counts and first_tp:
            rows = weight.shape[0] * groups.get_tensor_model_parallel_world_size()
            SEEN.n_counted -= (rows - vocab) * weight.shape[1]


def _watch_recomputation(chunk: Any) -> None:
    """Note which parts of the layers run during a backward pass."""
    for at, layer in enumerate(chunk.decoder.layers):
        for name, module in layer.named_modules():
            module.register_forward_pre_hook(_note_recomputed(at, name))


def _note_recomputed(layer: int, name: str) -> Callable[..., None]:
    def hook(*_: object) -> None:
        if torch._C._current_graph_task_id() != -1:
            SEEN.recomputed.add((layer, name))

    return hook


def _recompute() -> dict[str, object] | None:
    """Return the layers of the first chunk that ran again, and the parts; [] for whole layers."""
    if not SEEN.recomputed:
        return None
    names = {name for _, name in SEEN.recomputed}
    layers = SEEN.chunks[0].decoder.layers
    experts = any(hasattr(layers[at].mlp, "experts") for at, name in SEEN.recomputed if name)
    found = {MODULES[name] for name in names if name in MODULES}
    found |= {"moe" if experts else "mlp"} if "mlp" in names else set()
    if "mlp" in names:
        found -= {"shared_experts"}
    whole = "" in names
    return {
        "layers": len({at for at, _ in SEEN.recomputed}),
        "modules": [] if whole else sorted(found),
    }


def _own_groups() -> dict[str, list[int]]:
    """Return the ranks of this rank's group of each axis."""
    from megatron.core import parallel_state as groups

    found = {
        "tp": groups.get_tensor_model_parallel_group(),
        "pp": groups.get_pipeline_model_parallel_group(),
        "dp": groups.get_data_parallel_group(),
        "cp": groups.get_context_parallel_group(),
    }
    if SEEN.chunks[0].config.num_moe_experts:  # Megatron makes them for dense models too
        found["ep"] = groups.get_expert_model_parallel_group()
        found["etp"] = groups.get_expert_tensor_parallel_group()
    if shard := _shard_group():
        found["dp_shard"] = shard
    return {axis: sorted(dist.get_process_group_ranks(group)) for axis, group in found.items()}


def _fsdp_parts() -> Iterator[Any]:
    """Yield the groups of dense parameters that Megatron-FSDP holds; none with another wrapper."""
    for chunk in SEEN.wrapped:
        buffer = getattr(chunk, "param_and_grad_buffer", None)
        for part in getattr(buffer, "parameter_groups", ()):
            if not part.is_expert_param:
                yield part


def _optimizers() -> list[Any]:
    return list(getattr(SEEN.optimizer, "chained_optimizers", [SEEN.optimizer]))


def _shard_group() -> Any:
    """Return the group over which the states of dense parameters are split; None: over none."""
    for part in _fsdp_parts():
        return part.main_grad_buffer.data_parallel_group
    return getattr(_optimizers()[0], "data_parallel_group", None)


def _local(tensor: torch.Tensor) -> int:
    """Return the elements of a tensor that this rank holds."""
    return getattr(tensor, "_local_tensor", tensor).numel()


def _held() -> dict[str, int]:
    """Return the elements of dense parameters, gradients and first moments on this rank."""
    parts = list(_fsdp_parts())
    if parts:
        buffers = {
            "parameters": [part.model_weight_buffer for part in parts],
            "gradients": [part.main_grad_buffer for part in parts],
        }
        held = {kind: sum(x.data.numel() for x in found) for kind, found in buffers.items()}
    else:
        dense = [
            weight
            for chunk in SEEN.chunks
            for name, weight in chunk.named_parameters()
            if not _is_expert(name)
        ]
        held = {
            "parameters": sum(_local(weight) for weight in dense),
            "gradients": sum(_local(weight.main_grad) for weight in dense),
        }
    moments = [
        _local(one.optimizer.state[weight]["exp_avg"])
        if "exp_avg" in one.optimizer.state[weight]  # not where a shard is empty
        else 0
        for one in _optimizers()
        for group in one.optimizer.param_groups
        if not group.get("is_expert_parallel")
        for weight in group["params"]
    ]
    return held | {"optimizer": sum(moments)}


def _own_experts() -> list[int]:
    """Return the ids of the experts of this rank's first expert layer."""
    for chunk in SEEN.chunks:
        for layer in chunk.decoder.layers:
            if hasattr(layer.mlp, "local_expert_indices"):
                return [int(i) for i in layer.mlp.local_expert_indices]
    return []


def _own() -> dict[str, Any]:
    """Return what this rank contributes."""
    from megatron.core import parallel_state as groups

    n_steps, n_chunks = len(SEEN.losses), len(SEEN.chunks)
    pp, pp_rank = (
        groups.get_pipeline_model_parallel_world_size(),
        groups.get_pipeline_model_parallel_rank(),
    )
    ranks = (
        groups.get_tensor_model_parallel_rank(),
        groups.get_context_parallel_rank(),
        pp_rank,
    )
    return {
        "node": [int(os.environ.get("GROUP_RANK", 0)), os.environ.get("SLURMD_NODENAME", "")],
        "groups": _own_groups(),
        "stages": {
            at * pp + pp_rank: len(chunk.decoder.layers) for at, chunk in enumerate(SEEN.chunks)
        },
        "n_micro": len(SEEN.batches) // (n_steps * n_chunks),
        "mbs": SEEN.batches[0],
        "sequences": sum(SEEN.batches) // (n_steps * n_chunks) if not any(ranks) else 0,
        "whole": SEEN.n_dense,
        "held": _held(),
        "recompute": _recompute() if pp_rank == 0 else None,
        "experts": _own_experts(),
        "parameters": SEEN.n_counted,
        "losses": SEEN.losses,
    }


def report(framework: str, release: str) -> dict[str, object]:
    """Return what all ranks say together; call it on each of them."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, _own())
    whole = sum(one["whole"] for one in every)
    held = {kind: sum(one["held"][kind] for one in every) for kind in every[0]["held"]}
    stages = {at: n for one in every for at, n in one["stages"].items()}
    experts = [one["experts"] for one in every]
    losses = next(one["losses"] for one in every if None not in one["losses"])
    return {
        "framework": framework,
        "release": release,
        "torch": torch.__version__,
        "world_size": len(every),
        "nodes": [one["node"] for one in every],
        "groups": {
            axis: [list(x) for x in sorted({tuple(one["groups"][axis]) for one in every})]
            for axis in every[0]["groups"]
        },
        "stage_layers": [stages[at] for at in sorted(stages)],
        "n_micro": every[0]["n_micro"],
        "mbs": every[0]["mbs"],
        "gbs": sum(one["sequences"] for one in every),
        "sharding": {kind: round(whole / n) for kind, n in held.items()},
        "recompute": every[0]["recompute"],
        "experts": experts if any(experts) else [],
        "parameters": sum(one["parameters"] for one in every),
        "losses": losses,
    }


def print_report(framework: str) -> None:
    """Print the line `planner-smoke {...}` on rank 0."""
    import megatron.core

    found = report(framework, megatron.core.__version__)
    if dist.get_rank() == 0:
        print(f"planner-smoke {json.dumps(found, sort_keys=True)}", flush=True)
