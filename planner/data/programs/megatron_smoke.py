#!/usr/bin/env python3
"""Two training steps of an emitted megatron.sh on CPU processes of this machine, over gloo.

    megatron.sh --smoke [further Megatron-LM flags]

runs this in place of `torchrun ... pretrain_gpt.py`, with the same words. One call starts the
ranks of all nodes; with SMOKE_PER_NODE=1 it is called once a node, as the script itself is,
starts the ranks of the node that NODE_RANK names, and these meet at MASTER_ADDR. Needs torch and
megatron-core with its `megatron.training` (0.17 or later, from PyPI, or a checkout in
MEGATRON_DIR); no GPU, no Transformer Engine. The training loop, model, pipeline schedule,
optimizers and process groups are Megatron-LM's; what stands in for the GPU is in megatron_cpu.py,
flags that need one are left out and named. At the end rank 0 prints `planner-smoke {...}`: what
the running job says of itself (megatron_report.py).
"""

import importlib.util
import inspect
import itertools
import os
import sys
from functools import partial
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, FOLDER)

MAX_RANKS, MAX_HIDDEN, MAX_TOKENS = 16, 1024, 1024
"""Largest job that is run without SMOKE_FORCE=1; tokens of one sequence."""

MANY = 99
"""As many words as come before the next flag."""
LEFT_OUT = {
    "--moe-grouped-gemm": 0,
    "--moe-permute-fusion": 0,
    "--tp-comm-overlap": 0,
    "--use-precision-aware-optimizer": 0,
    "--optimizer-cpu-offload": 0,
    "--optimizer-offload-fraction": 1,
    "--overlap-cpu-optimizer-d2h-h2d": 0,
    "--fp8-format": 1,
    "--fp8-recipe": 1,
    "--fp8-param-gather": 0,
    "--reuse-grad-buf-for-mxfp8-param-ag": 0,
    "--fp4-format": 1,
    "--fp4-recipe": 1,
    "--fp4-param-gather": 0,
    "--exp-avg-dtype": 1,
    "--exp-avg-sq-dtype": 1,
    "--main-grads-dtype": 1,
    "--moe-flex-dispatcher-backend": 1,
    "--moe-router-dtype": 1,
    "--overlap-moe-expert-parallel-comm": 0,
    "--delay-wgrad-compute": 0,
    "--cuda-graph-impl": 1,
    "--cuda-graph-modules": MANY,
    "--cuda-graph-scope": MANY,
    "--te-rng-tracker": 0,
    "--moe-paged-stash": 0,
    "--moe-expert-rank-capacity-factor": 1,
    "--use-transformer-engine-op-fuser": 0,
    "--fine-grained-activation-offloading": 0,
    "--offload-modules": MANY,
    "--fine-grained-offloading-max-inflight-offloads": 1,
}
"""Flags that want a GPU or a kernel library, and how many words follow them."""
FLEX = ["--moe-token-dispatcher-type", "flex"]
"""What brings tokens to experts with kernels of GPUs; alltoall does it here."""

CPU_FLAGS = [
    "--distributed-backend",
    "gloo",
    "--transformer-impl",
    "local",
    "--attention-backend",
    "unfused",
    "--no-persist-layer-norm",
    "--no-rope-fusion",
    "--no-masked-softmax-fusion",
    "--no-bias-swiglu-fusion",
    "--no-bias-gelu-fusion",
    "--no-bias-dropout-fusion",
    "--no-gradient-accumulation-fusion",
    "--num-workers",
    "0",
    "--train-iters",
    "2",
]
"""Flags that come last and win: layers of plain torch, no fused kernels, two steps."""


def split_words(words: list[str]) -> tuple[int, str, list[str]]:
    """Return the ranks that the words to `torchrun` start, its script, and the script's flags."""
    launch, at = launch_words(words)
    n_ranks = int(launch["--nnodes"]) * int(launch["--nproc-per-node"])
    return n_ranks, words[at], words[at + 1 :]


def launch_words(words: list[str]) -> tuple[dict[str, str], int]:
    """Return what the words say to `torchrun` itself, and where its script stands."""
    at = next(i for i, word in enumerate(words) if word.endswith(".py"))
    return dict(zip(words[:at:2], words[1:at:2], strict=False)), at


