"""The terms of a step and of the memory: one record each, from which all that tells them is made.

`planner explain`, the plan view, reports, sweeps and the pages of docs/terms read title, equation,
source and what is left out from here, and the formulas of the functions from their docstrings
(`costmodels.documentation.docstrings`). Adding one: docs/extending.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

from costmodels import memory, phases, shape_terms, step
from costmodels.comm import (
    collectives,
    context_parallel,
    data_parallel,
    dispatch,
    expert_overlap,
    tensor_parallel,
)
from costmodels.documentation.docstrings import FunctionText, function_text
from costmodels.layers import compute, dense, experts, gemm, layer_kind, moe, recompute
from costmodels.offload import activations, modules, optimizer
from costmodels.optimizers import groups as optimizer_groups
from costmodels.optimizers import matrix_times, orthogonalization, preconditioning
from costmodels.run import cost_energy, goodput
from costmodels.schedule import launches, pipeline
from costmodels.towers import vision


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of the step time, of the memory, or of a whole run."""

    name: str
    kind: str
    """`time`, `memory` or `run`."""
    title: str
    functions: tuple[Callable[..., object], ...]
    """Where it is computed; their docstrings hold equation, source and what is left out."""
    equation: str = ""
    """How it is put together for a plan, in symbols."""
    source: str = ""
    """Functions, and where their form and constants come from."""
    left_out: str = ""
    group: str = ""
    """What terms of a step have in common: `device`, `network`, `waiting` or `per step`."""

    @property
    def texts(self) -> tuple[FunctionText, ...]:
        """What the functions say of themselves."""
        return tuple(function_text(function) for function in self.functions)


