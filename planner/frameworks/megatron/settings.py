"""What a plan is as flags of Megatron-LM, and which flags come to another plan."""

from collections.abc import Callable, Mapping
from typing import Any

from costmodels.axes import AXES, switch_axes
from costmodels.plans import SWITCHES, Layout
from costmodels.problem import Problem
from planner.frameworks.megatron.axis_flags import axis_dests
from planner.frameworks.megatron.emitter import flag_groups
from planner.frameworks.megatron.flags import flag_table
from planner.frameworks.megatron.mode_settings import MODE_DESTS
from planner.frameworks.runs.existing_run import ExistingRun


def megatron_settings(layout: Layout, problem: Problem) -> dict[str, str]:
    """Return the flags of a plan with their values; a flag without one has an empty text."""
    flags: dict[str, str] = {}
    last = ""
    for _, group in flag_groups(layout, problem.shape, problem.job):
        for word in group:
            if word.startswith("--"):
                last = word
                flags[last] = ""
            else:
                flags[last] = f"{flags[last]} {word}".strip()
    return flags


def changed_flags(
    run: ExistingRun, old: Layout, new: Layout, after: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the flags of what Megatron-LM is told otherwise than `new`, part by part.

    A part is told by several flags, of which the run may use others than we do: those go.
    """
    by_name, by_dest = flag_table()[1:]
    wanted = {by_name[name].dest: (name, value) for name, value in after.items()}
    entries: dict[str, str | None] = {}
    further = (((axis,), (dest,)) for axis, dest in axis_dests().items())
    for fields, dests in (*PARTS, *further):
        if all(_same(run, new, name) for name in fields):
            continue
        for dest in dests:
            run_value = run.settings.get(dest)
            if dest not in wanted:
                if run_value not in (None, False) and not _is_implied(dest, new):
                    entries[by_dest[dest].flags[0]] = None
                continue
            name, value = wanted[dest]
            if run_value is None or not _says(run_value, name, value):
                entries[name] = value.strip("'")
    for dest, holds in NEEDS.items():
        if run.settings.get(dest) and holds(old) and not holds(new):
            entries[by_dest[dest].flags[0]] = None
    return entries


def _same(run: ExistingRun, new: Layout, name: str) -> bool:
    """Tell whether a run states a field of a layout as it is."""
    if name == "stage_layers":
        run_layers = run.layout.get("counts", new.stage_layers if new.pp == 1 else None)
        return run_layers is not None and tuple(run_layers) == new.stage_layers
    if name in ("zero", "dp_shard") and new.dp * new.cp == 1:
        return True
    value = new.value(name) if name in AXES else getattr(new, name)
    if name == "recompute_layers" and run.settings.get("recompute_method") == "uniform":
        return bool(value == max(new.stage_layers))
    usual = {
        "dp_shard": value,
        "cp_comm": "",
        "zero": 0,
        "sp": False,
        "recompute_modules": (),
        "activation_offload_layers": 0,
        **SWITCHES,
        **{axis.name: axis.off for axis in switch_axes()},
    }.get(name, 1)
    return bool(run.layout.get(name, usual) == value)


def _is_implied(dest: str, new: Layout) -> bool:
    """Tell whether a flag may stay: Megatron-LM switches it off by itself."""
    return (dest == "sequence_parallel" and new.tp == 1) or (
        dest in ("expert_tensor_parallel_size", "cp_comm_type") and new.cp == new.etp == 1
    )


def _says(run_value: Any, name: str, value: str) -> bool:
    if isinstance(run_value, bool):
        return bool(run_value != name.startswith("--no-"))
    text = (
        " ".join(map(str, run_value)) if isinstance(run_value, (list, tuple)) else str(run_value)
    )
    return text == value.strip("'")


PARTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("tp",), ("tensor_model_parallel_size",)),
    (("sp",), ("sequence_parallel",)),
    (
        ("pp", "vpp", "stage_layers"),
        (
            "pipeline_model_parallel_size",
            "num_layers_per_virtual_pipeline_stage",
            "num_virtual_stages_per_pipeline_rank",
            "pipeline_model_parallel_layout",
            "decoder_first_pipeline_num_layers",
            "decoder_last_pipeline_num_layers",
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
            "microbatch_group_size_per_vp_stage",
        ),
    ),
    (
        ("cp", "cp_comm"),
        ("context_parallel_size", "cp_comm_type", "hierarchical_context_parallel_sizes"),
    ),
    (("ep", "etp"), ("expert_model_parallel_size", "expert_tensor_parallel_size")),
    (("mbs",), ("micro_batch_size",)),
    (("gbs",), ("global_batch_size",)),
    (
        ("recompute", "recompute_layers", "recompute_modules"),
        (
            "recompute_granularity",
            "recompute_method",
            "recompute_num_layers",
            "recompute_modules",
            "recompute_activations",
        ),
    ),
    (
        ("zero", "dp_shard"),
        (
            "use_distributed_optimizer",
            "use_megatron_fsdp",
            "use_torch_fsdp2",
            "data_parallel_sharding_strategy",
            "gradient_accumulation_fusion",
            "init_model_with_meta_device",
            "ckpt_format",
            "num_distributed_optimizer_instances",
        ),
    ),
    (("dp_overlap",), ("overlap_grad_reduce", "overlap_param_gather")),
    (("tp_overlap",), ("tp_comm_overlap",)),
    (
        ("optimizer_offload",),
        (
            "optimizer_cpu_offload",
            "use_precision_aware_optimizer",
            "optimizer_offload_fraction",
            "overlap_cpu_optimizer_d2h_h2d",
        ),
    ),
    (("activation_offload_layers",), ("cpu_offloading_num_layers",)),
    *(((axis,), dests) for axis, dests in MODE_DESTS.items()),
)
"""Fields of a layout and the settings that say them."""
NEEDS: Mapping[str, Callable[[Layout], bool]] = {
    "overlap_param_gather": lambda x: x.zero > 0,
    "overlap_param_gather_with_optimizer_step": lambda x: x.zero > 0 and x.vpp > 1,
    "defer_embedding_wgrad_compute": lambda x: x.pp > 1,
    "distribute_saved_activations": lambda x: x.tp > 1 and not x.sp and x.recompute == "full",
    "overlap_moe_expert_parallel_comm": lambda x: (
        x.ep > 1 and x.recompute != "full" and (x.pp == 1 or x.vpp > 1)
    ),
    "delay_wgrad_compute": lambda x: x.ep > 1,
}
"""Settings that go where a layout is not what they need."""
