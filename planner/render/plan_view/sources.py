"""Where formulas and figures come from, as the cards say it."""

from collections.abc import Mapping

from costmodels.problem import Problem
from hardware.parts import Provenance
from planner.render.plan_view.cards import Inputs
from planner.render.plan_view.quantities import quantity_text
from planner.solver.calibration.file import Calibration

TERM_SOURCES: Mapping[str, str] = {
    "linear": "costmodels.layers.compute.linear_times over "
    "costmodels.layers.gemm.gemm_s: tiles and waves,"
    " fitted to A100 shapes published with SimuMax (commit 4dcaae5)",
    "attention": "costmodels.layers.compute.attention_times: FlashAttention-2 and -3 "
    "benchmark figures;"
    " unfused operators after Korthikanti et al. 2022",
    "elementwise": "costmodels.layers.compute.elementwise_times: operand counts in bf16 times the"
    " stack's fitted traffic factor",
    "experts": "costmodels.layers.experts.expert_times: Megatron-LM core/transformer/moe; rates of"
    " grouped products fitted to SimuMax's tables (commit 4dcaae5)",
    "head": "costmodels.layers.compute.head_times: operand counts; Megatron-LM's "
    "vocabulary-parallel"
    " cross-entropy; modules of DeepSeek-V3 (arXiv 2412.19437)",
    "embedding": "costmodels.layers.compute.embedding_times: operand counts; Megatron-LM"
    " core/tensor_parallel/layers.py",
    "recompute": "costmodels.layers.recompute.module_terms and layer_terms: "
    "Megatron-LM's recompute"
    " modules; checked against Korthikanti et al. 2022, section 5",
    "host": "costmodels.layers.layer_terms.host_s: launch time of a layer, fitted for each stack",
    "tp": "costmodels.comm.tensor_parallel.layer_exposures: Megatron-LM "
    "core/tensor_parallel/layers.py"
    " (order), Korthikanti et al. 2022, section 4.2 (volumes); times of NCCL's tuning.cc",
    "cp": "costmodels.comm.context_parallel.exchange_times: Liu et al. 2023 (ring "
    "attention), Llama 3"
    " paper, section 3.3.2, Jacobs et al. 2023 (Ulysses)",
    "ep": "costmodels.layers.experts.all_to_all_s: Megatron-LM "
    "core/transformer/moe/token_dispatcher.py;"
    " DeepEP",
    "overlap": "costmodels.comm.tensor_parallel.layer_exposures and"
    " costmodels.step.data_parallel_exposed: slowdown of compute beside collectives, fitted over"
    " measured runs",
    "pp": "costmodels.schedule.pipeline.simulate_s: the exact recurrence of the schedule "
    "of Megatron-LM"
    " core/pipeline_parallel/schedules.py, with and without messages",
    "bubble": "costmodels.schedule.pipeline.simulate_s: the exact recurrence of the schedule of"
    " Megatron-LM core/pipeline_parallel/schedules.py; Narayanan et al. 2021, section 2.2",
    "dp": "costmodels.step.data_parallel_exposed: ZeRO, section 7; Megatron-LM dist_optimizer.md;"
    " PyTorch FSDP; ZeRO++, section 3.2",
    "optimizer": "costmodels.layers.compute.optimizer_s: operands of Megatron-LM's distributed"
    " optimizer, as SimuMax (commit 4dcaae5) lists them",
    "offload": "costmodels.step.offload_exposed and costmodels.offload.activations.waits:"
    " DeepSpeed runtime/zero; Megatron-LM HybridDeviceOptimizer; Transformer Engine"
    " cpu_offload.py",
    "straggler": "costmodels.step.straggler_factor: Blom 1958 (expected order statistics); spread"
    " of nodes fitted over measured runs",
    "fixed": "costmodels.stacks: time of a step outside the model, by software stack (assumed)",
    "states": "costmodels.memory.state_bytes_per_param: Rajbhandari et al. 2020 (ZeRO), section"
    " 5; Megatron-LM dist_optimizer.md; ZeRO++, section 3.2",
    "activations": "costmodels.memory.layer_activation_bytes: Korthikanti et al. 2022, section"
    " 4.1; chunks in flight of Megatron-LM's schedules",
    "logits": "costmodels.memory.logits_bytes: tensors of head and loss of the stack",
    "working": "costmodels.memory.working_bytes: the tensors alive in a backward; Megatron-LM"
    " megatron_fsdp.md (double buffer)",
    "fragmentation": "costmodels.step.memory_terms: share of activations lost to the allocator,"
    " by software stack",
    "overhead": "costmodels.shape_terms: context and buffers of each communicator that leaves a"
    " node, by software stack",
}
"""By term of the step or of the memory."""


def _figure(name: str, text: str, found: Provenance | None) -> tuple[str, str]:
    if found is None:
        return name, text
    mark = f", {found.status}" if found.status != "confirmed" else ""
    return name, f"{text} ({found.source}, {found.date}{mark})"


def compute_figures(problem: Problem) -> Inputs:
    """Return the rates of the device that compute goes by, with their sources."""
    part, precision = problem.pool.accelerator, problem.job.recipe.linear
    eff, known = part.efficiency, part.provenance
    return (
        _figure(
            f"P, dense {precision} peak",
            quantity_text(part.peak_flops_per_s[precision], "FLOP/s"),
            known.get(f"peak_flops_per_s.{precision}") or known.get("peak_flops_per_s"),
        ),
        ("eta, sustained share of large products", f"{eff.gemm_frac:.3f} (calibration)"),
        _figure(
            "B, HBM bandwidth",
            quantity_text(part.hbm_bytes_per_s, "B/s"),
            known.get("hbm_bytes_per_s"),
        ),
        ("sustained share of it", f"{eff.hbm_frac:.3f} (calibration)"),
    )


def network_figures(problem: Problem) -> Inputs:
    """Return the bandwidths of the networks, with their sources."""
    pool = problem.pool
    part, nic = pool.accelerator, pool.nic
    return (
        _figure(
            "ring bandwidth inside the scale-up domain",
            quantity_text(part.ring_bytes_per_s, "B/s"),
            part.provenance.get("ring_bytes_per_s"),
        ),
        _figure(
            "scale-out bandwidth of a port",
            quantity_text(nic.bytes_per_s, "B/s"),
            nic.provenance.get("bytes_per_s"),
        ),
        (
            "share that a library reaches, ports of a device",
            f"{nic.efficiency:.3f}, {pool.nics_per_node / pool.devices_per_node:g}",
        ),
    )


def calibration_words(calibration: Calibration) -> str:
    """Return the name of what fitted the model's constants."""
    return f"calibration {calibration.name} ({calibration.content_hash[:12]})"
