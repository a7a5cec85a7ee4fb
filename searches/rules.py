"""The rules that a layout must keep, each with a code, a reason and a predicate.

One table serves the solver, the counts of what was rejected, and `planner rule CODE`. Predicates
of coupled axes take arrays of one length; those of free axes broadcast.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import CP_COMMS, RECOMPUTE_MODULES, RECOMPUTES, SCHEDULES, modules_code
from costmodels.layers.factor import distinct
from costmodels.layers.kinds import (
    attends,
    attention_shapes,
    mixer_cuts,
    mixer_heads,
    mixers_of,
    mlp_widths,
    present_kinds,
    reads_earlier_layers,
)
from costmodels.layers.layer_grid import LayerGrid
from costmodels.memory import param_bytes_kept, state_bytes_per_param
from costmodels.offload.activations import RESIDENT_LAYERS
from costmodels.offload.optimizer import HOST_USABLE_FRAC, gradients_leave
from costmodels.optimizers.records import BY_MATRIX
from costmodels.parameters import frozen_model_bytes, trained_params
from costmodels.plans import (
    PIPELINES_INSIDE,
    SHAPE_AXES,
    ZERO_BUBBLE,
    Layout,
    PlanTable,
    ShapeTable,
    ShardingTable,
)
from costmodels.problem import Problem
from costmodels.schedule.stages import SPLITS, most_stages, stage_layers
from costmodels.shape_terms import host_bytes, shape_terms
from costmodels.shapes import ModelShape
from costmodels.step import Rows, join, needed_host_bytes, sends_activations
from searches.frameworks.table import schedule_runs
from searches.mode_rules import BOTH_WAYS, plans_that_break
from searches.options import SearchOptions
from searches.pricing.shared_work import SharedWork

Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Context:
    """What rules look at besides the axes."""

    problem: Problem
    options: SearchOptions
    n_devices: int
    shared: SharedWork | None = field(default=None, compare=False, repr=False)
    """What searches of neighbouring problems share, in one process."""
    grids: Callable[["Context"], LayerGrid | None] | None = field(
        default=None, compare=False, repr=False
    )
    """Where layer terms are found that several searches of one solve need."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Context, (self.problem, self.options, self.n_devices)

    @property
    def layer_grid(self) -> LayerGrid | None:
        """Layer terms of every split of a layer, where they are few enough to be kept."""
        return self.grids(self) if self.grids else None


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason for which a layout is not in the space."""

    code: str
    title: str
    why: str
    """The reason in a sentence or two, for `planner rule CODE`."""
    relax: str
    """What lifts it."""
    source: str


RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in (
        Rule(
            "PIN001",
            "outside the pins and limits",
            "`--pin`, `--only` or `--max` excludes this value.",
            "drop the pin or the limit",
            "the user",
        ),
        Rule(
            "TP001",
            "attention heads do not divide by tp",
            "Tensor parallelism gives every rank whole heads: heads % tp must be 0.",
            "another tp",
            "Megatron-LM TransformerConfig: num_attention_heads % tp",
        ),
        Rule(
            "TP002",
            "KV heads do not fit tp",
            "kv_heads % tp must be 0, or tp % kv_heads 0 (then heads are replicated).",
            "another tp",
            "Megatron-LM TransformerConfig: num_query_groups and tp",
        ),
        Rule(
            "TP003",
            "MLP width does not divide by tp",
            "Every rank holds ffn/tp columns of a dense layer: ffn % tp must be 0, unless every "
            "layer has experts.",
            "another tp",
            "Megatron-LM core/utils.py divide()",
        ),
        Rule(
            "TP005",
            "tp does not fit the scale-up domain",
            "A group inside a domain must divide it, a larger one must fill whole domains: else "
            "groups of consecutive ranks straddle domains unequally.",
            "another tp",
            "default of the search",
        ),
        Rule(
            "TP006",
            "heads of a state-space or linear layer, or a vision tower, do not divide by tp",
            "Such a layer gives every rank whole heads and groups: tp divides their numbers, and "
            "heads and inner width of a vision tower.",
            "another tp",
            "Megatron-LM core/ssm (mamba_mixer.py, gated_delta_net)",
        ),
        Rule(
            "CP001",
            "the sequence does not cut into 2 cp chunks",
            "Every context-parallel rank holds two chunks of a sequence from opposite ends, so "
            "that the causal mask leaves all the same work: seq_len % (2 cp) must be 0.",
            "another cp or seq_len",
            "Megatron-LM arguments.py: seq_length % (2 cp)",
        ),
        Rule(
            "CP002",
            "attention heads do not divide by tp * cp",
            "With all-to-alls (Ulysses) every rank attends with 1/cp of its heads: heads and "
            "kv_heads must divide by tp * cp.",
            "cp_comm p2p or all-gather, or a smaller cp",
            "Transformer Engine attention",
        ),
        Rule(
            "CP003",
            "context parallelism needs a fused attention kernel",
            "The parts of the attention are put together by their log-sum-exp, which unfused "
            "operators do not give.",
            "flash_attention: true, or cp 1",
            "Transformer Engine attention",
        ),
        Rule(
            "CP004",
            "attention over a part of the keys with a ring",
            "Windows and chunks do not run with cp_comm p2p: the kernels of the ring take all "
            "keys or their causal half.",
            "cp_comm all-gather or a2a, or cp 1",
            "Transformer Engine attention/dot_product_attention/context_parallel.py",
        ),
        Rule(
            "CP005",
            "heads of a state-space or linear layer do not divide by tp * cp",
            "Such a layer turns its share of the sequence into a share of its heads by "
            "all-to-alls: tp * cp divides its heads, and its groups unless each is on several "
            "ranks.",
            "a smaller cp",
            "Megatron-LM core/ssm/mamba_context_parallel.py",
        ),
        Rule(
            "CP006",
            "context parallelism of an encoder-decoder",
            "Two sequences of their own lengths would be cut, and the encoder's output gathered"
            " for every layer of the decoder; no framework that plans are written for does it.",
            "cp 1",
            "Megatron-LM core/models/T5/t5_model.py; Accelerate cuts causal attention alone",
        ),
        Rule(
            "CP007",
            "context parallelism of compressed attention",
            "An entry is made of tokens in a row, and a query sees entries of all ranks: the ways"
            " of exchanging keys that are priced cut a sequence from both its ends.",
            "cp 1",
            "Megatron-LM after 0.19, deepseek_v4_hybrid_attention.py, which cuts packed sequences"
            " in a row alone; transformers models/deepseek_v4",
        ),
        Rule(
            "EP001",
            "experts do not divide by ep",
            "Every expert-parallel rank holds n_experts / ep experts; a dense model has none, so "
            "ep and etp are 1.",
            "another ep, or ep 1",
            "Megatron-LM TransformerConfig: num_moe_experts % ep",
        ),
        Rule(
            "EP002",
            "the experts' grid does not fit a pipeline stage",
            "Experts are laid out over the devices of a stage anew: etp * ep must divide "
            "tp * cp * dp.",
            "a smaller ep or etp",
            "Megatron-LM core/parallel_state.py",
        ),
        Rule(
            "EP003",
            "MLP width of an expert does not divide by etp",
            "Every rank holds 1/etp of the columns of its experts: expert_ffn % etp must be 0.",
            "another etp",
            "Megatron-LM core/utils.py divide()",
        ),
        Rule(
            "VPP001",
            "interleaving needs a pipeline",
            "vpp > 1 needs pp > 1.",
            "vpp 1",
            "Megatron-LM arguments.py",
        ),
        Rule(
            "PP001",
            "more virtual stages than layers and ends",
            "pp * vpp may be layers + 2 at most, where the first virtual stage holds the embedding"
            " alone and the last one the loss; a split that is spelled out may have more.",
            "a smaller pp or vpp",
            "default of the search",
        ),
        Rule(
            "PP002",
            "layers cannot be split this way",
            "`even` needs layers % (pp * vpp) = 0; `ends` (embedding and loss counted as a layer "
            "each) needs at least one unit per virtual stage and more than one stage, where "
            "interleaved stages of one unit are all alike between the ends, and counts only where "
            "it differs from `even`.",
            "another pp, vpp or split",
            "Megatron-LM TransformerConfig, pipeline layout",
        ),
        Rule(
            "PP003",
            "a pipeline of an encoder-decoder",
            "The output of the encoder would cross every later boundary and its gradient return;"
            " no framework that plans are written for sends two tensors.",
            "pp 1",
            "Megatron-LM core/pipeline_parallel/schedules.py, get_tensor_shapes",
        ),
        Rule(
            "PP004",
            "layers that read what earlier stages hold",
            "Layers that take keys, values or weights of an earlier layer, or a row of their own "
            "embedding, would need it sent along the pipeline: no framework does that.",
            "pp 1",
            "transformers models/gemma4 (shared_kv_states, per_layer_inputs)",
        ),
        Rule(
            "SCH002",
            "zero-bubble schedules of experts are not modelled",
            "ZB-H1 and ZB-V with routed experts or multi-token prediction: what waits for weight "
            "gradients holds has no term yet. DualPipe and DualPipe-V are priced.",
            "schedule 1f1b, interleaved, dualpipe or dualpipe-v",
            "docs/terms/zero_bubble.md",
        ),
        Rule(
            "SCH003",
            "the framework has no such schedule",
            "None of the frameworks that are searched runs this pipeline schedule.",
            "another schedule, --framework torchtitan, or --framework any",
            "docs/frameworks.md",
        ),
        Rule(
            "ORD001",
            "the order of ranks makes no other plan",
            "Pipelines may lie inside data parallelism or the other way round. Without one of "
            "the two, or where the tp * cp ranks of a replica fill whole domains (and units of "
            "tiers whose uplinks are slower) anyhow, every group is placed alike.",
            "rank_order tp-cp-ep-dp-pp, which is the same plan",
            "definition",
        ),
        Rule(
            "ORD002",
            "the experts' pipelines would not be those of attention",
            "With pipelines inside, a stage's neighbour is tp cp ranks away for attention and "
            "etp ep ranks for the experts: both must be the same rank, so etp * ep = tp * cp.",
            "rank_order tp-cp-ep-dp-pp, or degrees with etp * ep = tp * cp",
            "Megatron-LM core/parallel_state.py",
        ),
        Rule(
            "DP001",
            "global batch does not divide by dp",
            "Every data-parallel rank takes the same number of sequences: global_batch % dp = 0.",
            "another global_batch or number of devices",
            "Megatron-LM num_microbatches_calculator.py",
        ),
        Rule(
            "MEM000",
            "weights and gradients alone exceed the memory",
            "Without ZeRO 2 or 3 a rank holds (W + G) N / (tp pp) bytes whatever the rest does; "
            "with them at least (W + G + K) N / devices.",
            "a larger tp * pp, more devices, or an accelerator with more memory",
            "linear lower bound, docs/terms/states.md",
        ),
        Rule(
            "BAT001",
            "global batch does not divide by mbs * dp",
            "Micro-batches are equal: global_batch % (mbs * dp) must be 0.",
            "another mbs or global_batch",
            "Megatron-LM num_microbatches_calculator.py",
        ),
        Rule(
            "BAT002",
            "interleaving needs micro-batches in multiples of pp",
            "The interleaved schedule runs groups of pp micro-batches: n_micro % pp must be 0.",
            "vpp 1, a smaller mbs, or a larger global_batch",
            "Megatron-LM core/pipeline_parallel/schedules.py",
        ),
        Rule(
            "BAT003",
            "DualPipe needs two micro-batches per pipeline rank",
            "Its phases fill and drain with 2 pp micro-batches; dualpipe, which feeds both ends, "
            "also needs an even pp and an even number of micro-batches.",
            "schedule zb-h1 or zb-v, a smaller mbs, or a larger global_batch",
            "deepseek-ai/DualPipe dualpipe.py",
        ),
        Rule(
            "SP001",
            "sequence parallelism has nothing to split",
            "It needs tp > 1, and seq_len % (tp cp) = 0.",
            "tp > 1",
            "Megatron-LM arguments.py, mappings.py",
        ),
        Rule(
            "ZER001",
            "ZeRO 2 and 3 with a pipeline",
            "Gradients (and weights) would be reduced (and gathered) for every micro-batch of "
            "every stage; DeepSpeed refuses it.",
            "ZeRO 1, or pp 1",
            "DeepSpeed runtime/pipe/engine.py",
        ),
        Rule(
            "ZER002",
            "ZeRO without data parallelism",
            "With dp * cp = 1 there is no group to shard over; ZeRO 0 is the same plan.",
            "dp > 1 or cp > 1",
            "definition",
        ),
        Rule(
            "HPZ001",
            "a second copy of weights that are not sharded over all ranks",
            "hpZ keeps a second copy of the weights so that most gathers stay in a small group: "
            "it needs ZeRO-3 over all dp cp ranks. In replicated groups (dp_shard) the gathers "
            "are small already.",
            "zero 3 and dp_shard dp cp, or hpz 1",
            "DeepSpeed runtime/zero/config.py",
        ),
        Rule(
            "HPZ002",
            "the group of a second copy has ranks with other weights",
            "DeepSpeed makes its groups of ranks with consecutive numbers, whatever other groups "
            "there are: with tp, pp, ep or etp neighbours hold different weights, and what is "
            "gathered would be wrong.",
            "tp 1, pp 1, ep 1 and etp 1, or hpz 1",
            "DeepSpeed utils/groups.py, _create_zero_param_parallel_group",
        ),
        Rule(
            "HPZ003",
            "the group of a second copy does not divide the ranks",
            "dp cp ranks are cut into equal groups of hpz.",
            "an hpz that divides dp cp",
            "DeepSpeed utils/groups.py",
        ),
        Rule(
            "REC001",
            "selective recompute saves nothing here",
            "Recomputing the attention core drops the attention scores; a flash kernel stores "
            "none.",
            "flash_attention: false, other recompute_modules, or full recompute",
            "Korthikanti et al. 2022, section 5",
        ),
        Rule(
            "REC002",
            "modules to recompute that the model does not have",
            "mla_up_proj needs latent attention; mlp a dense layer; moe and moe_act experts; "
            "shared_experts shared ones; gdn_norm_out gated delta nets; layernorm a norm that "
            "stands alone, before latent attention or routed experts: the others are one "
            "operator with the product after them.",
            "modules that it has",
            "Megatron-LM gpt_layer_specs.py, transformer_layer.py",
        ),
        Rule(
            "REC003",
            "modules to recompute that lie in each other",
            "moe recomputes the whole of an expert layer's MLP: its activation (moe_act) and its "
            "shared experts are in it, and naming them too is the same plan.",
            "moe alone, or the others without it",
            "Megatron-LM moe_layer.py, MoELayer.forward",
        ),
        Rule(
            "SCH001",
            "the schedule does not match pp and vpp",
            "Without a pipeline there is no schedule; vpp > 1 is interleaved 1F1B; vpp = 1 is "
            "1F1B (or GPipe, zb-h1, dualpipe); vpp = 2 may also be zb-v or dualpipe-v.",
            "another schedule, pp or vpp",
            "definition",
        ),
        Rule(
            "OPT001",
            "whole matrices shared out in another way",
            "Muon and SOAP treat a matrix as one, so that a rank holds the states of whole "
            "matrices. No software shares out their gradients or weights (ZeRO 2, 3) as well, "
            "nor replicates such shards (HSDP).",
            "zero 0 or 1 over all dp cp ranks, or optimizer adam",
            "Megatron-LM core/optimizer/layer_wise_optimizer.py and core/optimizer/__init__.py",
        ),
        Rule(
            "OPT002",
            "no price for this optimizer on the host",
            "What a host takes for an update is known of Adam alone.",
            "optimizer_offload off, or optimizer adam",
            "docs/terms/offload.md",
        ),
        Rule(
            "OFF001",
            "no host to offload to",
            "What the accelerators' hosts have (link, memory, its bandwidth) is not known, so an "
            "optimizer or activations there have no price.",
            "host_link, host_memory and host_memory_bandwidth in the cluster file",
            "docs/terms/offload.md",
        ),
        Rule(
            "OFF002",
            "the host's memory is too small for what is offloaded",
            "Every offloaded parameter takes 16 bytes on the host, offloaded layers what a "
            "micro-batch keeps, offloaded modules what all in flight do; all devices of a node "
            "share nine tenths of its memory. A search counts plans that only their activations "
            "keep out under MEM001.",
            "a larger host_memory, more sharding (zero 1, dp), a smaller mbs, or "
            "optimizer_offload or activation_offload off",
            "Megatron-LM core/optimizer/cpu_offloading/hybrid_optimizer.py",
        ),
        Rule(
            "OFF003",
            "the stack offloads no sharded gradients",
            "A stack that updates piece by piece after the backward (Megatron-LM) keeps whole "
            "gradients: its optimizer goes to the host up to ZeRO 1. One whose gradients leave "
            "(DeepSpeed) has it with every stage.",
            "zero 1, or --framework deepspeed",
            "docs/terms/offload.md",
        ),
        Rule(
            "OFF004",
            "stored activations leave only where one stage holds all layers",
            "Copies are timed by the layers of one forward and one backward that follow each "
            "other; Megatron-LM refuses them with a pipeline.",
            "pp 1, or activation_offload off",
            "Megatron-LM TransformerConfig: cpu_offloading and pipeline_model_parallel_size",
        ),
        Rule(
            "OFF005",
            "layers that cannot leave",
            "Without recomputation the activations of the first layers leave, and at least two "
            "layers stay; with full recomputation the inputs of all recomputed layers leave; "
            "with selective none do.",
            "activation_offload_layers up to layers - 2, or recompute full with as many layers",
            "Transformer Engine cpu_offload.py; DeepSpeed activation_checkpointing",
        ),
        Rule(
            "OVL001",
            "no data-parallel traffic to wait for",
            "With dp * cp = 1 nothing is reduced or gathered; dp_overlap on is the same plan.",
            "dp > 1 or cp > 1",
            "definition",
        ),
        Rule(
            "OVL002",
            "no tensor-parallel traffic to cut into pieces",
            "tp_overlap cuts the collectives of sequence parallelism into pieces, written into "
            "the memory of peers: it needs sp, a tp group inside a scale-up domain, and a stack "
            "that has it. Elsewhere it is the same plan.",
            "sp on and tp inside the domain, or tp_overlap off",
            "docs/terms/tp.md",
        ),
        Rule(
            "DSP001",
            "the dispatcher's kernels do not run on these devices",
            "DeepEP and HybridEP are CUDA kernels for Ampere to Rubin, and Primus-Turbo has "
            "DeepEP for MI300X to MI355X; DeepEP knows no NVLink that joins nodes.",
            "dispatcher hybridep on NVL72 racks, alltoall elsewhere",
            "DeepEP; Megatron-Bridge training/flex_dispatcher_backend.py; Primus-Turbo README.md",
        ),
        Rule(
            "DSP002",
            "the dispatcher has no setting for such groups",
            "DeepEP has settings for 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144 and 160 ranks (on "
            "AMD not 48 and 96), over nodes of 8. HybridEP needs groups that fill whole NVLink "
            "domains or lie in one, 4 experts or a multiple in a domain, a hidden size that 16 "
            "divides.",
            "another ep, or dispatcher alltoall",
            "DeepEP deep_ep/buffers/legacy.py; branch hybrid-ep, csrc/hybrid_ep/config.cuh",
        ),
        Rule(
            "DSP003",
            "no tokens to dispatch",
            "With ep and etp 1 every expert is at home; the plan is that of alltoall.",
            "ep > 1, or dispatcher alltoall",
            "definition",
        ),
        Rule(
            "DSP004",
            "DeepEP does not pad experts to capacity",
            "A model with a capacity factor drops tokens and pads, which DeepEP cannot.",
            "dispatcher alltoall",
            "Megatron-LM core/transformer/transformer_config.py",
        ),
        Rule(
            "EPO001",
            "no exchange that can hide beside another micro-batch",
            "ep_overlap hides the exchange over ep; the allgather dispatcher has none that can.",
            "ep > 1 with dispatcher alltoall, deepep or hybridep; or ep_overlap off",
            "Megatron-LM core/transformer/transformer_config.py",
        ),
        Rule(
            "EPO002",
            "the schedule runs no two micro-batches at once",
            "ep_overlap 1f1b needs pp 1 or an interleaved pipeline, dualpipe a DualPipe schedule.",
            "vpp > 1 or pp 1, or ep_overlap off",
            "Megatron-LM core/transformer/transformer_config.py; DeepSeek-V3 report",
        ),
        Rule(
            "EPO003",
            "recomputation that the overlapped exchange does not allow",
            "With ep_overlap neither whole layers nor the experts run forward twice.",
            "recompute none or modules without moe, or ep_overlap off",
            "Megatron-LM core/transformer/transformer_config.py",
        ),
        Rule(
            "EPO004",
            "more modules of multi-token prediction than the overlap knows",
            "Combined 1F1B has at most one module of multi-token prediction.",
            "mtp_layers 1 or 0, or ep_overlap off",
            "Megatron-LM core/transformer/transformer_config.py",
        ),
        Rule(
            "CGR001",
            "the model has no such module to capture, or it cannot be captured",
            "moe_router needs experts, mlp a dense layer; a whole layer with experts needs tokens "
            "dropped and padded to a capacity.",
            "cuda_graph none, attn or attn+moe_router+moe_preprocess",
            "Megatron-LM core/transformer/transformer_config.py",
        ),
        Rule(
            "CGR002",
            "experts of which no whole iteration can be captured",
            "A dropless expert layer has sizes that the host must know. Only paged stash gives it "
            "fixed ones: hybridep, etp 1, gated experts, Blackwell or later.",
            "dispatcher hybridep on Blackwell, or cuda_graph attn+moe_router+moe_preprocess",
            "Megatron-LM core/transformer/cuda_graphs.py, moe/paged_stash.py",
        ),
        Rule(
            "CGR003",
            "recomputation or offload that graphs do not allow",
            "Whole layers run forward twice only in a graph of the whole iteration; moe is not "
            "recomputed with moe_router captured; layers on the host are in no graph.",
            "recompute none, or cuda_graph none",
            "Megatron-LM core/transformer/transformer_config.py",
        ),
        Rule(
            "CGR004",
            "graphs that the overlapped exchange does not allow",
            "With ep_overlap no MLP is captured.",
            "cuda_graph without mlp, or ep_overlap off",
            "Megatron-LM core/transformer/transformer_config.py",
        ),
        Rule(
            "OFM001",
            "no such module to offload",
            "attn_norm is a norm of its own before latent attention alone, mlp_norm, expert_fc1 "
            "and moe_act are of routed experts; attn_proj saves what core_attn saves too, and "
            "leaves only with it.",
            "modules that the model has, core_attn with attn_proj, or offload_modules none",
            "Megatron-LM core/transformer/transformer_config.py, transformer_layer.py",
        ),
        Rule(
            "OFM002",
            "no host to offload modules to",
            "What the accelerators' hosts have (link, memory, its bandwidth) is not known, so "
            "copies of modules have no price.",
            "host_link, host_memory and host_memory_bandwidth in the cluster file",
            "docs/terms/offload.md",
        ),
        Rule(
            "OFM003",
            "a schedule that holds what comes back",
            "Where weight gradients wait (zero bubble, DualPipe) the inputs that they read are on "
            "the device again meanwhile, and nothing is saved at the peak.",
            "schedule 1f1b or interleaved, or offload_modules none",
            "costmodels.schedule.zero_bubble",
        ),
        Rule(
            "OFM004",
            "modules that graphs keep on the device",
            "With attn captured attn_norm does not leave, with attn or moe_router captured "
            "mlp_norm does not; in a graph of the whole iteration paged stash has expert_fc1 and "
            "moe_act.",
            "offload_modules without them, or cuda_graph none",
            "Megatron-LM core/transformer/transformer_layer.py, transformer_config.py",
        ),
        Rule(
            "OFM005",
            "modules that run forward twice, or leave with their layer",
            "What is computed again is not copied: no module with recompute full, no core_attn "
            "where it is recomputed, no expert_fc1 or moe_act inside a recomputed moe; nor any "
            "with activation_offload_layers.",
            "other recompute_modules, or offload_modules none",
            "Megatron-LM core/transformer/attention.py, transformer_config.py",
        ),
        Rule(
            "FRM001",
            "the framework cannot run it",
            "The chosen framework has no such combination.",
            "--framework any",
            "docs/frameworks.md",
        ),
        Rule(
            "DOM001",
            "never faster than the same plan with overlap",
            "Without overlap the data-parallel traffic takes the same memory and at least the "
            "same time: proven for every micro-batch of the shape, so the plan is counted and "
            "not priced. Where latency leaves that open, both are.",
            "--pin dp_overlap=off",
            "docs/terms/dp.md",
        ),
        Rule(
            "MEM001",
            "over the usable memory",
            "The rank that needs most exceeds the accelerator's memory less the margin, or what "
            "it offloads the host's.",
            "more recompute, a smaller mbs, larger tp or pp, more devices",
            "docs/memory.md",
        ),
    )
}
"""All rules by code, in the order in which they are applied."""

ShapePredicate = Callable[[Context, ShapeTable], Bools]


def _pinned(c: Context, axis: str, values: Ints) -> Bools:
    return np.array([c.options.allows(axis, int(v)) for v in values], dtype=bool)


def _by_value(values: Ints, ok: Callable[[Ints], Bools]) -> Bools:
    """Evaluate a predicate of one column on its distinct values."""
    distinct, back = np.unique(values, return_inverse=True)
    return np.asarray(ok(distinct.astype(np.int32))[back])


def _pins(c: Context, s: ShapeTable) -> Bools:
    ok, options = np.ones(len(s), dtype=bool), c.options
    for axis in SHAPE_AXES:
        if axis not in options.only and axis not in options.at_most:
            continue
        ok &= _by_value(getattr(s, axis), lambda v, axis=axis: _pinned(c, axis, v))  # type: ignore[misc]
    return ok


def _heads(c: Context, s: ShapeTable) -> Bools:
    ok = np.ones(len(s), dtype=bool)
    for shape in attention_shapes(c.problem.shape):
        ok &= shape.heads % s.tp == 0
    return ok


def _kv_heads(c: Context, s: ShapeTable) -> Bools:
    ok = np.ones(len(s), dtype=bool)
    for shape in attention_shapes(c.problem.shape):
        ok &= (shape.kv_heads % s.tp == 0) | (s.tp % shape.kv_heads == 0)
    return ok


def _mixer_heads(c: Context, s: ShapeTable) -> Bools:
    ok = np.ones(len(s), dtype=bool)
    for n in mixer_heads(c.problem.shape):
        ok &= n % s.tp == 0
    return ok


def _mixer_context(c: Context, s: ShapeTable) -> Bools:
    ok, over = np.ones(len(s), dtype=bool), s.tp.astype(np.int64) * s.cp
    for cut in mixer_cuts(c.problem.shape):
        n_groups = np.maximum(1, cut.groups // s.tp)
        shared = (cut.groups % over == 0) | (cut.repeats & (s.cp % n_groups == 0))
        ok &= (cut.heads % over == 0) & shared
    return np.asarray(ok | (s.cp == 1))


def _partial_keys(c: Context, s: ShapeTable) -> Bools:
    ok = np.ones(len(s), dtype=bool)
    for mixer in mixers_of(c.problem.shape):
        if mixer.cp_comms:
            legal = [CP_COMMS.index(name) for name in mixer.cp_comms]
            ok &= (s.cp == 1) | np.isin(s.cp_comm, legal)
    return ok


def _ffn(c: Context, s: ShapeTable) -> Bools:
    ok = np.ones(len(s), dtype=bool)
    for width in mlp_widths(c.problem.shape):
        ok &= width % s.tp == 0
    return ok


def _fits_domain(c: Context, s: ShapeTable) -> Bools:
    domain = c.problem.pool.scale_up_domain
    return np.asarray((domain % s.tp == 0) | (s.tp % domain == 0))


def _chunks(c: Context, s: ShapeTable) -> Bools:
    return np.asarray((s.cp == 1) | (c.problem.job.seq_len % (2 * s.cp.astype(np.int64)) == 0))


def _heads_of_context(c: Context, s: ShapeTable) -> Bools:
    divides, over = np.ones(len(s), dtype=bool), s.tp.astype(np.int64) * s.cp
    for shape in attention_shapes(c.problem.shape):
        divides &= (shape.heads % over == 0) & (shape.kv_heads % over == 0)
    return np.asarray((s.cp_comm != CP_COMMS.index("a2a")) | divides)


def _fused_attention(c: Context, s: ShapeTable) -> Bools:
    shape = c.problem.shape
    return np.asarray((s.cp == 1) | shape.flash_attention | (not attends(shape)))


def _whole_sequences(c: Context, s: ShapeTable) -> Bools:
    return np.asarray((s.cp == 1) | (c.problem.shape.encoder is None))


def _whole_mixers(c: Context, s: ShapeTable) -> Bools:
    is_whole = any(cut.is_whole for cut in mixer_cuts(c.problem.shape))
    return np.asarray((s.cp == 1) | (not is_whole))


def _one_stage(c: Context, s: ShapeTable) -> Bools:
    return np.asarray((s.pp == 1) | (c.problem.shape.encoder is None))


def _experts(c: Context, s: ShapeTable) -> Bools:
    n_experts = c.problem.shape.n_experts
    if not n_experts:
        return np.asarray((s.ep == 1) & (s.etp == 1))
    return np.asarray(n_experts % s.ep == 0)


def _expert_grid(c: Context, s: ShapeTable) -> Bools:
    return np.asarray(s.stage_ranks % (s.ep.astype(np.int64) * s.etp) == 0)


def _expert_ffn(c: Context, s: ShapeTable) -> Bools:
    return np.asarray(c.problem.shape.expert_ffn % s.etp == 0)


def _enough_layers(c: Context, s: ShapeTable) -> Bools:
    spelled = s.split >= len(SPLITS)
    return spelled | (s.pp.astype(np.int64) * s.vpp <= most_stages(c.problem.shape.layers))


def _reads_earlier_stages(c: Context, s: ShapeTable) -> Bools:
    return np.asarray((s.pp == 1) | (not reads_earlier_layers(c.problem.shape)))


def _splits(c: Context, s: ShapeTable) -> Bools:
    layers, result = c.problem.shape.layers, distinct((s.pp, s.vpp, s.split))

    def exists(p: int, v: int, i: int) -> bool:
        name = s.splits[i]
        counts = stage_layers(layers, p, v, name)
        return bool(counts) and (name == "even" or counts != stage_layers(layers, p, v, "even"))

    rows = zip(*(column.tolist() for column in result.columns), strict=True)
    return np.array([exists(*row) for row in rows], dtype=bool)[result.index]


def _scheduled(c: Context, s: ShapeTable) -> Bools:
    """Tell where a framework that is searched runs the schedule."""
    framework = c.options.framework
    if framework == "any":
        return np.ones(len(s), dtype=bool)
    runs = [name == "none" or schedule_runs(framework, name) for name in SCHEDULES]
    return np.array(runs)[s.schedule]


def _whole_backward(c: Context, s: ShapeTable) -> Bools:
    split = s.schedule >= SCHEDULES.index(ZERO_BUBBLE[0])
    return ~split | splits_cleanly(c.problem.shape) | np.isin(s.schedule, BOTH_WAYS)


def _interleaves(c: Context, s: ShapeTable) -> Bools:
    return np.asarray((s.vpp == 1) | (s.pp > 1))


def telling_units(problem: Problem) -> list[int]:
    """Return the units, in devices, whose borders a group pays for, the domain first.

    A tier counts that is oversubscribed, or where sums in the network end at some tier.
    """
    pool, units, over = problem.pool, [problem.pool.scale_up_domain], 1.0
    for tier in problem.tiers:
        over *= tier.oversubscription
        if over > 1.0 or pool.n_summing_tiers:
            units.append(tier.n_nodes * pool.devices_per_node)
    return [unit for unit in units if unit < pool.n_devices]


def only_inside(context: Context) -> bool:
    """Tell whether the user pins pipelines inside: then they are searched, different or not."""
    return context.options.only.get("rank_order") == frozenset({PIPELINES_INSIDE})


def _makes_another_plan(c: Context, s: ShapeTable) -> Bools:
    requested = only_inside(c)
    inner, differs = s.tp.astype(np.int64) * s.cp, np.zeros(len(s), dtype=bool)
    for unit in telling_units(c.problem):
        differs |= inner % unit > 0
    return np.asarray((s.rank_order == 0) | requested | ((s.pp > 1) & (s.dp > 1) & differs))


def _same_pipelines(c: Context, s: ShapeTable) -> Bools:
    same = s.ep.astype(np.int64) * s.etp == s.tp.astype(np.int64) * s.cp
    return np.asarray(~s.pipelines_inside | same | (c.problem.shape.n_experts == 0))


def _batch(c: Context, s: ShapeTable) -> Bools:
    return np.asarray(c.problem.job.global_batch % s.dp == 0)


def least_model_parallel(context: Context) -> float:
    """Return the least tp * pp whose weights and gradients fit without ZeRO 2 or 3.

    0 when the memory bound is off, where ZeRO 3 may shard every stage of a pipeline, and for
    experts, which other degrees shard; then everything sharded over all devices is the bound.
    """
    return model_parallel_for(context, fully_sharded_fits(context))


def model_parallel_for(context: Context, sharded_fits: bool) -> float:
    """Return `least_model_parallel` where everything sharded over all devices fits, or does not.

    That alone hangs on the number of devices.
    """
    if context.options.memory_bound and context.problem.shape.n_experts:
        return 0.0 if sharded_fits else math.inf
    sharded = context.options.framework == "any" and sharded_fits
    if sharded or not context.options.memory_bound:
        return 0.0
    problem, pool = context.problem, context.problem.pool
    per_param = param_bytes_kept(problem.job.recipe, problem.stack)
    weights = per_param.weights - problem.job.recipe.spared_weight_bytes
    least_bytes = (weights + per_param.grads) * _params(context) + frozen_job_bytes(problem)
    return least_bytes / max(pool.usable_bytes, 1.0)


def fully_sharded_bytes(context: Context) -> float:
    """Return what the states take of a device when they are shared out evenly over all devices.

    Those of the optimizer on the host where that is offered.
    """
    return all_states_bytes(context.problem, context.n_devices, offers_offload(context))


def fully_sharded_fits(context: Context) -> bool:
    """Tell whether everything sharded over all devices leaves the states within memory."""
    return fully_sharded_bytes(context) <= context.problem.pool.usable_bytes


def fully_sharded_fits_on(context: Context, n_devices: NDArray[np.int64]) -> Bools:
    """Return `fully_sharded_fits` of many numbers of devices of one pool."""
    problem, offload = context.problem, int(offers_offload(context))
    per_param = state_bytes_per_param(
        problem.job.recipe, 3, n_devices, offload, stack=problem.stack
    )
    least_bytes = per_param * _params(context) + frozen_job_bytes(problem) / n_devices
    return np.asarray(least_bytes <= problem.pool.usable_bytes)


def least_state_bytes(problem: Problem, n_devices: int, offload: bool) -> float:
    """Return the least bytes that one parameter takes on a device: everything sharded over all."""
    recipe = problem.job.recipe
    bytes_per_param = float(
        state_bytes_per_param(recipe, 3, n_devices, int(offload), stack=problem.stack)
    )
    return bytes_per_param - recipe.spared_weight_bytes / n_devices


def frozen_job_bytes(problem: Problem) -> float:
    """Return the least that frozen weights beside adapters take on all devices; 0 without any."""
    job = problem.job
    return frozen_model_bytes(problem.shape, job.seq_len, job.tuning) if job.tuning else 0.0


def all_states_bytes(problem: Problem, n_devices: int, offload: bool) -> float:
    """Return the least that all states take on a device, frozen weights among them, bytes."""
    params = trained_params(problem.shape, problem.job.seq_len, problem.job.tuning)
    trained = least_state_bytes(problem, n_devices, offload) * params
    return trained + frozen_job_bytes(problem) / n_devices


def optimizer_faults(problem: Problem, shardings: ShardingTable) -> dict[str, Bools]:
    """Return the shardings that the optimizer does not have, by rule; empty for Adam."""
    optimizer = problem.job.recipe.optimizer
    if optimizer.name == "adam":
        return {}
    faults = {"OPT002": shardings.optimizer_offload > 0}
    if optimizer.sharding == BY_MATRIX:
        is_other = (shardings.zero > 1) | ((shardings.zero == 1) & (shardings.copies > 1))
        return {"OPT001": is_other, **faults}
    return faults


def offers_offload(context: Context) -> bool:
    """Tell whether plans with the optimizer on the host are looked at: where they are asked for.

    Closed unless named, because what a host sustains is known less well than what a device does:
    half of the catalogue's hosts are those of a reference platform, and the cores decide.
    """
    return 1 in context.options.only.get("optimizer_offload", ())


def offers_activation_offload(context: Context) -> bool:
    """Tell whether plans with activations on the host are looked at: where they are named."""
    only = context.options.only
    named = only.get("activation_offload", frozenset()) & {1}
    return bool(named or only.get("activation_offload_layers", frozenset()) - {0})


def offloads_whole_layers(
    shape: ModelShape, kind: Ints, recomputed: Ints, offloaded: Ints
) -> Bools:
    """Tell whether the layers whose activations are on the host are some that can be.

    None; without recomputation the first of all, with `RESIDENT_LAYERS` left; with full
    recomputation the recomputed ones. `kind` is a position in `RECOMPUTES`.
    """
    none, full = (RECOMPUTES.index(name) for name in ("none", "full"))
    first = (kind == none) & (offloaded <= shape.layers - RESIDENT_LAYERS)
    return np.asarray((offloaded == 0) | first | ((kind == full) & (offloaded == recomputed)))


def usable_host_bytes(problem: Problem) -> float:
    """Return the host memory that one device's optimizer may fill; 0 without a known host."""
    host = problem.pool.host
    return HOST_USABLE_FRAC * host.memory_bytes if host else 0.0


