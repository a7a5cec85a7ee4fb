"""Switches of megatron-core by release: since when, and under which flags.

Emitters, readers and rules ask `searches.frameworks.switches`. A name is that of an axis, or
`axis=value` where a value has flags of its own. Megatron-Bridge has the fields of the same names
(`--cuda-graph-modules` is `cuda_graph_modules`), by the megatron-core that it goes with. Tests
hold every row against the parsers of all known releases.
"""

from collections.abc import Mapping

from searches.frameworks.releases import SwitchFlags

_OLDEST = "0.17"
"""The oldest release that is known: `since` of what it has says no more than that."""


def _always(switch: str, words: str) -> SwitchFlags:
    return SwitchFlags(switch, ((_OLDEST, words),))


def _since(switch: str, release: str, words: str) -> SwitchFlags:
    return SwitchFlags(switch, ((release, words),))


_FLEX = "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend"
_GRAPH = "--cuda-graph-impl"
SWITCH_FLAGS: Mapping[str, SwitchFlags] = {
    one.switch: one
    for one in (
        _always("dispatcher=alltoall", "--moe-token-dispatcher-type alltoall"),
        _always("dispatcher=allgather", "--moe-token-dispatcher-type allgather"),
        _always("dispatcher=deepep", f"{_FLEX} deepep"),
        _always("dispatcher=hybridep", f"{_FLEX} hybridep"),
        _since("dispatcher=ncclep", "0.19", f"{_FLEX} ncclep"),
        SwitchFlags(
            "dispatcher_sms=deepep",
            (
                (_OLDEST, "--moe-deepep-num-sms {}"),
                ("0.19", "--moe-flex-dispatcher-num-sms {}"),
            ),
        ),
        SwitchFlags(
            "dispatcher_sms=hybridep",
            (
                (_OLDEST, "--moe-hybridep-num-sms {}"),
                ("0.19", "--moe-flex-dispatcher-num-sms {}"),
            ),
        ),
        _since("dispatcher_permutes", "0.18", "--moe-permute-fusion-into-hybridep"),
        _since("rank_capacity", "0.18", "--moe-expert-rank-capacity-factor {}"),
        _since("paged_stash", "0.18", "--moe-paged-stash"),
        _since("op_fuser", "0.18", "--use-transformer-engine-op-fuser"),
        _always("balanced_routing", "--moe-router-force-load-balancing"),
        _always("ep_overlap=1f1b", "--overlap-moe-expert-parallel-comm"),
        _always("ep_overlap_delayed_wgrad", "--delay-wgrad-compute"),
        _always("ep_overlap_early_release", "--ep-overlap-early-attn-memory-release"),
        _since("dispatch_beside_wgrad", "0.18", "--overlap-dispatch-backward-with-experts-wgrad"),
        _since("priority_of_exchange", "0.18", "--high-priority-a2a-comm-stream"),
        _always("cuda_graph=layer", f"{_GRAPH} transformer_engine"),
        SwitchFlags(
            "cuda_graph=modules",
            (
                (_OLDEST, f"{_GRAPH} transformer_engine --cuda-graph-scope {{}}"),
                ("0.18", f"{_GRAPH} transformer_engine --cuda-graph-modules {{}}"),
            ),
        ),
        SwitchFlags(
            "cuda_graph=full_iteration",
            (
                (_OLDEST, f"{_GRAPH} local --cuda-graph-scope full_iteration"),
                ("0.18", f"{_GRAPH} full_iteration"),
            ),
        ),
        _always("optimizer_graph", "--optimizer-cuda-graph"),
        _always("offload_modules", "--fine-grained-activation-offloading --offload-modules {}"),
        _since("offload_in_flight", "0.18", "--fine-grained-offloading-max-inflight-offloads {}"),
        _since("offload_fraction", "0.19", "--activation-offload-fraction {}"),
        _always("optimizer=adam", "--optimizer adam"),
        _always("optimizer=sgd", "--optimizer sgd"),
        _always("optimizer=muon", "--optimizer muon"),
        _since("optimizer=soap", "0.18", "--optimizer soap"),
        SwitchFlags(
            "optimizer=muon,sharded",
            (
                (_OLDEST, "--optimizer dist_muon"),
                ("0.18", "--optimizer muon --use-distributed-optimizer"),
            ),
        ),
        _since("optimizer=soap,sharded", "0.18", "--optimizer soap --use-distributed-optimizer"),
        _always("muon_num_ns_steps", "--muon-num-ns-steps {}"),
        _always("muon_tp_mode", "--muon-tp-mode {}"),
        _always("muon_scalar_optimizer", "--muon-scalar-optimizer {}"),
        _since("muon_without_layout", "0.18", "--no-use-layer-wise-param-layout"),
        _always("optimizer_states", "--use-precision-aware-optimizer"),
        _always("moments", "--exp-avg-dtype {} --exp-avg-sq-dtype {}"),
        _always("grad_dtype=bf16", "--grad-reduce-in-bf16"),
        _always("fp8_parameter_gather", "--fp8-param-gather"),
        _always("fp4_parameter_gather", "--fp4-param-gather"),
        _always("mxfp8_shared_buffer", "--reuse-grad-buf-for-mxfp8-param-ag"),
        _always("precision=nvfp4", "--fp4-format e2m1 --fp4-recipe nvfp4"),
        _since("fp8_output_layer", "0.18", "--fp8-output-proj"),
        _always("fsdp_strategy", "--data-parallel-sharding-strategy {}"),
        _always("fsdp_double_buffer", "--fsdp-double-buffer"),
        _since(
            "fsdp_fine_grained_gather",
            "0.18",
            "--megatron-fsdp-enable-fine-grained-param-gather",
        ),
        _always("user_buffers", "--use-nccl-ub"),
        _always("outer_sharding", "--outer-dp-sharding-strategy {}"),
    )
}
"""By switch."""
