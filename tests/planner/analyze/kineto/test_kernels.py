"""Kinds of kernels by names that the frameworks' libraries have."""

import pytest

from planner.analyze.kineto.kernels import collective_of, kind_of_copy, kind_of_kernel
from tests.planner.analyze.kineto import writing

NAMES = {
    "gemm": (
        writing.GEMM,
        "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_cublas",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn>",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>",
        "triton_tem_fused_mm_3",
    ),
    "attention": (
        writing.FLASH,
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_64x128x128",
        "fmha_cutlassB_bf16_aligned_64x128_k128_sm80(PyTorchMemEffAttention::AttentionBackward)",
        "void (anonymous namespace)::scaled_upper_triang_masked_softmax_warp_forward<half, half>",
    ),
    "elementwise": (
        writing.SILU,
        "triton_poi_fused__scaled_dot_product_flash_attention_view_4",
        "triton_red_fused__to_copy_mean_mul_pow_rsqrt_1",
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<...>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<...>",
        "void fused_rope_forward<c10::BFloat16>(int, int, int, int)",
    ),
    "head": (
        writing.LOSS,
        "void (anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>",
        "cross_entropy_kernel",
        "triton_red_fused__log_softmax_12",
    ),
    "optimizer": (
        writing.ADAM,
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<float>>",
        "void multi_tensor_apply_kernel<TensorListMetadata<2>, L2NormFunctor<float>>",
    ),
    "experts": ("void cutlass::device_kernel<GroupedGemmKernel<...>>", "_grouped_gemm_kernel"),
    "routing": ("_permute_kernel", "_sort_chunks_by_map_kernel", "void sbtopk::gatherTopK<float>"),
    "communication": (writing.GATHER, writing.SEND, "ncclKernel_AllReduce_RING_LL_Sum_float()"),
    "unknown": ("my_company_kernel<int>",),
}


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, names in NAMES.items() for n in names])
def test_kinds(kind, name):
    assert kind_of_kernel(name) == kind


def test_copies_to_the_host_are_not_copies_on_the_device():
    assert kind_of_copy("Memcpy HtoD (Pinned -> Device)") == "copies"
    assert kind_of_copy("Memcpy DtoD (Device -> Device)") == "elementwise"


@pytest.mark.parametrize(
    ("kernel", "named", "collective"),
    [
        (writing.GATHER, "", "all-gather"),
        (writing.GATHER, "reduce_scatter_tensor_coalesced", "reduce-scatter"),
        (writing.SEND, "", "send-receive"),
        (writing.SEND, "send", "point-to-point"),
        (writing.SEND, "all_to_allv", "all-to-all"),
        (writing.REDUCE, "allreduce", "all-reduce"),
        ("ncclDevKernel_Broadcast_RING_LL(...)", "", "broadcast"),
    ],
)
def test_what_a_row_says_of_its_collective_counts_more_than_the_kernel(kernel, named, collective):
    assert collective_of(kernel, named) == collective
