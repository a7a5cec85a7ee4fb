#!/usr/bin/env python3
"""Ask Megatron-LM itself whether it accepts a command line. CPU only, no GPU, no apex, no TE.

  check_megatron.py FLAGS_FILE --world-size 64                      # installed megatron-core (>= 0.17.0)
  check_megatron.py FLAGS_FILE --world-size 64 --source MEGATRON_DIR  # an unpacked wheel or a checkout

FLAGS_FILE ("-" = stdin) is the text a user would paste: only the flags, or a whole launch script
(`export X=1`, `torchrun ... pretrain_gpt.py --flags`, line continuations and # comments allowed).
Text before the first *.py word gives environment settings and, with torchrun's --nnodes and
--nproc-per-node, the world size; what follows it goes to Megatron's parser.

What is run, all of it Megatron's own code:
  1 parse        argparse parser (unknown flags are refused, no abbreviations)
  2 validate     validate_args
  3 transformer  TransformerConfig / MLATransformerConfig __post_init__
  4 ddp          DistributedDataParallelConfig
  5 optimizer    OptimizerConfig
  6 microbatches num_microbatches_calculator (global batch % (micro batch * dp))
  7 groups       parallel_state.initialize_model_parallel on torch's fake process group at the real
                 world size (EP/ETP/CP/DP-instances divisibility, rank order)
  8 layers       layer count of every (pp, vp) stage, none missing, none twice
  9 first step   what the framework refuses only when the first step runs, re-checked here: the interleaved
                 schedule's micro-batch conditions, MoE + TP without sequence parallel, sequence % tp*cp,
                 FFN % tp, heads per rank for all-to-all context parallelism
Stubbed, because a CPU box lacks them: torch.cuda device properties (--gpu-arch), the Transformer
Engine version (--te-version), TE's fused rope/permute symbols. Exit 0 accepted, 1 refused, 2 the
checker itself could not run.
"""
import argparse
import json
import os
import re
import shlex
import sys
import traceback
import types
import typing

import fake_world
import forked

if not hasattr(typing, "override"):  # Python 3.11: the one name of 3.12 that megatron-core imports
    typing.override = lambda method: method


def split_launch_text(text):
    """-> (env, launcher words, megatron words)."""
    text = re.sub(r"\\\r?\n", " ", text)
    lines = []
    for line in text.splitlines():
        s = line.strip()
        if not s or s.startswith("#"):
            continue
        lines.append(s)
    words = shlex.split("\n".join(lines), comments=True)
    env, before, after, seen_py = {}, [], [], False
    for w in words:
        m = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", w, re.S)
        if not seen_py and m and not w.startswith("-"):
            env[m.group(1)] = m.group(2)
        elif not seen_py and w.endswith(".py") and not w.startswith("--"):
            seen_py = True
        elif seen_py:
            after.append(w)
        else:
            before.append(w)
    if not seen_py:  # only flags were given
        before, after = [], [w for w in before if w not in ("export",)]
    return env, before, after


def launcher_world_size(words):
    """torchrun --nnodes N --nproc-per-node M -> N*M, else None."""
    got = {}
    i = 0
    while i < len(words):
        w = words[i]
        m = re.fullmatch(r"--?(nnodes|nproc[-_]per[-_]node)(?:=(.*))?", w)
        if m:
            v = m.group(2)
            if v is None and i + 1 < len(words):
                i += 1
                v = words[i]
            got[m.group(1).replace("-", "_")] = v
        i += 1
    try:
        return int(got.get("nnodes", "1").split(":")[-1]) * int(got["nproc_per_node"])
    except (KeyError, ValueError):
        return None


def install_cuda_stub(arch):
    import torch

    props = types.SimpleNamespace(
        major=arch, minor=0, name="stub", total_memory=80 << 30, multi_processor_count=132
    )
    torch.cuda.get_device_properties = lambda *a, **k: props
    torch.cuda.get_device_capability = lambda *a, **k: (arch, 0)
    torch.cuda.current_device = lambda: "cpu"


