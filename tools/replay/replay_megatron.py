#!/usr/bin/env python3
"""Replay plans in Megatron-Core: its model, schedules, DDP and optimizer, one rank, no GPU.

  replay_megatron.py [PLANS.jsonl]        reads stdin without a file, prints an answer a line

Runs where torch and megatron-core (0.17 on) are: installed, or a wheel unpacked on PYTHONPATH.
The format stands in tools/replay/compare.py. The flags of the emitted script go through Megatron's
own parser; get_model, the optimizer and the schedule are its own, on a fake process group of the
plan's full size. Tensors are on the meta device: sizes without contents. Local layers stand for
Transformer Engine's; norms and flash attention for their kernels (megatron_parts.py).
"""

import contextlib
import io
import json
import logging
import os
import sys
import typing
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "checkers")]

import cuda_on_meta  # noqa: E402
import fake_world  # noqa: E402
import forked  # noqa: E402
import kept  # noqa: E402
import recorded  # noqa: E402

RECORDER = recorded.Recorder()
LOCAL = [
    "--transformer-impl",
    "local",
    "--no-gradient-accumulation-fusion",
    "--no-persist-layer-norm",
    "--no-check-for-nan-in-loss-and-grad",
    "--no-masked-softmax-fusion",
    "--no-rope-fusion",
]
DROPPED = {
    "--moe-grouped-gemm": 0,
    "--attention-backend": 1,
    "--cp-comm-type": 1,
    "--tp-comm-overlap": 0,
}
"""Flags that only kernels of Transformer Engine take, with the number of their values."""


def local_words(words):
    """Return the words of a script for local layers."""
    found, skip = [], 0
    for word in words:
        if skip:
            skip -= 1
        elif word in DROPPED:
            skip = DROPPED[word]
        else:
            found.append(word.strip("'"))
    return [*found, *LOCAL]


def parse(case):
    """Return Megatron's arguments of a plan."""
    from megatron.training import arguments

    layout = case["layout"]
    connections = "1" if layout["zero"] < 2 else "8"
    os.environ |= {
        "WORLD_SIZE": str(layout["n_devices"]),
        "RANK": str(first_rank(case)),
        "LOCAL_RANK": "0",
        "CUDA_DEVICE_MAX_CONNECTIONS": connections,
    }
    sys.argv = ["pretrain_gpt.py", *local_words(case["flags"])]
    args = arguments.parse_args()
    args = arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"}) or args
    args.padded_vocab_size = layout["padded_vocab"]
    return args


def first_rank(case):
    """Return the first rank of the stage that is replayed."""
    x = case["layout"]
    inside = x["rank_order"] == "tp-cp-ep-pp-dp"
    return case["rank"] * x["tp"] * x["cp"] * (1 if inside else x["dp"])


def start(case, args):
    """Form the groups of the plan and name them by axis."""
    import megatron.core.parallel_state as ps
    from megatron.core import tensor_parallel
    from megatron.training import global_vars

    fake_world.start(args.world_size, first_rank(case))
    order = "tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp"
    ps.initialize_model_parallel(
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        args.virtual_pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
        order=order,
        create_gloo_process_groups=False,
    )
    name_groups(ps)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    global_vars._GLOBAL_ARGS = args


GROUPS = (
    ("INSTANCE", "control"),
    ("TENSOR_AND_DATA", "control"),
    ("DATA_PARALLEL", "dp"),
    ("EXPERT", "ep"),
    ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
    ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
    ("EMBEDDING", "pp"),
    ("CONTEXT_PARALLEL_GROUP", "cp"),
    ("MODEL_PARALLEL_GROUP", "control"),
)
"""Axis by a part of the name of the variable of parallel_state that holds the group."""


def name_groups(ps):
    """Name the groups of this rank."""
    import torch.distributed as dist

    for name, value in vars(ps).items():
        axis = next((axis for part, axis in GROUPS if part in name), None)
        groups = value if isinstance(value, list) else [value]
        for group in groups:
            if axis and isinstance(group, dist.ProcessGroup):
                RECORDER.name_group(group, axis)