def fits_host_with_activations(rows: Rows) -> Bools:
    """Tell which plans leave the host's memory enough, activations and optimizer together."""
    return np.asarray(needed_host_bytes(rows) <= usable_host_bytes(rows.problem))


def fits_host(problem: Problem, shapes: ShapeTable, shardings: ShardingTable) -> Bools:
    """Return which shardings of which shapes leave the host's memory enough, `(n_shardings, n)`.

    As if the rank that updates most parameters had a node to itself and its like.
    """
    return np.asarray(host_bytes(problem, shapes, shardings) <= usable_host_bytes(problem))


def _params(context: Context) -> float:
    job = context.problem.job
    return trained_params(context.problem.shape, job.seq_len, job.tuning)


def _states_fit(c: Context, s: ShapeTable) -> Bools:
    product = s.tp.astype(np.float64) * s.pp
    enough = np.asarray(product >= least_model_parallel(c))
    return np.asarray(enough | ((s.pp == 1) & fully_sharded_fits(c)))


SHAPE_RULES: tuple[tuple[str, ShapePredicate], ...] = (
    ("PIN001", _pins),
    ("TP001", _heads),
    ("TP002", _kv_heads),
    ("TP003", _ffn),
    ("TP005", _fits_domain),
    ("TP006", _mixer_heads),
    ("CP001", _chunks),
    ("CP002", _heads_of_context),
    ("CP003", _fused_attention),
    ("CP004", _partial_keys),
    ("CP005", _mixer_context),
    ("CP006", _whole_sequences),
    ("CP007", _whole_mixers),
    ("EP001", _experts),
    ("EP002", _expert_grid),
    ("EP003", _expert_ffn),
    ("VPP001", _interleaves),
    ("PP001", _enough_layers),
    ("PP002", _splits),
    ("PP003", _one_stage),
    ("PP004", _reads_earlier_stages),
    ("SCH002", _whole_backward),
    ("SCH003", _scheduled),
    ("ORD001", _makes_another_plan),
    ("ORD002", _same_pipelines),
    ("DP001", _batch),
    ("MEM000", _states_fit),
)
"""Rules over the coupled axes, in the order in which a rejection is attributed."""