class _Present:
    """Stands for a fused kernel that Transformer Engine would bring."""

    def __call__(self, *a, **k):
        raise RuntimeError("stub of a Transformer Engine symbol was called")


def install_te_stub(te_version):
    if not te_version:
        return
    from packaging.version import Version

    import megatron.core.utils as mu

    mu._te_version = Version(te_version)
    mu.get_te_version = lambda: Version(te_version)
    for mod, names in (
        (
            "megatron.core.models.common.embeddings.rope_utils",
            ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"),
        ),
        (
            "megatron.core.transformer.moe.moe_utils",
            (
                "fused_permute",
                "fused_permute_with_probs",
                "fused_sort_chunks_by_index",
                "fused_sort_chunks_by_index_with_probs",
                "fused_unpermute",
            ),
        ),
    ):
        try:
            m = __import__(mod, fromlist=["x"])
        except Exception:
            continue
        for n in names:
            if getattr(m, n, None) is None:
                setattr(m, n, _Present())
    # OptimizerConfig looks at the signature of TE's FusedAdam.
    if "transformer_engine" not in sys.modules:
        class FusedAdam:
            def __init__(
                self, params=None, master_weight_dtype=None, exp_avg_dtype=None,
                exp_avg_sq_dtype=None, use_decoupled_grad=False, store_param_remainders=False,
            ):
                pass

        te = types.ModuleType("transformer_engine")
        te.__version__ = te_version
        te.__path__ = []
        tep = types.ModuleType("transformer_engine.pytorch")
        tep.__path__ = []
        tepo = types.ModuleType("transformer_engine.pytorch.optimizers")
        tepo.FusedAdam = FusedAdam
        te.pytorch, tep.optimizers = tep, tepo
        return {
            "transformer_engine": te,
            "transformer_engine.pytorch": tep,
            "transformer_engine.pytorch.optimizers": tepo,
        }
    return {}


