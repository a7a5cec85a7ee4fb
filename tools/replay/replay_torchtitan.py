#!/usr/bin/env python3
"""Run emitted torchtitan recipes with torchtitan's own code, under fake tensors. CPU only.

  replay_torchtitan.py CASES.jsonl [--out ANSWERS.jsonl]   # "-" reads standard input; a fork each

A case: {"id", "plan": facts of the recipe, "recipe": its text, "rank": pipeline rank, 0 without}.
torchtitan builds and parallelises the model at its full size over a pretended world, and its loop
runs one optimizer step on tensors without memory. Fused kernels of a GPU (RMSNorm, attention) are
replaced by functions that keep what those keep. Tokens go to experts evenly. Micro-batches after
the second repeat it and are not run; of a pipeline two numbers of them run, in two processes, and
the plan's own number is on the line through both.
"""

import contextlib
import importlib
import logging
import os
import sys
import tempfile
from types import SimpleNamespace

import counting
import recording
import torch
from replay_fsdp2 import forked, main, plan_of, replay_safely, saved_rows
from torch._subclasses.fake_tensor import FakeTensorMode

RUN_AT_MOST = 2
"""Micro-batches that really run without a pipeline; the others repeat the last of them."""


def load(folder, recipe, plan):
    """Return torchtitan's configuration of a recipe."""
    from torchtitan.config import ConfigManager

    with open(os.path.join(folder, "torchtitan_recipe.py"), "w") as f:
        f.write(recipe)
    sys.path.insert(0, folder)
    words = ["--module", "torchtitan_recipe", "--config", "train", "--comm.mode", "fake_backend"]
    cfg = ConfigManager().parse_args(words)
    cfg.training.local_batch_size = plan["n_micro"] * plan["mbs"]
    cfg.training.global_batch_size = -1
    return cfg


def use_saving_kernels():
    """Put functions that keep what fused kernels keep in the place of those of a GPU."""
    from torchtitan.models.common import attention, nn_modules, token_dispatcher

    def norm(self, x):
        return recording.FusedNorm.apply(x, self.weight)

    def flash(self, q_BLNH, k_BLNH, v_BLNH, *, out_transform=None, **_):
        out, rows = recording.FlashAttention.apply(q_BLNH, k_BLNH, v_BLNH)
        return out if out_transform is None else out_transform(out, rows)

    def evenly(self, of_rank, of_experts, ep_size):
        pairs = of_experts.reshape(-1)
        share = self.routed_rows // ep_size
        splits = [share + (i < self.routed_rows % ep_size) for i in range(ep_size)]
        return pairs, splits, splits

    plain = token_dispatcher.LocalTokenDispatcher._local_reorder

    def counted(self, x, scores, ids):
        self.routed_rows = ids.numel()
        return plain(self, x, scores, ids)

    nn_modules.RMSNorm.forward = norm
    for kind in (attention.FlexAttention, attention.ScaledDotProductAttention):
        kind.forward = flash
    token_dispatcher.LocalTokenDispatcher._local_reorder = counted
    token_dispatcher.AllToAllTokenDispatcher._sync_token_count_exchange = evenly


def prepared(cfg, plan, rank):
    """Return a namespace with what torchtitan's Trainer makes of a configuration before a step."""
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import utils as titan

    os.environ.update(RANK=str(rank), NGPU=str(plan["n_devices"]), LOCAL_RANK="0")
    titan.init_distributed(cfg.comm)
    dims = ParallelDims.from_config(cfg.parallelism, plan["n_devices"])
    dims.build_mesh()
    titan.set_spmd_backend(cfg.parallelism.spmd_backend)
    cfg.model_spec.model.update_from_config(config=cfg)
    return SimpleNamespace(
        cfg=cfg,
        dims=dims,
        spec=cfg.model_spec,
        context=titan.get_spmd_context(parallel_dims=dims, spmd_typechecking=False),
    )


def build(run):
    """Build, split and shard the model, as `Trainer.__init__` does."""
    cfg, spec = run.cfg, run.spec
    with torch.device("meta"):
        model = spec.model.build()
    known = {
        "parallel_dims": run.dims,
        "training": cfg.training,
        "parallelism": cfg.parallelism,
        "compile_config": cfg.compile,
        "ac_config": cfg.activation_checkpoint,
        "dump_folder": "",
    }
    run.loss_fn = cfg.loss.build(compile_config=cfg.compile)
    if run.dims.pp_enabled:
        run.schedule, run.parts, run.first, run.last = spec.pipelining_fn(
            model,
            **known,
            device=torch.device("cpu"),
            model_config=spec.model,
            parallelize_fn=spec.parallelize_fn,
            loss_fn=run.loss_fn,
        )
    else:
        run.schedule, run.parts = None, [spec.parallelize_fn(model, **known)]


