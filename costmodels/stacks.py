"""What each software stack does differently: one table, two class defaults.

Most of the error between measured runs is the software, not the accelerator. A profile is a
set of named facts (which kernels are fused, what overlaps what, what stays in memory) and a few
numbers with a physical meaning. Nothing here depends on a model, a run or a paper.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class StackProfile:
    """Switches and numbers of one training stack."""

    name: str
    kind: str
    """`fused` (Megatron-Core class) or `eager` (PyTorch without a compiler)."""
    attention_kernels: tuple[str, ...]
    """Fused attention kernels in order of preference: keys of `Efficiency.attention_frac`; the
    first that the accelerator has is used."""
    elementwise_factor: float
    """Traffic of memory-bound operators over that of perfectly fused ones (>= 1)."""
    tp_overlap: str
    """`none`; `bulk`: backward collectives run beside the weight and data gradient GEMMs;
    `userbuffers`: also the forward ones, in pieces beside their own GEMM; `pieces`: every second
    collective in pieces beside its own GEMM (PyTorch's async TP)."""
    tp_overlap_on: str
    """The same with `Layout.tp_overlap`; empty where the software has no such switch."""
    tp_overlap_compiled: str
    """The same under torch.compile (`compiled`), where the switch is a pass of the compiler."""
    sp_regather: bool
    """Keeps only the shard of a column-parallel input and gathers it again in backward."""
    p2p_scatter: bool
    """Pipeline messages are cut over the tp group and gathered on arrival, also without SP."""
    dp_overlap: str
    """What of the once-per-step traffic of unsharded replicas (ZeRO 0) runs beside compute:
    `none`, `reduce` (gradients beside the last backward) or `both`."""
    zero1_overlap: str
    """The same with a sharded optimizer (ZeRO 1): `reduce` and the weight gather beside the first
    forward are `both`."""
    zero3_traffic: str
    """Per-micro-batch traffic of ZeRO 2 and 3: `prefetched` by layer beside compute, or
    `by-tensor`, one blocking call per tensor (DeepSpeed of 2021), see `tensor_wire_frac`."""
    sharded_units: str
    """How PyTorch's FSDP2 cuts data-parallel traffic, one call for each unit: embedding, every
    layer with its experts, final norm with head (`costmodels.comm.fsdp`). `regathered`: ZeRO 3
    gathers every unit again for the backward; `tail-stays`: all but the last; empty: not FSDP2."""
    reduce_width: str
    """Width in which gradients are reduced: that of the `recipe`, that of the `weights` on the
    wire, or `fp32` whatever they are kept in."""
    grad_copies: str
    """Where a recipe copies gradients for the update (fp16): the copy is `sharded` with the
    optimizer, `whole`, or the only gradient that is kept (`alone`)."""
    memory_plan: str
    """Memory of a step: `summed`, as an allocator serves what is alive together, or `phases`, a
    compiler that lays out the whole step beforehand (`costmodels.phases`)."""
    keeps: str
    """What layers that are not recomputed keep: `operands` of every operator, or outputs of
    `products` alone: norms and activations run again (a policy of `jax.checkpoint`)."""
    flat_optimizer: bool
    """The optimizer works on flat tensors of all parameters, copied to and from at every step
    (DeepSpeed's ZeRO 1 and 2), see `costmodels.memory.flat_copy_bytes`."""
    replicated_grads: str
    """Gradients of what tensor parallelism replicates, with sequence parallelism: `together` (one
    sum a step, part of its fixed time) or `each` (an all-reduce in fp32 of every tensor and
    micro-batch)."""
    cp_gathers: str
    """Keys and values that context parallelism gathers: `again` for the backward, or `kept`."""
    quantized_copies: bool
    """Linear layers of fp8 and fp4 recipes keep quantised inputs for their backward, and weights
    quantised once a step (Transformer Engine); otherwise they quantise what bf16 code keeps anew
    (torchao)."""
    etp_gathers: str
    """What ranks that cut every expert gather: `rows`, the copies for experts, or `tokens` before
    routing, with the collectives of a dense MLP."""
    routed_scores: str
    """Probabilities of experts are applied `before` the second product, or `after` it to outputs
    in fp32, which are kept."""
    offload_overlap: str
    """With the optimizer on the host: `pipelined` (gradients down, Adam and weights up side by
    side, piece by piece, after the backward) or `gradients` (they leave as they are reduced,
    beside the backward, and stay on the host; then Adam, then all weights up)."""
    activation_copies: str
    """With stored activations on the host: `windowed` (both ways beside compute), `on-demand`
    (down beside the forward, up when the backward asks) or `blocking` (in line with compute), see
    `costmodels.offload.activations.waits`."""
    pads_vocab: bool
    """Rows of the vocabulary are padded to a multiple that the model names (Megatron's 128 tp);
    otherwise only to what tp divides."""
    zero1_reduce: str
    """With a sharded optimizer gradients are summed by `reduce-scatter`, or whole by
    `all-reduce`."""
    zero1_gather: str
    """`all-gather`, or `broadcast`: every rank in turn broadcasts its shard of the weights."""
    balancer: str
    """How layers go to stages that no plan spells out: `even` (the ends one layer fewer where
    they do not divide), `params` or `flops`, see `costmodels.schedule.stages.balanced_layers`."""
    fused_activation: bool
    """Activation, gate and rotary embedding are one kernel each, which keeps only its inputs."""
    keeps_kv_product: bool
    """Values of latent attention are a view of the product that makes keys and values, all of
    which is kept: the keys in it, which are put together anew, stay too."""
    fused_norms: bool
    """Normalisation is one kernel; otherwise a chain of fp32 operators."""
    norm_keeps: str
    """What such a chain keeps beside its result: `product` or `input`, see
    `costmodels.memory.EAGER_NORM_BYTES`."""
    fused_softmax: bool
    """Without a flash kernel, scale, mask and softmax of the scores are one kernel."""
    logits_sharded: bool
    """The loss runs on vocabulary-parallel logits; otherwise they are gathered over tp first."""
    tp_hop_s: float
    """What a tensor-parallel all-gather or reduce-scatter takes beyond its wire time for each
    further rank of the group, seconds: ranks arrive apart, and all wait for the last."""
    blocking_p2p: bool
    """Pipeline messages block their stream: tensor-parallel collectives of a rank whose messages
    wait for another node stall with them, see `stalled_hop_s`, and the messages themselves where
    such groups span several nodes, see `stalled_message_s`."""
    dispatcher: str
    """How its runs bring tokens to experts where nothing else is said, one of `DISPATCHERS`."""
    bucket_params: float
    """Parameters per piece of data-parallel traffic, at least; the last piece is never hidden."""
    bucket_params_per_rank: float
    """The same per data-parallel rank: Megatron takes the larger of 40e6 and 1e6 dp."""
    overlap_slowdown: float
    """Share by which compute slows while a collective runs beside it (0-1)."""
    host_s_per_layer: float
    """Least time of one layer forward and backward that the host needs to launch it, seconds."""
    routes_on_host: bool
    """The host launches the kernels of routed experts one by one, and waits for how many rows each
    of them gets; otherwise a compiled program does."""
    launches_collectives: bool
    """Launching tensor-parallel collectives takes a good part of the host's time for a layer:
    without them a layer takes `host_share_without_tp` of it."""
    launches_ahead: bool
    """The host is so far ahead that only the sum of a layer's launches counts against the sum of
    its kernels; otherwise it waits at some of them, see `costmodels.layers.layer_kind.paced_s`."""
    fixed_step_s: float
    """Per-step time outside the model: data, logging, scalar reductions, seconds."""
    node_spread: float
    """Standard deviation of the speed of healthy nodes over its mean: the slowest decides."""
    fused_loss: bool
    """Softmax and gradient of the logits are one kernel each way, not a chain of operators."""
    logit_bytes: float
    """Bytes per logit held at the peak of the loss: 6 in a fused one (16 bits and fp32, gradient
    in place), 12 in Megatron-LM of 2021 (also exponentials and a 16-bit gradient), 14 in eager
    code (16 bits, fp32 copy, log-softmax, fp32 gradient)."""
    compiles_loss: bool
    """Under torch.compile the loss is compiled too: of the logits it keeps their 16 bits and their
    gradient's (`COMPILED_LOGIT_BYTES`)."""
    queued_tensors: float
    """Full-width 16-bit tensors of tensor-parallel collectives that still wait to be freed at the
    peak, where the host is far ahead of the device (`costmodels.memory.queue_is_full`)."""
    fused_wgrad: bool
    """Weight gradients are accumulated into main gradients inside the GEMM, which keeps one
    scratch tensor per distinct weight shape."""
    context_bytes: float
    """CUDA context, loaded kernels, library workspaces on every device, or what a runtime of
    compiled steps keeps for itself (`RESERVED_BYTES`)."""
    communicator_bytes: float
    """Buffers of one more communicator that leaves the node."""
    fragmentation_frac: float
    """Activation memory lost to the allocator, share of activations."""
    stalled_hop_s: float
    """Least time of a ring step of a tensor-parallel collective beside blocked pipeline messages,
    seconds. Fit over nanotron's published sweep: layers of 8, 12, 16 to 24 and 38 to 48 ms at
    tp 2, 4, 8 and 16 (`costmodels.step.stalled`)."""
    stalled_message_s: float
    """What a blocked pipeline message takes longer between stages whose tensor-parallel groups
    span more than two domains, seconds. Fit over nanotron's published sweep at tp 32 on nodes of
    eight (0.4 to 0.8 s); its slow runs at smaller tp lose about as much."""
    tensor_wire_frac: float
    """Share of a node's wire that one blocking collective per tensor reaches (0-1), see
    `costmodels.comm.data_parallel.by_tensor_frac`. Fit over runs of DeepSpeed's ZeRO-3 of 2021 on
    V100 with Omni-Path and A100 with InfiniBand."""
    compiled_share: float
    """Memory traffic of compiled operators over that of eager ones; at best that of fused ones.
    Fit over published runs, most of them torchtitan's."""
    unfused_norm_factor: float
    """Traffic of an RMSNorm written as fp32 operators over that of one kernel, both directions.
    Counted forward per element: cast 2 + 4, square 4 + 4, mean 4, scale 4 + 4, cast 4 + 2, weight
    2 + 2 = 36 bytes against 4; much of it comes from the cache of the operator before, and pairs
    of measured runs with and without the fused kernel leave 4 to 5."""
    routing_host_s: float
    """Launch time of what routed experts add to a layer, both directions, seconds: router, order,
    dispatch, experts, combine. Runs of mixtures of experts on H100, B200 and MI355X at one or two
    sequences a micro-batch take 8 to 14 ms a layer whatever the device."""
    synced_host_share: float
    """Share of the launch time of a layer with routed experts that a device waits for although it
    takes longer itself (0-1): it has to tell the host how many rows every expert gets, and runs
    dry until what follows is launched. Such runs take 3 ms a layer beyond what grows with their
    tokens, of 9 to 14 ms of launches; one captured whole takes nothing."""
    graph_launch_s: float
    """Launch of one captured graph from PyTorch, seconds. Assumed: two or three ordinary ones."""
    host_share_without_tp: float
    """Launch time of a layer without tensor-parallel collectives over that with them where
    launching them counts. Fit over nanotron's host-bound runs; it launches eight to ten
    collectives a layer."""


GIB = 2.0**30
NUMBERS = {
    "elementwise_factor": (1.0, 5.0),
    "host_s_per_layer": (0.0, 10e-3),
    "fixed_step_s": (0.0, 0.1),
    "tp_hop_s": (0.0, 50e-6),
    "logit_bytes": (2.0, 18.0),
    "queued_tensors": (0.0, 100.0),
}
"""The numbers in which profiles may differ, with the range that makes sense. All else is a switch,
or one of `SHARED`."""
SHARED = {
    "bucket_params": (1e6, 1e9),
    "overlap_slowdown": (0.0, 0.5),
    "node_spread": (0.0, 0.06),
    "context_bytes": (0.0, 4 * GIB),
    "communicator_bytes": (0.0, 2 * GIB),
    "fragmentation_frac": (0.0, 0.3),
    "stalled_hop_s": (0.0, 2e-3),
    "stalled_message_s": (0.0, 2.0),
    "tensor_wire_frac": (0.02, 1.0),
    "compiled_share": (0.2, 1.0),
    "unfused_norm_factor": (1.0, 9.0),
    "routing_host_s": (0.0, 20e-3),
    "synced_host_share": (0.0, 1.0),
    "graph_launch_s": (0.0, 100e-6),
    "host_share_without_tp": (0.3, 1.0),
}
"""Numbers that are the same for every stack, with the range that makes sense; but for
`OF_DRIVERS` where a compiler plans the memory of a step."""
OF_DRIVERS = ("context_bytes", "communicator_bytes")
"""Those that a planned step does without: there is no context of a driver, and buffers of
collectives are tensors of the program."""


SOFTMAX_BATCH = 4
"""Score matrices that one block of Megatron's fused softmax works on, from 129 keys on."""


def fuses_softmax(stack: StackProfile, matrices: ArrayLike) -> NDArray[np.bool_]:
    """Tell where stored scores pass one fused kernel, by the score matrices of a micro-batch.

    `matrices` = heads of a rank times sequences. The kernel takes them in fours; any other number
    goes through eager operators, whatever the run asked for.
    Source: Megatron-LM megatron/model/fused_softmax.py (is_kernel_available). Left out: its limit
    on the keys (2048 in 2021, 4096 in 2022, 16384 later), and that they are 16-bit.

    >>> fuses_softmax(STACKS["megatron-deepspeed"], [14, 28, 2]).tolist()
    [False, True, False]
    """
    return np.asarray(stack.fused_softmax & (np.asarray(matrices) % SOFTMAX_BATCH == 0))


def compiled(stack: StackProfile) -> StackProfile:
    """Return the profile under torch.compile: fewer memory passes, norms in one kernel.

    With it come the passes of the compiler: PyTorch's asynchronous tensor parallelism. A loss that
    is compiled too (`compiles_loss`) keeps no fp32 logits; what it saves in time is left out.
    """
    logit_bytes = min(COMPILED_LOGIT_BYTES, stack.logit_bytes)
    return replace(
        stack,
        elementwise_factor=max(1.0, stack.compiled_share * stack.elementwise_factor),
        fused_norms=True,
        fused_activation=True,
        logit_bytes=logit_bytes if stack.compiles_loss else stack.logit_bytes,
        tp_overlap_on=stack.tp_overlap_on or stack.tp_overlap_compiled,
    )


FUSED = StackProfile(
    name="fused",
    kind="fused",
    attention_kernels=("cudnn", "flash3", "flash2"),
    elementwise_factor=3.2,
    tp_overlap="bulk",
    tp_overlap_on="userbuffers",
    tp_overlap_compiled="",
    sp_regather=True,
    p2p_scatter=False,
    dp_overlap="both",
    zero1_overlap="both",
    zero3_traffic="prefetched",
    sharded_units="",
    grad_copies="sharded",
    memory_plan="summed",
    keeps="operands",
    flat_optimizer=False,
    pads_vocab=True,
    reduce_width="recipe",
    replicated_grads="together",
    cp_gathers="again",
    quantized_copies=True,
    etp_gathers="rows",
    routed_scores="before",
    offload_overlap="pipelined",
    activation_copies="windowed",
    zero1_reduce="reduce-scatter",
    zero1_gather="all-gather",
    balancer="even",
    fused_activation=True,
    keeps_kv_product=False,
    fused_norms=True,
    norm_keeps="product",
    fused_softmax=True,
    logits_sharded=True,
    tp_hop_s=12e-6,
    blocking_p2p=False,
    dispatcher="alltoall",
    bucket_params=40e6,
    bucket_params_per_rank=1e6,
    overlap_slowdown=0.15,
    host_s_per_layer=4.0e-3,
    routes_on_host=True,
    launches_collectives=True,
    launches_ahead=True,
    fixed_step_s=15e-3,
    node_spread=0.02,
    fused_loss=True,
    logit_bytes=6.0,
    compiles_loss=False,
    queued_tensors=0.0,
    fused_wgrad=True,
    context_bytes=1.5 * GIB,
    communicator_bytes=0.4 * GIB,
    fragmentation_frac=0.05,
    stalled_hop_s=0.25e-3,
    stalled_message_s=0.65,
    tensor_wire_frac=0.14,
    compiled_share=0.6,
    unfused_norm_factor=5.0,
    routing_host_s=5.2e-3,
    synced_host_share=0.25,
    graph_launch_s=10e-6,
    host_share_without_tp=0.6,
)
"""Class default for stacks with fused kernels (Megatron-Core, Transformer Engine, OneFlow)."""

EAGER = replace(
    FUSED,
    name="eager",
    kind="eager",
    grad_copies="whole",
    quantized_copies=False,
    attention_kernels=("flash2",),
    elementwise_factor=3.5,
    tp_overlap="none",
    tp_overlap_on="",
    sp_regather=False,
    dp_overlap="reduce",
    zero1_overlap="none",
    offload_overlap="gradients",
    activation_copies="on-demand",
    bucket_params_per_rank=0.0,
    host_s_per_layer=3.0e-3,
    tp_hop_s=10e-6,
    fused_loss=False,
    logit_bytes=14.0,
    fused_wgrad=False,
    fused_activation=False,
)
"""Class default for eager PyTorch stacks (FSDP, DeepSpeed, in-house code)."""

# Megatron-LM of 2021 and 2022: fused scale-mask-softmax and bias-GeLU, fp32 logits, no distributed
# optimizer, nothing overlapped.
_MEGATRON_2021 = replace(
    FUSED,
    name="megatron-lm-2021",
    attention_kernels=("flash2",),
    elementwise_factor=2.6,
    tp_overlap="none",
    tp_overlap_on="",
    p2p_scatter=True,
    dp_overlap="none",
    zero1_overlap="none",
    tp_hop_s=0.0,
    host_s_per_layer=1.0e-3,  # thin Python over fused kernels, before Transformer Engine's modules
    fused_loss=False,
    logit_bytes=12.0,
)
# Megatron-DeepSpeed: the kernels of Megatron-LM 2021 launched by DeepSpeed's engine.
_MEGATRON_DEEPSPEED = replace(
    _MEGATRON_2021,
    name="megatron-deepspeed",
    kind="eager",
    grad_copies="sharded",  # stage_1_and_2.py casts the gradients of its partition alone
    flat_optimizer=True,
    elementwise_factor=1.3,
    offload_overlap="gradients",
    activation_copies="blocking",  # DeepSpeed of 2021 copies in line
    host_s_per_layer=3.3e-3,
    launches_collectives=False,
    launches_ahead=False,
    tp_hop_s=20e-6,
    fused_wgrad=False,
)

COMPILED_LOGIT_BYTES = 4.0
"""Bytes per logit of a compiled loss: 16 bits and their gradient, fp32 stays in registers."""

# XLA decides what it keeps of a quantised product: counted as kept in bf16. A step is one program.
_XLA = replace(
    FUSED,
    name="xla",
    tp_overlap_on="",
    quantized_copies=False,
    host_s_per_layer=1.0e-3,
    routes_on_host=False,
)

RESERVED_BYTES = 1.25 * GIB
"""What libtpu keeps of a device, the most that its messages name: 0.52 GiB of TPU v3, 1.25 of v4,
0.75 of v6e ("Used ... of 31.25G hbm", "reserved 1.25G"). A program of MaxText takes 0.06 more."""

STACKS: dict[str, StackProfile] = {
    profile.name: profile
    for profile in (
        FUSED,
        EAGER,
        replace(FUSED, name="megatron-core"),
        replace(FUSED, name="megatron-core-deepep", dispatcher="deepep"),
        # Megatron-Core 0.12 without Transformer Engine, on torch_npu: the loss is a chain of
        # operators (torch.compile is switched off), and nothing cuts products into pieces.
        replace(FUSED, name="mindspeed", tp_overlap_on="", fused_loss=False, logit_bytes=12.0),
        replace(
            EAGER,
            name="deepspeed",
            pads_vocab=False,
            grad_copies="sharded",
            flat_optimizer=True,
        ),
        _MEGATRON_2021,
        replace(_MEGATRON_2021, name="megatron-lm-2022", elementwise_factor=1.0, logit_bytes=6.0),
        replace(
            _MEGATRON_2021,
            name="oneflow",
            elementwise_factor=1.0,
            p2p_scatter=False,
            logit_bytes=6.0,
        ),
        _MEGATRON_DEEPSPEED,
        replace(
            _MEGATRON_DEEPSPEED,
            name="deepspeed-zero3",
            zero3_traffic="by-tensor",
            fused_softmax=False,  # Megatron-LM v1.1.5 fuses it on request only
        ),
        replace(
            EAGER,
            name="hf-deepspeed",
            zero3_traffic="by-tensor",
            pads_vocab=False,
            grad_copies="sharded",
            flat_optimizer=True,
        ),
        # Aleph Alpha's Scaling sums bf16 gradients as fp32, whole, before its sharded update:
        # core/optimizer/optimizer.py (allreduce_gradients), allreduce.py.
        replace(
            EAGER,
            name="aleph-alpha",
            reduce_width="fp32",
            zero1_reduce="all-reduce",
            elementwise_factor=3.9,
            tp_hop_s=22e-6,
            balancer="params",
            logits_sharded=False,
        ),
        replace(
            EAGER,
            name="nanotron",
            elementwise_factor=4.2,
            balancer="flops",
            host_s_per_layer=4.2e-3,
            fixed_step_s=45e-3,
            tp_hop_s=2e-6,
            blocking_p2p=True,
            sp_regather=True,
            # Its sharded cross-entropy turns fp32 logits into their gradient in place.
            logit_bytes=9.0,
            queued_tensors=42.0,
        ),
        replace(
            EAGER,
            name="internevo",
            elementwise_factor=4.6,
            tp_hop_s=2e-6,
            zero1_overlap="reduce",
            zero1_gather="broadcast",
        ),
        # torchtitan 0.3.0: distributed/fsdp.py, distributed/context_parallel (flex attention),
        # models/common/{moe_sharding,token_dispatcher}.py; replayed, see docs/replay_torch.md.
        replace(
            EAGER,
            name="torchtitan",
            pads_vocab=False,
            tp_overlap_compiled="pieces",  # configs.py, CompileConfig: not without the compiler
            compiles_loss=True,  # components/loss.py, since bbb1b616 of April 2025
            sharded_units="regathered",
            grad_copies="alone",
            replicated_grads="each",
            cp_gathers="kept",
            etp_gathers="tokens",
            routed_scores="after",
            keeps_kv_product=True,  # models/deepseek_v3/model.py, Attention.forward
        ),
        # Hugging Face model code: norms are chains of fp32 operators, its plan for tensor
        # parallelism gathers the logits. Accelerate reduces gradients in the weights' type and
        # leaves norm and head gathered until their backward (fsdp_utils.py, fsdp2_prepare_model).
        replace(
            EAGER,
            name="hf-fsdp2",
            pads_vocab=False,
            logits_sharded=False,
            activation_copies="blocking",
            fused_norms=False,
            norm_keeps="input",
            sharded_units="tail-stays",
            grad_copies="alone",
            reduce_width="weights",
        ),
        # NeMo AutoModel: FSDP2 around Hugging Face's models with Transformer Engine's linear
        # layers, norms and attention, and DeepEP.
        replace(
            EAGER,
            name="nemo-automodel",
            pads_vocab=False,
            attention_kernels=("cudnn", "flash3", "flash2"),
            dispatcher="deepep",
            fused_activation=True,
            sharded_units="regathered",
            grad_copies="alone",
            reduce_width="weights",
        ),
        # The loss of flash-attn: one kernel that turns the logits into their gradient in place.
        replace(EAGER, name="llm-foundry", fused_loss=True, logit_bytes=6.0),
        replace(EAGER, name="meta"),
        # Weights are cast before they are gathered, gradients summed before they are cast back,
        # and gathered keys and values kept for the backward: the step that XLA compiles of
        # MaxText 0.2.5 (scripts/check_maxtext --train). Logits in 16 bits, which turn into their
        # gradient in place, and what else a step holds: scripts/maxtext_memory.
        replace(
            _XLA,
            name="maxtext",
            reduce_width="weights",
            cp_gathers="kept",
            logit_bytes=2.0,
            memory_plan="phases",
            context_bytes=RESERVED_BYTES,
            communicator_bytes=0.0,  # what collectives need is among the tensors of the program
            keeps="products",
        ),
        replace(_XLA, name="paxml"),
    )
}
"""Profiles by name. Sources: the sections named in docs/stacks.md."""