def own_ranks(words: list[str]) -> dict[str, int | str]:
    """Return the ranks that this call starts and where all meet, as `run_ranks` takes them."""
    if os.environ.get("SMOKE_PER_NODE") != "1":
        return {}
    launch, _ = launch_words(words)
    per_node, node = int(launch["--nproc-per-node"]), int(launch["--node-rank"])
    address, port = launch["--master-addr"], int(launch["--master-port"])
    return {"node": node, "per_node": per_node, "address": address, "port": port}


def refuse_moe_act(flags: list[str]) -> None:
    """End with a message where experts' activations are to be recomputed."""
    if "moe_act" in flags:
        sys.exit(
            "megatron.sh --smoke: --recompute-modules moe_act wants grouped GEMM, a GPU's kernel\n"
            "  fix: emit a plan that recomputes other modules"
        )


def find_megatron(checkout: str) -> None:
    """Put a checkout of Megatron-LM, where there is one, before what is installed."""
    if os.path.isdir(os.path.join(checkout, "megatron", "training")):
        sys.path.insert(1, os.path.abspath(checkout))
    if importlib.util.find_spec("megatron") is None:
        sys.exit(
            f"megatron.sh --smoke: Megatron-LM is neither installed nor in {checkout}\n"
            "  fix: pip install megatron-core, 0.17 or later, or set MEGATRON_DIR"
        )


def cpu_flags(flags: list[str]) -> tuple[list[str], list[str]]:
    """Return the flags for CPU processes, and those that are left out."""
    kept, dropped, skip = [], [], 0
    pairs = list(itertools.pairwise(flags))
    if tuple(FLEX) in pairs:
        dispatcher = flags.index(FLEX[0]) + 1
        flags = [*flags[:dispatcher], "alltoall", *flags[dispatcher + 1 :]]
        dropped += FLEX[1:]
    for word in flags:
        if word.startswith("--"):
            skip = LEFT_OUT.get(word, -1) + 1
        if skip:
            dropped += [word] * word.startswith("--")
            skip -= 1
        else:
            kept.append(word)
    return kept + CPU_FLAGS, dropped


def value_of(flags: list[str], name: str) -> int:
    """Return the last value of a flag, 0 where it is not given."""
    values = [value for word, value in itertools.pairwise(flags) if word == name]
    return int(values[-1]) if values else 0


def refuse_large(n_ranks: int, flags: list[str]) -> None:
    """End with a message where a job is no tiny one."""
    sizes = (
        ("ranks", n_ranks, MAX_RANKS),
        ("hidden size", value_of(flags, "--hidden-size"), MAX_HIDDEN),
        ("sequence length", value_of(flags, "--seq-length"), MAX_TOKENS),
    )
    for what, size, limit in sizes:
        if size > limit and os.environ.get("SMOKE_FORCE") != "1":
            sys.exit(
                f"megatron.sh --smoke: {what} {size}: this runs every rank on the CPU of one"
                f" machine, for tiny models of up to {limit}\n  fix: emit a plan for a tiny model"
                " of the same kind, or set SMOKE_FORCE=1"
            )


def dataset_config(args: Any) -> Any:
    """Return the settings of Megatron's mock data."""
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
    from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer

    return GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        split="99,1,0",
        tokenizer=build_tokenizer(args),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )


def datasets(n_samples: Any, vp_stage: int | None = None) -> Any:
    """Return training, validation and test data: Megatron's mock data, on every rank."""
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import MockGPTDataset
    from megatron.training import get_args

    config = dataset_config(get_args())
    return BlendedMegatronDatasetBuilder(MockGPTDataset, n_samples, lambda: True, config).build()


datasets.is_distributed = True  # type: ignore[attr-defined]


def forward_step(data_iterator: Any, model: Any) -> Any:
    """Run one micro-batch through a chunk of the model; return the output and how to sum it."""
    import megatron_report as report
    from megatron.core import parallel_state
    from megatron.core.utils import get_batch_on_this_cp_rank

    batch = next(data_iterator)
    report.saw_batch(batch["tokens"])
    more = {"cp_group": parallel_state.get_context_parallel_group()}
    if "is_hybrid_cp" in inspect.signature(get_batch_on_this_cp_rank).parameters:
        more["is_hybrid_cp"] = False
    batch = get_batch_on_this_cp_rank(batch, **more)
    mask = batch["loss_mask"]
    output = model(
        batch["tokens"],
        batch["position_ids"],
        batch["attention_mask"],
        labels=batch["labels"],
        loss_mask=mask,
    )
    return output, partial(masked_sum, mask)