_TERMS = (
    Term(
        name="linear",
        kind="time",
        group="device",
        title="matrix products of the linear layers",
        equation="m L (forward + backward), L layers of the slowest rank",
        source="costmodels.layers.compute.linear_times over costmodels.layers.gemm.gemm_s: "
        "tiles and waves, fitted to A100 shapes published with SimuMax (commit 4dcaae5)",
        left_out="The casts of the weights to fp8, once a step. Split-k, sizes that are no "
        "multiple of the vector width, power limits that depend on the data, clock "
        "differences between devices. The sustained share is the largest single "
        "uncertainty of the whole model: 10 to 40 % between sites and power limits",
        functions=(
            compute.linear_times,
            gemm.gemm_s,
        ),
    ),
    Term(
        name="attention",
        kind="time",
        group="device",
        title="attention core",
        equation="m L (forward + backward), L layers of the slowest rank",
        source="costmodels.layers.compute.attention_times: FlashAttention-2 and -3 benchmark "
        "figures; unfused operators after Korthikanti et al. 2022",
        left_out="Head sizes other than 128 (64 is 10 to 15 % slower), sliding windows, packed "
        "documents, dropout inside the kernel",
        functions=(
            compute.attention_times,
            context_parallel.merge_times,
        ),
    ),
    Term(
        name="elementwise",
        kind="time",
        group="device",
        title="memory-bound operators",
        equation="m L (forward + backward), L layers of the slowest rank",
        source="costmodels.layers.compute.elementwise_times: operand counts in bf16 times the "
        "stack's fitted traffic factor",
        left_out="Cache hits between operators",
        functions=(compute.elementwise_times,),
    ),
    Term(
        name="experts",
        kind="time",
        group="device",
        title="routed experts: router, permutation, products",
        equation="m L_e (forward + backward), L_e expert layers of the slowest rank",
        source="costmodels.layers.experts.expert_times: Megatron-LM core/transformer/moe; "
        "rates of grouped products fitted to SimuMax's tables (commit 4dcaae5)",
        left_out="Overlap of shared experts with the exchange, rows that differ from expert to "
        "expert on one rank (13 to 21 % of an inference kernel's rate with skewed routing and "
        "many experts), bias and gates of shared experts",
        functions=(
            experts.expert_times,
            experts.permuted_bytes,
            experts.activation_bytes,
            experts.grouped_gemm_s,
            experts.rows_fracs,
        ),
    ),
    Term(
        name="head",
        kind="time",
        group="device",
        title="output head and loss, multi-token prediction",
        equation="m (forward + backward − its waits, which stand under tp, cp and ep)",
        source="costmodels.layers.compute.head_times: operand counts; Megatron-LM's "
        "vocabulary-parallel cross-entropy; modules of DeepSeek-V3 (arXiv 2412.19437)",
        left_out="Chunked losses that never hold all logits. The final norm is counted whole "
        "also with sequence parallelism",
        functions=(
            compute.head_times,
            compute.mtp_times,
        ),
    ),
    Term(
        name="embedding",
        kind="time",
        group="device",
        title="embedding lookup",
        equation="m (forward + backward − its collective, which stands under tp)",
        source="costmodels.layers.compute.embedding_times: operand counts; Megatron-LM "
        "core/tensor_parallel/layers.py",
        left_out="Sorting of repeated tokens in the gradient. A lookup is no matrix product and "
        "has no model FLOPs",
        functions=(compute.embedding_times,),
    ),
    Term(
        name="tower",
        kind="time",
        group="device",
        title="vision tower and projector",
        equation="m (forward + backward), on the first stage",
        source="costmodels.towers.vision.tower_terms: layers of an encoder; Megatron-LM "
        "core/models/multimodal/llava_model.py",
        left_out="Images of unlike sizes, norms and activations of the projector. Collectives of "
        "the tower's tensor parallelism are in it, not under tp",
        functions=(vision.tower_terms, vision.vision_flops, vision.encoder_params),
    ),
    Term(
        name="recompute",
        kind="time",
        group="device",
        title="forward again in the backward, without its collectives",
        equation="m (L_r forward again + modules again − their waits, which stand under tp, cp "
        "and ep)",
        source="costmodels.layers.recompute.module_terms and layer_terms: Megatron-LM's "
        "recompute modules; checked against Korthikanti et al. 2022, section 5",
        left_out="Recomputation of other operators (torchtitan's policy per operator). The "
        "slowdown of the recomputed forward beside hidden traffic; the host's time to "
        "launch recomputed modules (with `full` it is in); fp8 copies that go with a "
        "module",
        functions=(
            dense.dense_terms,
            moe.expert_layer_terms,
            recompute.module_terms,
        ),
    ),
    Term(
        name="host",
        kind="time",
        group="device",
        title="waiting for kernel launches",
        equation="m L (launch − device time of a layer; of an expert layer a share at least)",
        source="costmodels.layers.layer_kind.host_s: launch time of a layer, fitted for each "
        "stack",
        left_out="Differences between hosts, launches of recomputed modules, garbage collection "
        "pauses",
        functions=(
            layer_kind.host_waits,
            launches.dense_launch_s,
            launches.expert_launch_s,
            experts.products_host_s,
            experts.synced_host_s,
            launches.pool_bytes,
        ),
    ),
    Term(
        name="tp",
        kind="time",
        group="network",
        title="exposed tensor-parallel traffic",
        equation="m (L (wait forward + wait backward) + what is recomputed + ends of the model)",
        source="costmodels.comm.tensor_parallel.layer_exposures: Megatron-LM "
        "core/tensor_parallel/layers.py (order), Korthikanti et al. 2022, section 4.2 "
        "(volumes); times of NCCL's tuning.cc",
        left_out="The lower rate of a product cut into pieces; the gather on arrival of pipeline "
        "messages (`p2p_scatter`)",
        functions=(tensor_parallel.layer_exposures,),
    ),
    Term(
        name="cp",
        kind="time",
        group="network",
        title="exposed exchange of keys and values",
        equation="m (L (wait forward + wait backward) + what is recomputed + multi-token "
        "prediction)",
        source="costmodels.comm.context_parallel.exchange_times: Liu et al. 2023 (ring "
        "attention), Llama 3 paper, section 3.3.2, Jacobs et al. 2023 (Ulysses)",
        left_out="Exchanges that combine two kinds (a2a+p2p); gathers that begin beside the "
        "projections; packed sequences, whose masks unbalance the ranks; launches of "
        "the host for c kernels",
        functions=(
            context_parallel.exchange_times,
            context_parallel.buffer_bytes,
        ),
    ),
    Term(
        name="ep",
        kind="time",
        group="network",
        title="exchange of tokens between experts",
        equation="m (L_e (exchange forward + backward) + what is recomputed + multi-token "
        "prediction); with ep_overlap what no other micro-batch hides, and once a step what "
        "the first forward and the last backward have no other micro-batch for",
        source="costmodels.comm.dispatch: Megatron-LM core/transformer/moe/token_dispatcher.py; "
        "DeepEP; costmodels.comm.expert_overlap: Megatron-LM "
        "core/models/common/model_chunk_schedule_plan.py",
        left_out="Overlap with shared experts, fp8 dispatch, tiers above the lowest that a group "
        "spans, layers without a partner in the other micro-batch's chunk",
        functions=(
            dispatch.dispatch_s,
            dispatch.token_exchange,
            collectives.direct_all_to_all_s,
            dispatch.sent_copies,
            dispatch.distinct_units,
            dispatch.dispatcher_buffer_bytes,
            dispatch.taken_share,
            expert_overlap.exchange_beside,
            expert_overlap.exposed_exchange,
            step.overlap_fill_s,
        ),
    ),
    Term(
        name="overlap",
        kind="time",
        group="network",
        title="compute slowed by traffic beside it",
        equation="m L slowed compute of a layer + slowdown × hidden dp traffic",
        source="costmodels.comm.tensor_parallel.layer_exposures and "
        "costmodels.step.data_parallel_exposed: slowdown of compute beside collectives, "
        "fitted over measured runs",
        left_out="That the slowdown depends on the number of channels, the wire and the kernel "
        "beside it",
        functions=(
            tensor_parallel.layer_exposures,
            step.data_parallel_exposed,
        ),
    ),
    Term(
        name="pp",
        kind="time",
        group="network",
        title="exposed messages between stages",
        equation="T(pipeline with messages) − T(the same, messages taking no time)",
        source="costmodels.schedule.pipeline.simulate_s: the exact recurrence of the schedule "
        "of Megatron-LM core/pipeline_parallel/schedules.py, with and without messages",
        left_out="Ranks blocked while they send (then about twice as much in 1F1B). Overlap "
        "switched off in interleaved schedules (then 2 m v τ)",
        functions=(
            pipeline.simulate_s,
            pipeline.p2p_s,
        ),
    ),
    Term(
        name="bubble",
        kind="time",
        group="waiting",
        title="idle pipeline",
        equation="T(pipeline, messages taking no time) − m (forward + backward of the slowest "
        "rank)",
        source="costmodels.schedule.pipeline.simulate_s: the exact recurrence of the schedule "
        "of Megatron-LM core/pipeline_parallel/schedules.py; Narayanan et al. 2021, "
        "section 2.2",
        left_out="Jitter between ranks",
        functions=(
            pipeline.simulate_s,
            pipeline.compute_s,
        ),
    ),
    Term(
        name="dp",
        kind="time",
        group="network",
        title="exposed data-parallel and ZeRO traffic",
        equation="time on the wire in a step − what runs beside compute",
        source="costmodels.step.data_parallel_exposed: ZeRO, section 7; Megatron-LM "
        "dist_optimizer.md; PyTorch FSDP; ZeRO++, section 3.2",
        left_out="The idle time of later ranks in the drain, gradient compression and quantized "
        "weights, filling the second copy (a copy on the device). The search does not "
        "vary the ZeRO group; `planner validate` prices what a run states",
        functions=(
            step.data_parallel_exposed,
            data_parallel.data_parallel_times,
            data_parallel.exposed_once_s,
        ),
    ),
    Term(
        name="optimizer",
        kind="time",
        group="per step",
        title="optimizer step",
        equation="N (G / D_g + (4 G + 30 − moved on the host) / D) bytes / (B_hbm × share)",
        source="costmodels.layers.compute.optimizer_s: operands of Megatron-LM's distributed "
        "optimizer, as SimuMax (commit 4dcaae5) lists them",
        left_out="The recipe without a master copy (fp32) needs no cast. Of Muon and SOAP: "
        "launches that the host does not get out in time, batches of matrices alike, buckets",
        functions=(
            compute.optimizer_s,
            optimizer_groups.rank_terms,
            matrix_times.newton_schulz_s,
            orthogonalization.orthogonalization,
            preconditioning.preconditioning_flops,
        ),
    ),
    Term(
        name="offload",
        kind="time",
        group="per step",
        title="an optimizer and stored activations on the host",
        equation="update on the host − what runs beside compute + m (waits for copies of "
        "activations, forward + backward) + m L (waits for copies of modules)",
        source="costmodels.step.offload_exposed, costmodels.offload.activations.waits and "
        "costmodels.offload.modules.module_waits: DeepSpeed runtime/zero; Megatron-LM "
        "HybridDeviceOptimizer, fine_grained_activation_offload.py; Transformer Engine "
        "cpu_offload.py",
        left_out="Two devices behind one PCIe switch, which share its link; hosts with too few "
        "cores to keep up with their memory; compute slowed beside the copies; "
        "fractions of an optimizer between 0 and 1; weights on the host. Of "
        "activations: tensors too small to be copied (Transformer Engine leaves those "
        "below 2^20 elements), layers that differ in work (their mean counts), a host "
        "process that runs ahead of the device and asks for copies early, gradients of "
        "an optimizer on the host that share the link. Of modules: fractions of their "
        "groups, those of multi-token prediction (what they wait is in head). DeepSpeed's "
        "ZeRO 3 converts weights before it copies them (2 bytes up, not 4)",
        functions=(
            step.offload_exposed,
            optimizer.host_update,
            optimizer.pipelined_s,
            optimizer.host_state_bytes,
            activations.waits,
            step.offloaded_activation_bytes,
            modules.module_copies,
            modules.module_waits,
        ),
    ),
    Term(
        name="straggler",
        kind="time",
        group="waiting",
        title="the slowest of many nodes",
        equation="(S − 1) T(pipeline with messages)",
        source="costmodels.step.straggler_factor: Blom 1958 (expected order statistics); "
        "spread of nodes fitted over measured runs",
        left_out="Failing nodes, restarts, jitter inside a node",
        functions=(step.straggler_factor,),
    ),
    Term(
        name="fixed",
        kind="time",
        group="per step",
        title="outside the model",
        equation="data, logging, scalar reductions: a constant of the stack",
        source="costmodels.stacks: time of a step outside the model, by software stack (assumed)",
        left_out="Checkpoints, evaluation, restarts",
        functions=(step.outside_pipeline,),
    ),
    Term(
        name="states",
        kind="memory",
        group="",
        title="weights, gradients, optimizer state",
        equation="(W + G + K bytes, those that ZeRO shards over D) × parameters of the rank",
        source="costmodels.memory.state_bytes_per_param: Rajbhandari et al. 2020 (ZeRO), "
        "section 5; Megatron-LM dist_optimizer.md; ZeRO++, section 3.2",
        left_out="Padding of flat shards",
        functions=(
            memory.state_bytes_per_param,
            shape_terms.quantized_bytes,
            optimizer_groups.rank_terms,
            preconditioning.preconditioner_bytes,
        ),
    ),
    Term(
        name="activations",
        kind="memory",
        group="",
        title="activations in flight",
        equation="chunks in flight / v × (layers × kept + recomputed × input)",
        source="costmodels.memory.layer_activation_bytes: Korthikanti et al. 2022, section "
        "4.1; chunks in flight of Megatron-LM's schedules",
        left_out="Rows that pad those of experts in fp8",
        functions=(
            memory.layer_activation_bytes,
            memory.quantized_inputs,
            memory.saved_input_bytes,
            memory.in_flight_chunks,
        ),
    ),
    Term(
        name="logits",
        kind="memory",
        group="",
        title="logits and final norm",
        equation="tokens × V / t × bytes a logit + final norm, on the rank with the head",
        source="costmodels.memory.logits_bytes: tensors of head and loss of the stack",
        left_out="Losses computed in chunks",
        functions=(memory.logits_bytes,),
    ),
    Term(
        name="working",
        kind="memory",
        group="",
        title="temporaries of the backward",
        equation="max(0, dropped by recomputation + temporaries − logits) + scratch gradients",
        source="costmodels.memory.working_bytes: the tensors alive in a backward; Megatron-LM "
        "megatron_fsdp.md (double buffer); costmodels.phases: buffers of libtpu",
        left_out="Temporaries of other optimizers than DeepSpeed's; the loss beside the "
        "temporaries of other work; a ZeRO-3 unit larger than embedding or layer",
        functions=(
            memory.working_bytes,
            memory.zero3_working_bytes,
            memory.flat_copy_bytes,
            memory.rebuilt_bytes,
            phases.phase_bytes,
            context_parallel.buffer_bytes,
        ),
    ),
    Term(
        name="fragmentation",
        kind="memory",
        group="",
        title="lost to the allocator",
        equation="share lost to the allocator × activations",
        source="costmodels.step.memory_terms: share of activations lost to the allocator, by "
        "software stack",
        left_out="Variable sequence lengths, which fragment more. `expandable_segments`, which "
        "fragments less",
        functions=(step.memory_terms,),
    ),
    Term(
        name="overhead",
        kind="memory",
        group="",
        title="context and communication buffers",
        equation="context + communicators that leave the node × buffers of one",
        source="costmodels.shape_terms: context and buffers of each communicator that leaves a "
        "node, by software stack",
        left_out="Buffers of in-switch reduction; a tensor-parallel group that leaves the "
        "domain; growth with the number of channels and peers",
        functions=(step.memory_terms,),
    ),
)