def fill(run):
    """Give the parts memory that is not there, and build the optimizer."""
    for part in run.parts:
        part.to_empty(device="cpu")
        part.train()
    run.optimizers = run.cfg.optimizer.build(model_parts=run.parts)
    hook = run.spec.post_optimizer_build_fn
    if hook is not None:
        hook(run.optimizers, run.parts, run.dims)


def tokens(run, plan):
    """Return one micro-batch of this rank: its share of the sequence, positions, labels."""
    from torchtitan.distributed.spmd_types import annotate_input_spmd_types

    shape = (plan["mbs"], run.cfg.training.seq_len // plan["cp"])
    ids, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
    positions = torch.zeros(shape, dtype=torch.int32)
    if run.cfg.parallelism.spmd_backend == "spmd_types":
        annotate_input_spmd_types(run.dims, ids, labels, {"positions": positions})
    return ids, labels, {"positions": positions}


def one_pass(run, plan, kept):
    """Run one micro-batch without a pipeline: `Trainer._forward_backward_body`."""
    ids, labels, more = tokens(run, plan)
    count = torch.ones(())
    with run.context():
        with kept.recording() if kept else contextlib.nullcontext():
            found = run.parts[0](ids, **more)
            loss, _ = run.loss_fn(found, labels, count)
        del found
        loss.backward()


def pipeline_pass(run, plan, kept):
    """Run all micro-batches through this rank's stages: `Trainer.pp_forward_backward_step`."""
    batches = [tokens(run, plan) for _ in range(plan["n_micro"])]
    state_shapes(run, plan)
    with run.context(), kept.recording():
        run.schedule.step(
            arg_mbs=[(ids,) for ids, _, _ in batches] if run.first else None,
            kwarg_mbs=[more for _, _, more in batches],
            target_mbs=[labels for _, labels, _ in batches] if run.last else None,
            losses=[] if run.last else None,
            loss_kwargs={"global_valid_tokens": torch.ones(())},
            return_outputs=False,
        )


def state_shapes(run, plan):
    """Tell every stage what goes in and out, so that none needs a trial pass to find it."""
    from torch.distributed.pipelining._utils import extract_tensor_metas

    whole = (plan["mbs"], run.cfg.training.seq_len // plan["cp"])
    seq = whole[1] // (plan["tp"] if plan["sp"] else 1)
    model = run.spec.model
    ids = torch.zeros(whole, dtype=torch.long)
    dtype = getattr(torch, run.cfg.training.mixed_precision_param)
    hidden = torch.empty((whole[0], seq, model.dim), dtype=dtype, requires_grad=True)
    width = model.vocab_size // plan["tp"]
    logits = torch.empty((*whole, width), dtype=dtype, requires_grad=True)
    for stage in stages_of(run.schedule):
        first, last = stage.is_first, stage.is_last
        stage._user_meta.inputs = extract_tensor_metas((ids if first else hidden,))
        stage._user_meta.outputs = extract_tensor_metas((logits if last else hidden,))


def stages_of(schedule):
    """Return the stages of a schedule of one or several of them."""
    return getattr(schedule, "_stages", None) or [schedule._stage]


def few_micro_batches(plan):
    """Return two numbers of micro-batches on which everything depends linearly, or the plan's.

    Warm-up is over after twice as many as there are virtual stages, and rounds of pp come whole.
    """
    step, n = plan["pp"], plan["n_micro"]
    first = 2 * step * plan["vpp"] + n % step
    return (first, first + step) if plan["pp"] > 1 and n > first + step else (n,)


def on_the_line(answers, ns, n):
    """Return the answer for `n` micro-batches from those for two other numbers."""
    if any("error" in one for one in answers):
        return next(one for one in answers if "error" in one)
    (a, b), (m, k) = answers, ns
    share = (n - m) / (k - m)

    def between(x, y):
        return round(x + share * (y - x))

    whole = dict(b)
    for name in ("collectives", "control"):
        before = {(r["axis"], r["collective"], r["dtype"], r["group_size"]): r for r in a[name]}
        whole[name] = []
        for row in b[name]:
            key = row["axis"], row["collective"], row["dtype"], row["group_size"]
            old = before.get(key, dict.fromkeys(("n_calls", "bytes", "sent_bytes"), 0))
            sums = {x: between(old[x], row[x]) for x in ("n_calls", "bytes", "sent_bytes")}
            whole[name].append(row | sums)
    for name in ("kept_activation_bytes", "kept_head_bytes"):
        whole[name] = between(a[name], b[name])
    return whole


def replay_few(case):
    """Return the record of one case, replayed with few micro-batches where it is a pipeline."""
    plan = plan_of(case)
    ns = few_micro_batches(plan)
    if len(ns) == 1:
        return replay(case)
    cases = [case | {"n_micro": n, "plan": plan | {"n_micro": n}} for n in ns]
    answers = [forked(one, lambda x: replay_safely(replay, x)) for one in cases]
    return on_the_line(answers, ns, plan["n_micro"])


def rank_of(plan, stage):
    """Return the first rank of a pipeline stage; the pipeline is the outermost axis."""
    return stage * (plan["n_devices"] // plan["pp"])


def name_whole_world(run, plan):
    """Name the group of all ranks by the one axis that spans it."""
    sizes = {name: plan.get(name, 1) for name in ("tp", "cp", "pp", "dp")}
    sizes["dp"] *= sizes["cp"]
    spanning = [name for name, size in sizes.items() if size == plan["n_devices"]]
    recording.WHOLE["axis"] = spanning[0] if spanning else "world"


def replay(case):
    """Return the record of one case."""
    plan = plan_of(case)
    kept, sent = recording.Kept(), recording.Collectives()
    with tempfile.TemporaryDirectory() as folder:
        cfg = load(folder, case["recipe"], plan)
        use_saving_kernels()
        run = prepared(cfg, plan, rank_of(plan, case.get("rank", 0)))
        name_whole_world(run, plan)
        build(run)
        with FakeTensorMode(allow_non_fake_inputs=True), sent:
            fill(run)
            sent.rows.clear()
            n_params = sum(n for part in run.parts for n in whole_sizes(part))
            for part in run.parts:
                for block in part.layers.children():
                    kept.inside(block, "layers")
            counts = step(run, plan, kept, sent)
            parameters = [p for part in run.parts for p in part.parameters()]
            gradients = sum(
                recording.n_bytes(recording.local(p.grad))
                for p in parameters
                if p.grad is not None
            )
            if run.schedule is not None and plan["zero"]:
                # Accumulated whole, and sharded by the last micro-batch alone.
                gradients = 4 * n_params
            before = sent.counts()
            run.optimizers.step()
            counts = counting.added(counts, before, sent.counts())
            states = master = 0
            for optimizer in run.optimizers.optimizers:
                more, _ = recording.state_bytes([], optimizer)
                states += more
            _, master = recording.state_bytes(parameters, SimpleNamespace(state={}))
    collectives, control = counting.as_rows(counts)
    is_mixed = cfg.training.mixed_precision_param != "float32"
    return {
        "id": case["id"],
        "collectives": collectives,
        "control": control,
        "parameters": n_params,
        "parameters_sharded": sum(recording.local(p).numel() for p in parameters),
        "gradient_bytes": gradients,
        "parameter_bytes": counting.weight_bytes(plan["zero"], n_params, master, is_mixed),
        "optimizer_bytes": states + (master if is_mixed else 0),
        "kept_activation_bytes": round(kept.peak.get("layers", 0)),
        "kept_head_bytes": round(kept.peak.get("ends", 0)),
        "notes": [],
        "saved": saved_rows(kept) if case.get("explain") else [],
    }


def whole_sizes(part):
    """Yield the parameters that the rank computes with: its share of tp and ep, whole over dp."""
    from torch.distributed.fsdp import FSDPModule

    states = {m._get_fsdp_state() for m in part.modules() if isinstance(m, FSDPModule)}
    for state in states:
        for group in state._fsdp_param_groups:
            yield from (p._orig_size.numel() for p in group.fsdp_params)


def step(run, plan, kept, sent):
    """Run the micro-batches of an optimizer step; return its collectives."""
    if run.schedule is not None:
        pipeline_pass(run, plan, kept)
        return sent.counts()
    n_run, before = min(RUN_AT_MOST, plan["n_micro"]), {}
    for i in range(n_run):
        before = sent.counts()
        one_pass(run, plan, None if i else kept)
    return counting.repeated(before, sent.counts(), plan["n_micro"] - n_run)


def import_all():
    """Import torchtitan once for all cases, for devices that every machine has."""
    from torchtitan.tools import utils

    logging.disable(logging.WARNING)
    utils.device_type = "cpu"  # before what reads it is imported
    for name in ("trainer", "models.llama3", "models.qwen3", "models.deepseek_v3"):
        importlib.import_module(f"torchtitan.{name}")


if __name__ == "__main__":
    import_all()
    sys.exit(main(lambda case: replay_safely(replay_few, case), __doc__))