ONE_CHUNK = ("1f1b", "gpipe", "zb-h1", "dualpipe")
TWO_CHUNKS = ("interleaved", "zb-v", "dualpipe-v")
"""Schedules of pipelines with one chunk a rank, and with two; with more only `interleaved`."""


def schedules_of(pp: int, vpp: int) -> tuple[str, ...]:
    """Return the schedules of a pipeline with pp ranks of vpp chunks.

    >>> schedules_of(1, 1), schedules_of(4, 3)
    (('none',), ('interleaved',))
    """
    if pp == 1:
        return ("none",)
    if vpp == 1:
        return ONE_CHUNK
    return TWO_CHUNKS if vpp == 2 else TWO_CHUNKS[:1]


def fills_dualpipe(schedule: Ints, pp: Ints, n_micro: Ints) -> Bools:
    """Tell whether the micro-batches are enough and even, where the schedule is a DualPipe."""
    both_ways = schedule == SCHEDULES.index("dualpipe")
    dual = both_ways | (schedule == SCHEDULES.index("dualpipe-v"))
    even = ~both_ways | ((pp % 2 == 0) & (n_micro % 2 == 0))
    return np.asarray(~dual | ((n_micro >= 2 * pp) & even))


MODULE_RULES = ("REC001", "REC002", "REC003")
INSIDE_MOE = modules_code(["moe_act", "shared_experts"])
CORE, MOE = modules_code(["core_attn"]), modules_code(["moe"])