TERMS: dict[str, Term] = {term.name: term for term in _TERMS}
"""Every term of a step, then of the memory, in the order in which they are printed."""

RUN_TERMS: dict[str, Term] = {
    term.name: term
    for term in (
        Term(
            name="goodput",
            kind="run",
            title="what failures and checkpoints leave",
            functions=(
                goodput.goodput_frac,
                goodput.best_interval_s,
                goodput.job_mtbf_s,
                goodput.checkpoint_time_s,
                goodput.saved_bytes,
            ),
        ),
        Term(
            name="energy",
            kind="run",
            title="electricity at the meter",
            functions=(cost_energy.device_power_w, cost_energy.energy_j),
        ),
        Term(
            name="cost",
            kind="run",
            title="price of the devices",
            functions=(cost_energy.cost_usd,),
        ),
    )
}
"""Figures of a run that `explain --term` opens."""

ALIASES = {
    "moe": "experts",
    "all-to-all": "ep",
    "ep_comm": "ep",
    "tp_comm": "tp",
    "dp_comm": "dp",
    "pp_comm": "pp",
    "p2p": "pp",
    "cp_comm": "cp",
    "gemm": "linear",
}
"""Other names of terms."""


def of_kind(kind: str) -> tuple[str, ...]:
    """Return the names of the terms of the time or of the memory."""
    return tuple(name for name, term in TERMS.items() if term.kind == kind)


WHERE_PRESENT = ("tower",)
"""Terms of a step that only some models have; others do not list them."""
ALL_TIME_TERMS = of_kind("time")
"""The terms of a step in the order in which they are printed; their sum is the step time."""
TIME_TERMS = tuple(name for name in ALL_TIME_TERMS if name not in WHERE_PRESENT)
"""Those that every step has."""
MEMORY_TERMS = of_kind("memory")
COMPUTE_TERMS = ("linear", "attention", "elementwise", "experts", "head", "embedding", "tower")
"""Terms in which the slowest rank computes for the first time."""
NETWORK_TERMS = ("tp", "cp", "ep", "pp", "dp")
"""Terms in which the slowest rank waits for the network, by axis."""


def term_groups() -> dict[str, tuple[str, ...]]:
    """Return the terms of a step by what they have in common; network terms of an axis first."""
    by_group: dict[str, list[str]] = {}
    for term in TERMS.values():
        if term.kind == "time":
            by_group.setdefault(term.group, []).append(term.name)
    return {
        group: tuple(
            sorted(names, key=lambda name: group == "network" and name not in NETWORK_TERMS)
        )
        for group, names in by_group.items()
    }