class Checker:
    def __init__(self, opts):
        self.o = opts
        self.stages = []
        self.warnings = []
        self.result = {}
        self.args = None

    def stage(self, name, fn):
        try:
            out = fn()
            self.stages.append({"stage": name, "ok": True})
            return out
        except SystemExit as e:
            if e.code in (0,):
                raise
            self.stages.append({"stage": name, "ok": False, "error": f"exit {e.code}: {self.tail()}"})
        except BaseException as e:
            tb = traceback.extract_tb(e.__traceback__)
            own = next((f for f in reversed(tb) if "megatron/" in f.filename), None)
            at = own or tb[-1]
            msg = str(e).strip()
            if not msg:
                msg = f"assertion without text: {at.line}"
            failed = {"stage": name, "ok": False, "error": f"{type(e).__name__}: {msg}"}
            if own:
                short = own.filename[own.filename.rfind("megatron/"):]
                failed["at"] = f"{short}:{own.lineno} {own.name}"
            self.stages.append(failed)
        raise Refused()

    def tail(self):
        return " ".join(self.o._err.getvalue().strip().splitlines()[-1:])

    # ---- stages -------------------------------------------------------------------------
    def parse(self, words):
        from megatron.training.arguments import parse_args

        sys.argv = ["pretrain_gpt.py"] + words
        # pretrain_gpt.py adds only ModelOpt flags, and those only where ModelOpt is installed
        self.args = parse_args()

    def validate(self):
        from megatron.training.arguments import validate_args

        r = validate_args(self.args, {"tokenizer_type": "GPT2BPETokenizer"})
        if r is not None:
            self.args = r

    def transformer(self):
        try:
            from megatron.training.argument_utils import core_transformer_config_from_args
        except ImportError:
            from megatron.training.arguments import core_transformer_config_from_args
        self.cfg = core_transformer_config_from_args(self.args)

    def ddp(self):
        import megatron.training.training as tr

        if hasattr(tr, "get_megatron_ddp_config"):
            tr.get_megatron_ddp_config(self.args)
        else:
            from megatron.core.distributed import DistributedDataParallelConfig as D
            import dataclasses

            D(**{f.name: getattr(self.args, f.name) for f in dataclasses.fields(D) if hasattr(self.args, f.name)})

    def optimizer(self):
        import dataclasses

        from megatron.core.optimizer import OptimizerConfig as C

        C(**{f.name: getattr(self.args, f.name) for f in dataclasses.fields(C) if hasattr(self.args, f.name)})

    def microbatches(self):
        import inspect

        import megatron.core.num_microbatches_calculator as nm

        a = self.args
        dp = a.data_parallel_size * getattr(a, "gtp_weight_remat_size", 1)
        known = {
            "rank": 0,
            "rampup_batch_size": getattr(a, "rampup_batch_size", None),
            "global_batch_size": a.global_batch_size,
            "micro_batch_size": a.micro_batch_size,
            "data_parallel_size": dp,
            "decrease_batch_size_if_needed": getattr(a, "decrease_batch_size_if_needed", False),
            "step_batch_size_schedule": getattr(a, "step_batch_size_schedule", None),
            "seq_length": a.seq_length,
        }
        sig = inspect.signature(nm.init_num_microbatches_calculator).parameters
        nm.init_num_microbatches_calculator(**{k: v for k, v in known.items() if k in sig})
        self.result["num_microbatches"] = nm.get_num_microbatches()

    def groups(self):
        import inspect

        import megatron.core.parallel_state as ps
        import torch.distributed as dist

        if self.o.no_groups:
            return
        a = self.args
        fake_world.start(a.world_size, self.o.rank)
        order = "tp-cp-ep-dp-pp"
        if getattr(a, "use_tp_pp_dp_mapping", False):
            order = "tp-cp-ep-pp-dp"
        sig = inspect.signature(ps.initialize_model_parallel).parameters
        known = {
            "tensor_model_parallel_size": a.tensor_model_parallel_size,
            "pipeline_model_parallel_size": a.pipeline_model_parallel_size,
            "virtual_pipeline_model_parallel_size": a.virtual_pipeline_model_parallel_size,
            "context_parallel_size": a.context_parallel_size,
            "hierarchical_context_parallel_sizes": getattr(a, "hierarchical_context_parallel_sizes", None),
            "expert_model_parallel_size": a.expert_model_parallel_size,
            "expert_tensor_parallel_size": getattr(a, "expert_tensor_parallel_size", None),
            "num_distributed_optimizer_instances": getattr(a, "num_distributed_optimizer_instances", 1),
            "gtp_remat_size": getattr(a, "gtp_weight_remat_size", 1),
            "expert_gtp_remat_size": getattr(a, "expert_gtp_weight_remat_size", 1),
            "hybrid_context_parallel": getattr(a, "hybrid_context_parallel", False),
            "order": order,
            "create_gloo_process_groups": False,
        }
        ps.initialize_model_parallel(**{k: v for k, v in known.items() if k in sig})
        if hasattr(a, "expert_tensor_parallel_size") and hasattr(ps, "get_expert_data_parallel_world_size"):
            self.result["expert_dp"] = ps.get_expert_data_parallel_world_size()
        g = {}
        for name, getter in (
            ("tp", "get_tensor_model_parallel_group"),
            ("cp", "get_context_parallel_group"),
            ("pp", "get_pipeline_model_parallel_group"),
            ("dp", "get_data_parallel_group"),
            ("ep", "get_expert_model_parallel_group"),
        ):
            try:
                g[name] = dist.get_process_group_ranks(getattr(ps, getter)())
            except Exception:
                continue
        self.result["groups_of_rank_%d" % self.o.rank] = {
            k: (v if len(v) <= 16 else v[:4] + ["..."] + v[-1:]) for k, v in g.items()
        }
        assert len(g.get("dp", [])) in (0, a.data_parallel_size)
        strided = {}
        for name in ("tp", "cp", "dp", "pp"):
            ranks = g.get(name) or [0]
            strided[name] = [len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 1]
        self.result["groups"] = strided

    def layers(self):
        a, cfg = self.args, self.cfg
        if getattr(a, "hybrid_layer_pattern", None):
            return self.hybrid_layers(a)
        if getattr(a, "is_hybrid_model", False):
            return
        import inspect

        from megatron.core.transformer.transformer_block import get_num_layers_to_build

        sig = inspect.signature(get_num_layers_to_build).parameters
        if "pp_rank" not in sig:
            return
        pp, vp = a.pipeline_model_parallel_size, a.virtual_pipeline_model_parallel_size or 1
        table = []
        for p in range(pp):
            row = []
            for v in range(vp):
                vs = v if vp > 1 else None
                layout = getattr(cfg, "pipeline_model_parallel_layout", None)
                if layout is not None:  # get_num_layers_to_build drops pp_rank for a layout
                    row.append(layout.get_num_layers_to_build(vp_stage=vs, pp_rank=p))
                else:
                    row.append(get_num_layers_to_build(cfg, vp_stage=vs, pp_rank=p))
            table.append(row)
        self.result["layers_per_stage"] = table
        total = sum(map(sum, table))
        assert total == a.num_layers, f"stages hold {total} layers, the model has {a.num_layers}"

    def hybrid_layers(self, a):
        """Layers of every stage by the cuts of a pattern, as HybridModel takes its segments."""
        try:
            from megatron.core.models.hybrid import hybrid_layer_allocation as allocation
        except ImportError:  # before 0.18
            from megatron.core.ssm import mamba_hybrid_layer_allocation as allocation

        main = allocation.parse_hybrid_pattern(a.hybrid_layer_pattern).main_pattern
        counts = [len(allocation.validate_segment_layers(x)) for x in main.split(allocation.Symbols.PIPE)]
        pp, vp = a.pipeline_model_parallel_size, a.virtual_pipeline_model_parallel_size or 1
        if len(counts) == pp * vp:  # without cuts the model slices it when it is built
            self.result["layers_per_stage"] = [[counts[v * pp + p] for v in range(vp)] for p in range(pp)]
        assert sum(counts) == a.num_layers, f"stages hold {sum(counts)} layers, the model has {a.num_layers}"

    def first_step(self):
        a, cfg = self.args, self.cfg
        m, pp = self.result["num_microbatches"], a.pipeline_model_parallel_size
        tp, cp = a.tensor_model_parallel_size, a.context_parallel_size
        moe = getattr(a, "num_experts", None)
        assert not (moe and tp > 1 and not a.sequence_parallel), (
            "MoE with TP > 1 needs --sequence-parallel (raised by MoELayer.forward in training)"
        )
        if a.sequence_parallel:
            assert a.seq_length % (tp * cp) == 0, f"--seq-length {a.seq_length} must be divisible by tp*cp = {tp * cp}"
        freq = getattr(a, "moe_layer_freq", 1)
        assert not moe or isinstance(freq, int) or len(freq) == a.num_layers, (
            f"Invalid length of moe_layer_pattern: {len(freq)}, expected {a.num_layers} (raised by"
            " get_gpt_decoder_layer_specs in training)"
        )
        dense = not moe or (freq != 1 if isinstance(freq, int) else not all(freq))
        assert not dense or a.ffn_hidden_size % tp == 0, (
            f"--ffn-hidden-size {a.ffn_hidden_size} must be divisible by tp {tp}"
        )
        etp = getattr(a, "expert_tensor_parallel_size", None) or tp
        if moe and getattr(a, "moe_ffn_hidden_size", None):
            assert a.moe_ffn_hidden_size % etp == 0, f"--moe-ffn-hidden-size must be divisible by etp {etp}"
        comm = getattr(a, "cp_comm_type", None) or ["p2p"]
        heads = a.num_attention_heads // tp
        kv = (a.num_query_groups if a.group_query_attention else a.num_attention_heads) // tp or 1
        for c in set(comm if isinstance(comm, list) else [comm]):
            n = {"a2a": cp, "a2a+p2p": (getattr(a, "hierarchical_context_parallel_sizes", None) or [1])[0]}.get(c, 1)
            assert heads % n == 0 and kv % n == 0, (
                f"--cp-comm-type {c}: {heads} heads and {kv} KV heads per TP rank must be divisible by {n}"
            )
        if a.virtual_pipeline_model_parallel_size:
            n = getattr(cfg, "microbatch_group_size_per_vp_stage", None) or pp
            assert pp <= n <= m, (
                f"interleaved schedule: microbatch-group-size-per-virtual-pipeline-stage {n} must lie in "
                f"[PP={pp}, M={m}]"
            )
            rest = m % n
            assert rest == 0 or rest >= pp, (
                f"interleaved schedule: {m} micro-batches leave a last group of {rest} < PP={pp}"
            )
        elif pp > 1 and m < pp:
            self.warnings.append(f"{m} micro-batches do not fill a pipeline of {pp} stages")

    def advisories(self):
        a = self.args
        if getattr(a, "rampup_batch_size", None):
            self.warnings.append("--rampup-batch-size is ignored by newer versions (use --step-batch-size-schedule)")

    def run(self, words):
        for name, fn in (
            ("parse", lambda: self.parse(words)),
            ("validate", self.validate),
            ("transformer", self.transformer),
            ("ddp", self.ddp),
            ("optimizer", self.optimizer),
            ("microbatches", self.microbatches),
            ("groups", self.groups),
            ("layers", self.layers),
            ("first step", self.first_step),
        ):
            self.stage(name, fn)
        self.advisories()

    def summary(self):
        a = self.args
        if a is None:
            return {}
        pick = {}
        for short, name in (
            ("world", "world_size"), ("tp", "tensor_model_parallel_size"),
            ("pp", "pipeline_model_parallel_size"), ("vpp", "virtual_pipeline_model_parallel_size"),
            ("cp", "context_parallel_size"), ("dp", "data_parallel_size"),
            ("ep", "expert_model_parallel_size"), ("etp", "expert_tensor_parallel_size"),
            ("micro_batch_size", "micro_batch_size"), ("global_batch_size", "global_batch_size"),
            ("seq_length", "seq_length"), ("num_layers", "num_layers"), ("hidden_size", "hidden_size"),
            ("ffn_hidden_size", "ffn_hidden_size"), ("num_attention_heads", "num_attention_heads"),
            ("num_query_groups", "num_query_groups"), ("kv_channels", "kv_channels"),
            ("num_experts", "num_experts"), ("sequence_parallel", "sequence_parallel"),
            ("tp_comm_overlap", "tp_comm_overlap"),
            ("use_distributed_optimizer", "use_distributed_optimizer"),
            ("overlap_grad_reduce", "overlap_grad_reduce"), ("overlap_param_gather", "overlap_param_gather"),
            ("recompute_granularity", "recompute_granularity"), ("recompute_method", "recompute_method"),
            ("num_distributed_optimizer_instances", "num_distributed_optimizer_instances"),
            ("grad_reduce_in_fp32", "grad_reduce_in_fp32"), ("cp_comm_type", "cp_comm_type"), ("fp8_recipe", "fp8_recipe"),
            ("recompute_num_layers", "recompute_num_layers"), ("recompute_modules", "recompute_modules"),
            ("cpu_offloading_num_layers", "cpu_offloading_num_layers"),
            ("use_megatron_fsdp", "use_megatron_fsdp"),
            ("optimizer_cpu_offload", "optimizer_cpu_offload"),
            ("optimizer_offload_fraction", "optimizer_offload_fraction"),
            ("data_parallel_sharding_strategy", "data_parallel_sharding_strategy"),
            ("params_dtype", "params_dtype"), ("grad_reduce_in_bf16", "grad_reduce_in_bf16"),
            ("accumulate_allreduce_grads_in_fp32", "accumulate_allreduce_grads_in_fp32"),
            ("megatron_fsdp_main_grads_dtype", "megatron_fsdp_main_grads_dtype"),
        ):
            if hasattr(a, name):
                pick[short] = getattr(a, name)
        if hasattr(a, "make_vocab_size_divisible_by"):
            mult = a.make_vocab_size_divisible_by * a.tensor_model_parallel_size
            v = getattr(a, "vocab_size", None)
            if v:
                pick["padded_vocab_size"] = -(-v // mult) * mult
        pick.update(self.result)
        return pick


class Refused(Exception):
    pass


def check_one(o, text, world, env_extra):
    """Check one launch text in this process (Megatron keeps globals: one check per process)."""
    import contextlib
    import io

    import megatron.core as mc

    env, launcher, words = split_launch_text(text)
    world = world or launcher_world_size(launcher)
    if not world:
        return 2, {"accepted": False, "error": "no world size: give --world-size"}
    env.update(env_extra)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(env)
    os.environ.update({"WORLD_SIZE": str(world), "RANK": str(o.rank), "LOCAL_RANK": "0"})
    out = io.StringIO()
    o._err = io.StringIO()
    c = Checker(o)
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(o._err):
        try:
            c.run(words)
        except Refused:
            code = 1
        except SystemExit:  # e.g. a removed flag: Megatron prints a line and exits with 0
            last = (out.getvalue().strip().splitlines() or [""])[-1]
            c.stages.append({"stage": "validate", "ok": False, "error": f"Megatron exited: {last}"})
            code = 1
    if o.verbose:
        sys.stderr.write(out.getvalue() + o._err.getvalue())
    notes = [l.strip() for l in (out.getvalue() + o._err.getvalue()).splitlines()
             if re.search(r"deprecat|Disabling|Setting args|is not set, using|overrid", l, re.I)
             and not l.lstrip().startswith("--") and " ...." not in l][:12]
    return code, {"accepted": code == 0, "megatron_core": getattr(mc, "__version__", "?"), "stages": c.stages,
                  "resolved": c.summary(), "warnings": c.warnings, "megatron_notes": notes}


def check_many(o):
    """One fork per case, so Megatron is imported once."""
    lines = sys.stdin if o.flags_file == "-" else open(o.flags_file)

    def check(case):
        o.gpu_arch = case.get("gpu_arch", o.gpu_arch)
        install_cuda_stub(o.gpu_arch)
        return check_one(o, case["flags"], case.get("world_size"), case.get("env") or {})[1]

    return forked.print_answers(lines, check, o.json)


def build_parser_once():
    """Keep Megatron's argument parser from one case to the next: building it takes 0.1 s."""
    import argparse

    import megatron.training.arguments as arguments

    built = arguments.add_megatron_arguments(
        argparse.ArgumentParser(description="Megatron-LM Arguments", allow_abbrev=False)
    )
    arguments.add_megatron_arguments = lambda parser: built


def form_rank_groups_with_numpy():
    """Replace Megatron's generator of rank groups by the same in numpy: seconds less at 16,384 ranks.

    Refuses to go on if the two differ on a few hundred small grids.
    """
    import functools
    import itertools

    import megatron.core.parallel_state as ps
    import numpy as np

    original = ps.generate_masked_orthogonal_rank_groups

    def groups(world_size, parallel_size, mask):
        inner = 1
        for size in parallel_size:
            inner *= size
        if world_size != inner:
            return original(world_size, parallel_size, mask)
        axes = range(len(parallel_size) - 1, -1, -1)  # axis of each size, the innermost being the last
        ranks = np.arange(world_size).reshape([parallel_size[i] for i in axes])
        kept = [axes[i] for i in axes if not mask[i]]
        grouped = [axes[i] for i in axes if mask[i]]
        size = int(np.prod([parallel_size[i] for i in axes if mask[i]]))
        return ranks.transpose(kept + grouped).reshape(-1, size).tolist()

    for sizes in itertools.product((1, 2, 3), (1, 2), (1, 3), (1, 2)):
        for mask in itertools.product((False, True), repeat=4):
            world = int(np.prod(sizes))
            if groups(world, list(sizes), list(mask)) != original(world, list(sizes), list(mask)):
                raise RuntimeError(f"rank groups of {sizes}, {mask} differ from Megatron's own")
    ps.generate_masked_orthogonal_rank_groups = groups
    if hasattr(ps, "is_torch_min_version"):  # asked for every group
        ps.is_torch_min_version = functools.cache(ps.is_torch_min_version)


def load(o):
    """Import Megatron and what every case needs."""
    import contextlib
    import io
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        import torch  # noqa: F401

        fake_world.skip_foreign_groups()
        import megatron.training.arguments  # noqa: F401
        import megatron.training.training  # noqa: F401  before the forks

        install_cuda_stub(o.gpu_arch)
        build_parser_once()
        form_rank_groups_with_numpy()
        sys.modules.update(install_te_stub(o.te_version) or {})


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("flags_file", nargs="?", default="-")
    ap.add_argument("--world-size", type=int, help="else torchrun's --nnodes x --nproc-per-node")
    ap.add_argument("--source", help="folder of an unpacked megatron-core or a Megatron-LM checkout; default: the installed one")
    ap.add_argument("--gpu-arch", type=int, default=9, help="compute capability major: 8 A100, 9 H100/H200, 10 B200")
    ap.add_argument("--te-version", default="2.14.0", help="Transformer Engine version to pretend; '' = none")
    ap.add_argument("--env", action="append", default=[], metavar="K=V", help="environment of the pretended run")
    ap.add_argument("--rank", type=int, default=0)
    ap.add_argument("--no-groups", action="store_true", help="skip the fake process groups")
    ap.add_argument("--json", action="store_true")
    ap.add_argument("--many", action="store_true",
                    help='FLAGS_FILE holds one JSON object a line: {"id", "flags", "world_size", "env", "gpu_arch"}')
    ap.add_argument("--options", action="store_true", help="print the options that this release knows")
    ap.add_argument("--verbose", action="store_true", help="show what Megatron prints")
    o = ap.parse_args()

    if o.source:
        sys.path.insert(0, os.path.abspath(o.source))
    try:
        load(o)
    except BaseException as e:
        traceback.print_exc(file=sys.__stderr__)
        print(f"the checker cannot load Megatron's argument parser: {e!r}", file=sys.__stderr__)
        return 2
    if o.options:
        forked.print_options("megatron")
        return 0
    if o.many:
        return check_many(o)
    text = sys.stdin.read() if o.flags_file == "-" else open(o.flags_file).read()
    code, rep = check_one(o, text, o.world_size, dict(kv.split("=", 1) for kv in o.env))
    if code == 2:
        print(rep["error"], file=sys.stderr)
    elif o.json:
        print(json.dumps(rep, indent=1, default=str))
    else:
        print(("ACCEPTED" if code == 0 else "REFUSED") + f" by megatron-core {rep['megatron_core']}")
        for s in rep["stages"]:
            print(f"  {'ok ' if s['ok'] else 'BAD'} {s['stage']}" + ("" if s["ok"] else f": {s['error']}  [{s.get('at','')}]"))
        for k, v in rep["resolved"].items():
            print(f"  {k} = {v}")
        for w in rep["warnings"]:
            print("  warning: " + w)
        for n in rep["megatron_notes"]:
            print("  note: " + n)
    return code


if __name__ == "__main__":
    sys.exit(main())
