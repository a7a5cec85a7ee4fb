"""What a kernel does, told from its name.

Names are those of cuBLAS (`nvjet_`, `sm90_xmma_gemm_`, `ampere_bf16_s16816gemm_`), CUTLASS,
hipBLASLt (`Cijk_`), Transformer Engine, FlashAttention, cuDNN, ATen, TorchInductor (`triton_poi_`
pointwise, `triton_red_` and `triton_per_` reductions, `triton_for_` lists of tensors,
`triton_tem_` templates), Apex and NCCL.
Names of NCCL before 2.14 may be those of another collective (NVIDIA/nccl issues 714 and 739):
where a row says what it runs, that counts.
"""

import re
from functools import lru_cache

GEMM, ATTENTION, ELEMENTWISE, HEAD, OPTIMIZER = (
    "gemm",
    "attention",
    "elementwise",
    "head",
    "optimizer",
)
EXPERTS, ROUTING, COPIES, UNKNOWN = "experts", "routing", "copies", "unknown"
COMMUNICATION = "communication"

_KINDS: tuple[tuple[str, str], ...] = (
    (
        COMMUNICATION,
        r"^(void )?(nccl|rccl|msccl|oneccl)|nccl(dev)?kernel|nvshmem|deep_ep|userbuffers"
        r"|cross_device_reduce|multimem_|(one|two)_shot_all_?reduce",
    ),
    (
        OPTIMIZER,
        r"multi_?tensor_?(apply|adam|l2norm|scale|unscale)|adam|lamb(?!da)|adagrad|muon|sgd"
        r"|amp_(foreach|update)|foreach.*(norm|clip)|^triton_for_",
    ),
    (HEAD, r"cross_?entropy|nll_?loss|log_?softmax|cunn_softmax|vocab_parallel"),
    (ELEMENTWISE, r"^triton_(poi|red|per)_"),
    (
        ATTENTION,
        r"flash|fmha|attention|attn|sdpa|scaled_dot|scaled_(masked|upper_triang|aligned)\w*softmax"
        r"|\bmha_|thd_(out_correction|lse|second_half)",
    ),
    (HEAD, r"softmax_warp"),
    (EXPERTS, r"group(ed)?_?(gemm|mm)|moe.*gemm"),
    (
        ROUTING,
        r"moe|_?(un)?permute_(kernel|with|bwd)|topk|router|sort_chunks|radix_?sort|histogram"
        r"|token_(un)?permut",
    ),
    (
        GEMM,
        r"gemm|gemv|nvjet|cutlass|cublas|xmma|wgmma|hgmma|matmul|splitk|^cijk_|tensorop|s16816"
        r"|s1688|^(ampere|volta|turing)_|triton_(tem_\w*)?mm|dot_kernel",
    ),
    (
        ELEMENTWISE,
        r"elementwise|vectorized|reduce|norm|activation|gelu|silu|swiglu|glu|dropout|rope|rotary"
        r"|cast|convert|transpose|permute|copy|fill|index|gather|scatter|embedding|catarray|ln_"
        r"|softmax|philox|distribution|masked|sort|scan|cub::|arange|nonzero|bias|quant|amax|add"
        r"|triu|tril|unrolled|compare|where|triton_|memset|memcpy|sum",
    ),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)


@lru_cache(maxsize=65536)
def kind_of_kernel(name: str) -> str:
    """Return the kind of a kernel, `UNKNOWN` for a name that no pattern knows.

    >>> kind_of_kernel("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT")
    'gemm'
    >>> kind_of_kernel("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>")
    'attention'
    """
    lowered = name.lower()
    return next((kind for kind, pattern in _PATTERNS if pattern.search(lowered)), UNKNOWN)


def kind_of_copy(name: str) -> str:
    """Return `COPIES` for a copy from or to the host, `ELEMENTWISE` for one on the device."""
    lowered = name.lower()
    return COPIES if "htod" in lowered or "dtoh" in lowered else ELEMENTWISE


_COLLECTIVES = (
    ("all-reduce", r"all_?reduce|barrier"),
    ("all-gather", r"all_?gather"),
    ("reduce-scatter", r"reduce_?scatter"),
    ("all-to-all", r"all_?to_?all|dispatch|combine"),
    ("broadcast", r"broadcast"),
    ("point-to-point", r"send|recv"),
    ("reduce", r"reduce"),
)


def collective_of(kernel: str, named: str = "") -> str:
    """Return the collective of a communication kernel, in the words of the cost model.

    `named` is the name that the trace gives it, which counts more than the kernel's. A
    `SendRecv` kernel without one may be all-to-all as well: `send-receive`.

    >>> collective_of("ncclDevKernel_AllGather_RING_LL(...)", "_allgather_base")
    'all-gather'
    """
    for text in (named.lower(), kernel.lower()):
        for collective, pattern in _COLLECTIVES:
            if text and re.search(pattern, text):
                return (
                    "send-receive" if collective == "point-to-point" and not named else collective
                )
    return "other"