def masked_sum(mask: Any, losses: Any) -> Any:
    """Return the sum of the losses of tokens, their number, and both for the log."""
    import torch

    total = (losses.float().view(-1) * mask.view(-1)).sum()
    n_tokens = mask.sum().detach().to(torch.int)
    both = torch.stack([total.detach(), n_tokens.float()])
    return total, n_tokens, {"lm loss": both}


def gpt_model(args: Any, config: Any, pre_process: bool, post_process: bool, **more: Any) -> Any:
    """Return a chunk of the model as `pretrain_gpt.py` builds it, from Megatron's local layers."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt import gpt_layer_specs as specs

    same = {"use_transformer_engine": False, "normalization": args.normalization}
    same |= {"qk_l2_norm": args.qk_l2_norm, "vp_stage": more.get("vp_stage")}
    if args.num_experts:
        layers = specs.get_gpt_decoder_block_spec(config, **same)
    else:
        layers = specs.get_gpt_layer_local_spec(
            qk_layernorm=args.qk_layernorm,
            multi_latent_attention=args.multi_latent_attention,
            normalization=args.normalization,
            qk_l2_norm=args.qk_l2_norm,
        )
    mtp = None
    if args.mtp_num_layers:
        layer = specs.get_gpt_decoder_layer_specs(config, **same)[-1]
        mtp = specs.get_gpt_mtp_block_spec(
            config, layer, use_transformer_engine=False, vp_stage=more.get("vp_stage")
        )
    return GPTModel(
        config=config,
        transformer_layer_spec=layers,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        rope_scaling=args.use_rope_scaling,
        mtp_block_spec=mtp,
        **more,
    )


def model_provider(
    pre_process: bool = True,
    post_process: bool = True,
    vp_stage: int | None = None,
    config: Any = None,
    pg_collection: Any = None,
) -> Any:
    """Return a chunk of the model; what `megatron.training` asks for up to 0.18."""
    from megatron.training import get_args
    from megatron.training.arguments import core_transformer_config_from_args

    args = get_args()
    config = config or core_transformer_config_from_args(args)
    more = {"vp_stage": vp_stage, "pg_collection": pg_collection}
    return gpt_model(args, config, pre_process, post_process, **more)


def train() -> None:
    """Train with the flags in `sys.argv`, as `pretrain_gpt.py` of the same release does."""
    import megatron_report as report
    from megatron.core.enums import ModelType
    from megatron.training import pretrain, training

    kind = ModelType.encoder_or_decoder
    defaults = {"tokenizer_type": "GPT2BPETokenizer"}
    report.watch(training)
    if "cfg_container" not in inspect.signature(pretrain).parameters:
        pretrain(datasets, model_provider, kind, forward_step, args_defaults=defaults)
        return
    from megatron.training.argument_utils import (
        gpt_config_from_args,
        pretrain_cfg_container_from_args,
    )
    from megatron.training.arguments import parse_and_validate_args

    args = parse_and_validate_args(args_defaults=defaults)
    config = pretrain_cfg_container_from_args(args, gpt_config_from_args(args))
    pretrain(config, datasets, kind, forward_step)


def rank_main() -> None:
    """Run one rank."""
    from megatron_cpu import no_gpu

    with no_gpu():
        import megatron_report as report

        train()
        report.print_report("megatron")


def main() -> int:
    """Start the ranks that the plan has; return the exit status."""
    n_ranks, script, flags = split_words(sys.argv[1:])
    own = own_ranks(sys.argv[1:])
    refuse_large(n_ranks, flags)
    refuse_moe_act(cpu_flags(flags)[0])
    find_megatron(os.path.dirname(script))
    flags, dropped = cpu_flags(flags)
    if dropped:
        print(f"smoke: left out, since they want a GPU: {' '.join(dropped)}", flush=True)
    sys.argv = ["pretrain_gpt.py", *flags]
    # Without the overlapped exchange, for which a plan has more queues, the parser asks for one.
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    from megatron_cpu import build_helpers, run_ranks

    build_helpers()
    import megatron.training.training  # noqa: F401  once for all ranks

    return run_ranks(n_ranks, rank_main, **own)


if __name__ == "__main__":
    sys.exit(main())