def modules_in(shape: ModelShape) -> int:
    """Return the modules of a model that can be recomputed, as a set (`axes.modules_code`)."""
    return modules_code(name for kind, _ in present_kinds(shape) for name in kind.modules(shape))


@lru_cache(maxsize=256)
def module_sets(shape: ModelShape) -> tuple[int, ...]:
    """Return the sets of modules that selective recomputation of a model may name, ascending."""
    codes = range(1, 1 << len(RECOMPUTE_MODULES))
    return tuple(code for code in codes if not broken_module_rule(shape, code))


def broken_module_rule(shape: ModelShape, modules: int) -> str:
    """Return the code of the first rule that a set of recomputed modules breaks, or ""."""
    if modules & CORE and shape.flash_attention:
        return "REC001"
    if modules & ~modules_in(shape):
        return "REC002"
    return "REC003" if modules & MOE and modules & INSIDE_MOE else ""


def pieces_differ(problem: Problem, tp: Ints) -> Bools:
    """Tell by tp whether the stack cuts the traffic of a group into pieces with `tp_overlap`."""
    inside = problem.pool.scale_up_domain % tp == 0
    return np.asarray(inside & (tp > 1) & bool(problem.stack.tp_overlap_on))


def second_copy_faults(shapes: ShapeTable, shardings: ShardingTable) -> dict[str, Bools]:
    """Return by rule where plans with a second copy of the weights break it.

    Arrays `(n_shardings, n_shapes)`; a sharding without one breaks none.
    """
    has, group = shardings.hpz[:, None] > 1, shardings.hpz[:, None]
    partly = (shardings.zero != 3) | (shardings.copies > 1)
    mixed = (shapes.tp > 1) | (shapes.pp > 1) | (shapes.ep > 1) | (shapes.etp > 1)
    return {
        "HPZ001": has & np.broadcast_to(partly[:, None], (len(shardings), len(shapes))),
        "HPZ002": has & mixed[None],
        "HPZ003": has & (shapes.replicas[None] % group != 0),
    }