def provider(case, args):
    """Return what builds one chunk of the model."""
    import megatron_parts as parts
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.training.arguments import core_transformer_config_from_args

    local = case.get("layers") == "local"
    parts.install(case["model"]["flash_attention"] or args.context_parallel_size > 1, local)

    def build(pre_process, post_process, vp_stage=None, config=None, pg_collection=None):
        config = core_transformer_config_from_args(args)
        spec = specs.get_gpt_decoder_block_spec(
            config,
            use_transformer_engine=not local,
            normalization=args.normalization,
            vp_stage=vp_stage,
        )
        mtp = None
        if args.mtp_num_layers:
            mtp = specs.get_gpt_mtp_block_spec(config, spec, not local, vp_stage=vp_stage)
        model = GPTModel(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=args.padded_vocab_size,
            max_sequence_length=args.max_position_embeddings,
            pre_process=pre_process,
            post_process=post_process,
            fp16_lm_cross_entropy=args.fp16_lm_cross_entropy,
            parallel_output=True,
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            position_embedding_type=args.position_embedding_type,
            rotary_percent=args.rotary_percent,
            rotary_base=args.rotary_base,
            mtp_block_spec=mtp,
            vp_stage=vp_stage,
        )
        return model

    return build


class Step:
    """One optimizer step of a rank."""

    def __init__(self, case, args):
        import torch
        from megatron.core.optimizer import get_megatron_optimizer
        from megatron.training import training

        self.args, self.case = args, case
        with torch.device("meta"):  # the router's weight is made on the CPU, then moved
            self.model = training.get_model(provider(case, args))
        for chunk in self.model:  # which moving them to meta tensors loses
            for name, weight in chunk.named_parameters():
                if name.endswith("router.weight"):
                    weight.sequence_parallel = args.sequence_parallel
        config, overrides = training.get_megatron_optimizer_config(args)
        self.optimizer = get_megatron_optimizer(
            config, self.model, config_overrides=overrides, use_gloo_process_groups=False
        )
        self.kept = kept.Kept()
        self.forwards = 0
        self.tell_schedule()

    def tell_schedule(self):
        """Give the schedule what Megatron's train() gives it."""
        from megatron.core.distributed import finalize_model_grads
        from megatron.core.utils import get_model_config

        def each(functions):
            return functions if len(functions) > 1 else functions[0]

        config, args, model = get_model_config(self.model[0]), self.args, self.model
        config.grad_scale_func = self.optimizer.scale_loss
        config.finalize_model_grads_func = finalize_model_grads
        if args.overlap_grad_reduce:
            config.no_sync_func = each([chunk.no_sync for chunk in model])
            if args.align_grad_reduce:
                config.grad_sync_func = each([chunk.start_grad_sync for chunk in model])
        if args.overlap_param_gather and args.align_param_gather:
            config.param_sync_func = each([chunk.start_param_sync for chunk in model])

    def batch(self):
        """Return tokens of one micro-batch and what goes with them."""
        import torch

        args = self.args
        shape = (args.micro_batch_size, args.seq_length // args.context_parallel_size)
        ids = torch.empty(shape, dtype=torch.int64, device="meta")
        return ids, torch.empty(shape, dtype=torch.float32, device="meta")

    def forward_step(self, iterator, model):
        """Run a chunk forward, as pretrain_gpt.py does."""
        import torch

        self.forwards += 1
        tokens, mask = self.batch()
        output = model(tokens, tokens, None, labels=tokens, loss_mask=mask)

        def loss(tensor):
            tensor = tensor.view(-1).float()
            total = torch.sum(tensor * mask.view(-1))
            count = mask.sum().clone().detach().to(torch.int)
            report = torch.cat([total.clone().detach().view(1), count.view(1)])
            return total, count, {"lm loss": report}

        return output, loss

    def run(self, n_micro):
        """Run forward, backward and update; return the calls."""
        from megatron.core.pipeline_parallel import schedules

        args = self.args
        for chunk in self.model:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        RECORDER.on = True
        with self.kept:
            schedules.get_forward_backward_func()(
                forward_step_func=self.forward_step,
                data_iterator=[None] * len(self.model) if len(self.model) > 1 else None,
                model=self.model,
                num_microbatches=n_micro,
                seq_length=args.seq_length,
                micro_batch_size=args.micro_batch_size,
                decoder_seq_length=args.decoder_seq_length,
                forward_only=False,
            )
        self.optimizer.step()
        RECORDER.on = False
        return RECORDER.taken()


PARTS = {"embedding": "embedding", "decoder": "layers", "mtp": "layers", "output_layer": "logits"}
"""What keeps a tensor, by the child of GPTModel that runs."""


def watch_parts(step):
    """Note which part of the model runs forward; after the head it is the loss."""
    for chunk in step.model:
        model = chunk
        while hasattr(model, "module"):
            model = model.module

        def enter(module, _, where):
            step.kept.where = where

        for name, child in model.named_children():
            if name in PARTS:
                child.register_forward_pre_hook(
                    lambda module, _, where=PARTS[name]: enter(module, _, where)
                )
        norm = getattr(model.decoder, "final_layernorm", None)
        if norm is not None:  # counted with the head, as in `costmodels.layers.layer_terms`
            norm.register_forward_pre_hook(lambda module, _: enter(module, _, "logits"))


def watch_forwards(step):
    """Look at what is kept whenever a forward of a chunk has ended."""
    from megatron.core.pipeline_parallel import schedules

    original = schedules.forward_step

    def forward_step(*args, **kwargs):
        found = original(*args, **kwargs)
        step.kept.forward_ended()
        return found

    schedules.forward_step = forward_step


def sizes(step):
    """Return parameters, and bytes of gradients and of optimizer states."""
    parameters = [p for chunk in step.model for p in chunk.parameters()]
    gradients = {}
    for chunk in step.model:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            gradients[id(buffer)] = buffer.grad_data.numel() * buffer.grad_data.element_size()
    weights = {p.untyped_storage()._cdata for p in parameters}
    states = {}
    for one in getattr(step.optimizer, "chained_optimizers", [step.optimizer]):
        for group in one.optimizer.param_groups:
            for p in group["params"]:
                tensors = [p, *(v for v in one.optimizer.state[p].values() if hasattr(v, "numel"))]
                for tensor in tensors:
                    storage = tensor.untyped_storage()
                    if storage._cdata not in weights and tensor.numel() > 1:
                        states[storage._cdata] = storage.nbytes()
    return sum(p.numel() for p in parameters), sum(gradients.values()), sum(states.values())


def replay(case):
    """Return the answer for a plan."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        args = parse(case)
        start(case, args)
        step = Step(case, args)
        watch_forwards(step)
        watch_parts(step)
        step.kept.leave_out(weights_of(step))
        pp, vpp, n_micro = args.pipeline_model_parallel_size, len(step.model), case["n_micro"]
        small = min(n_micro, pp * (2 if vpp > 1 else 1))
        large = min(n_micro, small + (pp if vpp > 1 else 1))
        step.run(small if vpp > 1 else 1)  # the first step gathers weights once more
        first = step.run(small)
        calls = first if large == small else step.run(large)
        if large < n_micro:
            calls = recorded.per_step(first, calls, small, large, n_micro)
        n, gradient_bytes, optimizer_bytes = sizes(step)
    return {
        "id": case["id"],
        "collectives": recorded.as_records(calls),
        "parameters": n,
        "parameter_bytes": sum(
            p.numel() * p.element_size() for chunk in step.model for p in chunk.parameters()
        ),
        "gradient_bytes": gradient_bytes,
        "optimizer_bytes": optimizer_bytes,
        "kept_activation_bytes": step.kept.peak - step.kept.at_peak.get("logits", 0),
        "kept_by_part": step.kept.at_peak,
        "notes": [],
    }


def weights_of(step):
    """Yield the tensors that are there anyway."""
    for chunk in step.model:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            yield buffer.grad_data
            if buffer.param_data is not None:
                yield buffer.param_data
        yield from chunk.parameters()


def check(case):
    """Return the answer, or why there is none."""
    try:
        return replay(case)
    except BaseException as error:
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-6:]
        at = "; ".join(f"{Path(x.filename).name}:{x.lineno} {x.name}" for x in where)
        return {"id": case["id"], "error": f"{type(error).__name__}: {error} [{at}]"}


def main():
    """Answer every line."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    os.environ["PYTORCH_JIT"] = "0"
    if not hasattr(typing, "override"):  # the wheel is for Python 3.12
        typing.override = lambda method: method
    cuda_on_meta.install()
    recorded.install(RECORDER)
    fake_world.skip_foreign_groups()
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        import megatron.training.training  # noqa: F401
    lines = Path(sys.argv[1]).read_text().splitlines() if len(sys.argv) > 1 else sys.stdin
    for case, answer in forked.answers(lines, check):
        print(json.dumps({"id": case["id"], **answer}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
