"""What each software stack does differently: one table, two class defaults.

Most of the error between measured runs is the software, not the accelerator. A profile is a
set of named facts (which kernels are fused, what overlaps what, what stays in memory) and a few
numbers with a physical meaning. Nothing here depends on a model, a run or a paper.
"""

from dataclasses import dataclass, replace


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
    `userbuffers`: also the forward ones, in pieces beside their own GEMM."""
    sp_regather: bool
    """Keeps only the shard of a column-parallel input and gathers it again in backward."""
    p2p_scatter: bool
    """Pipeline messages are cut over the tp group and gathered on arrival, also without SP."""
    dp_overlap: bool
    """Gradient reduction runs beside the last backward, the weight gather beside the forward."""
    bucket_params: float
    """Parameters per piece of data-parallel traffic, at least; the last piece is never hidden."""
    bucket_params_per_rank: float
    """The same per data-parallel rank: Megatron takes the larger of 40e6 and 1e6 dp."""
    overlap_slowdown: float
    """Share by which compute slows while a collective runs beside it (0-1)."""
    host_s_per_layer: float
    """Least time of one layer forward and backward that the host needs to launch it, seconds."""
    fixed_step_s: float
    """Per-step time outside the model: data, logging, scalar reductions, seconds."""
    node_spread: float
    """Standard deviation of the speed of healthy nodes over its mean: the slowest decides."""
    logit_bytes: float
    """Bytes per logit kept between head and loss."""
    fused_wgrad: bool
    """Weight gradients are accumulated into main gradients inside the GEMM, which keeps one
    scratch tensor per distinct weight shape."""
    context_bytes: float
    """CUDA context, loaded kernels, library workspaces on every device."""
    communicator_bytes: float
    """Buffers of one more communicator that leaves the node."""
    fragmentation_frac: float
    """Activation memory lost to the allocator, share of activations."""


GIB = 2.0**30

FUSED = StackProfile(
    name="fused",
    kind="fused",
    attention_kernels=("cudnn", "flash3", "flash2"),
    elementwise_factor=1.3,
    tp_overlap="bulk",
    sp_regather=True,
    p2p_scatter=False,
    dp_overlap=True,
    bucket_params=40e6,
    bucket_params_per_rank=1e6,
    overlap_slowdown=0.15,
    host_s_per_layer=1.0e-3,
    fixed_step_s=15e-3,
    node_spread=0.02,
    logit_bytes=2.0,
    fused_wgrad=True,
    context_bytes=1.5 * GIB,
    communicator_bytes=0.4 * GIB,
    fragmentation_frac=0.05,
)
"""Class default for stacks with fused kernels (Megatron-Core, Transformer Engine, OneFlow)."""

EAGER = replace(
    FUSED,
    name="eager",
    kind="eager",
    attention_kernels=("flash2",),
    elementwise_factor=2.6,
    tp_overlap="none",
    sp_regather=False,
    bucket_params_per_rank=0.0,
    host_s_per_layer=2.0e-3,
    logit_bytes=14.0,
    fused_wgrad=False,
)
"""Class default for eager PyTorch stacks (FSDP, DeepSpeed, in-house code)."""

STACKS: dict[str, StackProfile] = {
    profile.name: profile
    for profile in (
        FUSED,
        EAGER,
        # 2.6: fitted over published Megatron-Core runs on H100 beside a GEMM share of 0.77; it
        # stands for launch gaps and unfused casts too. The class default of 1.3 is near ideal.
        replace(FUSED, name="megatron-core", elementwise_factor=2.6),
        replace(EAGER, name="deepspeed"),
        # Megatron-LM of 2022 (Korthikanti et al.): fused scale-mask-softmax and bias-GeLU, fp32
        # logits, no distributed optimizer; the calculon description of its runs has no overlap.
        replace(
            FUSED,
            name="megatron-lm-2022",
            attention_kernels=("flash2",),
            tp_overlap="none",
            p2p_scatter=True,
            dp_overlap=False,
            logit_bytes=6.0,
            elementwise_factor=1.0,
        ),
    )
}
"""Profiles by name. Sources: the sections named in docs/stacks.md."""