def splits_cleanly(shape: ModelShape) -> bool:
    """Tell whether the model is one of whose backward the weight gradients can run apart."""
    return not (shape.n_experts or shape.mtp_layers)


def layouts_fit_host(problem: Problem, layouts: Sequence[Layout]) -> list[bool]:
    """Tell of each layout, on equally many devices, whether the host's memory is enough."""
    if problem.pool.host is None:
        return [True] * len(layouts)
    table = PlanTable.from_layouts(layouts)
    shapes, shardings = table.shapes, table.shardings
    if not sends_activations(table):
        fits = fits_host(problem, shapes, shardings)[table.sharding, table.shape]
    else:
        rows = join(problem, shape_terms(problem, shapes, shardings), table)
        fits = fits_host_with_activations(rows)
    return [bool(x) for x in fits]


def first_broken_rule(context: Context, layout: Layout) -> str:
    """Return the code of the first rule that one layout breaks, or "" when it is legal.

    Memory is not looked at: a plan that does not fit can still be priced.
    """
    return next(rules_that_break(context, layout), "")


def rules_that_break(context: Context, layout: Layout) -> Iterator[str]:
    """Yield the codes of all rules that one layout breaks, memory aside."""
    yield from (code for code, broken in _faults_before_host(context, [layout]) if broken[0])
    # Prices the plan where activations leave: most callers have a code by now and ask for no more.
    if not _layouts_fit_host(context.problem, [layout])[0]:
        yield HOST_RULE
    yield from (code for code, broken in _faults_of_modes(context, [layout]) if broken[0])


HOST_RULE = "OFF002"
"""The rule on the host's memory."""


def first_broken_rules(
    context: Context, layouts: Iterable[Layout], but: frozenset[str] = frozenset()
) -> dict[Layout, str]:
    """Return `first_broken_rule` of layouts on equally many devices, the same codes sooner.

    The codes in `but` do not count.
    """
    codes = dict.fromkeys(layouts, "")

    def add(faults: Iterable[tuple[str, Bools]], of: Sequence[Layout]) -> list[Layout]:
        for code, broken in faults:
            for i in np.flatnonzero(broken).tolist() if code not in but else ():
                codes[of[i]] = codes[of[i]] or code
        return [layout for layout in of if not codes[layout]]

    rest = list(codes)
    if rest:
        rest = add(_faults_before_host(context, rest), rest)
    if rest and HOST_RULE not in but:
        rest = add([(HOST_RULE, ~_layouts_fit_host(context.problem, rest))], rest)
    if rest:
        add(_faults_of_modes(context, rest), rest)
    return codes


def _layouts_fit_host(problem: Problem, layouts: Sequence[Layout]) -> Bools:
    """Tell of each layout whether the host's memory is enough."""
    if problem.pool.host is None:
        return np.ones(len(layouts), dtype=bool)
    table = PlanTable.from_layouts(layouts)
    shapes, shardings = table.shapes, table.shardings
    if not sends_activations(table):
        return fits_host(problem, shapes, shardings)[table.sharding, table.shape]
    return fits_host_with_activations(
        join(problem, shape_terms(problem, shapes, shardings), table)
    )


def _faults_of_modes(context: Context, layouts: Sequence[Layout]) -> Iterable[tuple[str, Bools]]:
    """Return which layouts break each rule on how layers run."""
    if not any(layout.switches for layout in layouts):
        return ()
    return plans_that_break(context.problem, PlanTable.from_layouts(layouts))


def _faults_before_host(
    context: Context, layouts: Sequence[Layout]
) -> Iterator[tuple[str, Bools]]:
    """Yield which layouts break each rule that precedes the one on the host's memory."""
    table, problem, job = PlanTable.from_layouts(layouts), context.problem, context.problem.job
    shapes, shardings, n_micro = table.shapes, table.shardings, table.n_micro
    for code, predicate in SHAPE_RULES:
        if code not in ("PIN001", "MEM000", "SCH003"):
            yield code, ~predicate(context, shapes)

    def each(breaks: Callable[[Layout], bool]) -> Bools:
        return np.array([breaks(x) for x in layouts])

    yield "SCH001", each(lambda x: x.schedule not in schedules_of(x.pp, x.vpp))
    yield "BAT001", (n_micro * table.mbs * shapes.dp != job.global_batch) | (n_micro < 1)
    yield "BAT002", each(lambda x: x.schedule == "interleaved" and x.n_micro % x.pp > 0)
    yield "BAT003", ~fills_dualpipe(table.schedule, shapes.pp, n_micro)
    yield "SP001", each(lambda x: x.sp and (x.tp == 1 or job.seq_len % (x.tp * x.cp) > 0))
    one_rank = shapes.dp * shapes.cp == 1
    if context.options.framework != "any":
        yield "ZER001", (table.zero >= 2) & (shapes.pp > 1)
    yield "ZER002", (table.zero >= 1) & one_rank
    for code, fault in second_copy_faults(shapes, shardings).items():
        yield code, fault[table.sharding, table.shape]
    yield "OVL001", each(lambda x: not x.dp_overlap) & one_rank
    overlaps, sp = each(lambda x: x.tp_overlap), each(lambda x: x.sp)
    yield "OVL002", overlaps & ~(sp & pieces_differ(problem, shapes.tp))
    sets = [broken_module_rule(problem.shape, modules_code(x.recompute_modules)) for x in layouts]
    for code in MODULE_RULES:
        yield code, np.array([broken == code for broken in sets])
    for code, fault in optimizer_faults(problem, shardings).items():
        yield code, fault[table.sharding]
    if problem.pool.host is None:
        yield "OFF001", each(lambda x: x.optimizer_offload or x.activation_offload)
    if not gradients_leave(problem.stack):
        yield "OFF003", each(lambda x: x.optimizer_offload and x.zero >= 2)
    yield "OFF004", each(lambda x: x.activation_offload and x.pp > 1)
    places = (table.recompute, table.recompute_layers, table.activation_offload_layers)
    yield "OFF005", ~offloads_whole_layers(problem.shape, *places)
