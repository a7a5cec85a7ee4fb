#!/usr/bin/env python3
"""Ask DeepSpeed itself whether it accepts a JSON config. CPU only.

  check_deepspeed.py ds_config.json --world-size 64 [--tp 1 --pp 1 --sp 1 --ep 1] [--gpus-per-node 8]
  check_deepspeed.py ds_config.json --world-size 64 --engine      # also build the engine on a toy model
  ... --source DEEPSPEED_DIR     # a checkout instead of the installed package
  check_deepspeed.py CASES.jsonl --many --json   # one import, a fork per case; a JSON object a line:
      {"id", "json" (text), "world_size", "tp", "pp", "sp", "ep", "gpus_per_node", "pipeline", "model"}
      "pipeline" {"layers", "method"} asks for the layers per stage as PipelineModule would cut a list
      of embedding, blocks and head; "model" {"heads", "kv_heads", "seq_len", "n_experts"} for what Ulysses
      and AutoEP ask of it

Run, all of it DeepSpeed's own code: deepspeed.runtime.config.DeepSpeedConfig (batch triangle, ZeRO,
precision, removed keys, unknown keys inside the pydantic blocks; duplicate keys). The data-parallel
size it sees is what it would see in the pretended run, through an mpu stub: world/(tp*pp*sp) where tp is
an mpu's (--tp); a JSON tensor_parallel.autotp_size alone does not divide it, as in DeepSpeed.

DeepSpeed ignores an unknown TOP-LEVEL key silently. Here it is refused: a key counts as known when
DeepSpeedConfig looked it up (traced while it runs) or when another of its modules reads that literal
from the config (scanned in the package). A key that DeepSpeed marks deprecated is refused as well
(--allow-deprecated lets it through).

Engine-level conditions that DeepSpeed enforces only when the engine is built are re-checked here, each
naming where DeepSpeed enforces it; with --engine the engine itself is built in one CPU process
(the batch scaled down to that one rank; parallel degrees are then not exercised).
Exit 0 accepted, 1 refused, 2 the checker could not run.
"""
import argparse
import contextlib
import copy
import functools
import io
import json
import logging
import os
import sys
import traceback

import forked

sys.path.insert(0, forked.PROGRAMS)
import flag_probe  # noqa: E402


class Traced(dict):
    """A dict that remembers which keys were asked for."""

    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.asked = set()

    def __copy__(self):
        t = Traced(self)
        t.asked = self.asked
        return t

    copy = __copy__

    def get(self, k, d=None):
        self.asked.add(k)
        return super().get(k, d)

    def __getitem__(self, k):
        self.asked.add(k)
        return super().__getitem__(k)

    def __contains__(self, k):
        self.asked.add(k)
        return super().__contains__(k)


class Mpu:
    """The interface DeepSpeed wants of a model-parallel unit, without groups."""

    def __init__(self, dp, tp, pp):
        self.dp, self.tp, self.pp = dp, tp, pp

    def get_data_parallel_world_size(self):
        return self.dp

    def get_model_parallel_world_size(self):
        return self.tp

    def get_tensor_model_parallel_world_size(self):
        return self.tp

    def get_pipeline_model_parallel_world_size(self):
        return self.pp


@functools.lru_cache(maxsize=None)
class Log(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, r):
        self.lines.append((r.levelname, r.getMessage()))


def rules(cfg, raw, o, errs, warns):
    z = cfg.zero_config
    stage = int(z.stage)
    if o.pp > 1 and stage >= 2:
        errs.append("ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism [runtime/pipe/engine.py PipelineEngine.__init__]")
    if o.pp > 1 and raw.get("expert_parallel", {}).get("enabled"):
        warns.append("AutoEP with a pipeline: not exercised by this checker [runtime/engine.py _configure_expert_parallel]")
    hpz = int(getattr(z, "zero_hpz_partition_size", 1) or 1)
    if hpz > 1:
        if stage != 3:
            errs.append("zero_hpz_partition_size > 1 acts only in ZeRO-3 [runtime/engine.py, stage 3 branch]")
        if o.world_size % min(hpz, o.world_size):
            errs.append(f"zero_hpz_partition_size {hpz} must divide the world size {o.world_size} [utils/groups.py _create_zero_param_parallel_group]")
        elif o.gpus_per_node and hpz > o.gpus_per_node:
            warns.append(f"zero_hpz_partition_size {hpz} spans nodes of {o.gpus_per_node} GPUs: its use is lost")
    tpc = raw.get("tensor_parallel") or {}
    auto = int(tpc.get("autotp_size", 0) or 0)
    if auto and o.tp not in (1, auto):
        errs.append(f"tensor_parallel.autotp_size {auto} and --tp {o.tp} differ")
    if auto > 1 and o.pp > 1:
        warns.append("AutoTP together with DeepSpeed's pipeline engine is not exercised by this checker")
    sp = raw.get("sequence_parallel_size")
    if sp and "data_parallel_size" in raw and sp * raw["data_parallel_size"] != o.world_size:
        errs.append("sequence_parallel_size * data_parallel_size must be the world size [comm initialize_mesh_device]")
    ep = raw.get("expert_parallel") or {}
    if o.ep > 1 and not ep.get("enabled") and stage == 3:
        errs.append("native DeepSpeed MoE is not supported with ZeRO-3 (AutoEP is) [runtime/engine.py]")
    if o.ep > 1 and o.dp % o.ep:
        errs.append(f"expert parallel size {o.ep} must divide the data-parallel size {o.dp} [utils/groups.py]")
    off_p, off_o = z.offload_param, z.offload_optimizer
    if off_p is not None and str(getattr(off_p, "device", "none")) not in ("none", "OffloadDeviceEnum.none") and stage != 3:
        errs.append("offload_param needs ZeRO-3 [runtime/zero/config.py]")
    if off_o is not None and str(getattr(off_o, "device", "none")) == "nvme" and stage != 3:
        errs.append("offload_optimizer.device=nvme needs ZeRO-3 [runtime/zero/offload_config.py]")
    for k in ("zero_quantized_weights", "zero_quantized_gradients"):
        if getattr(z, k, False) and stage != 3:
            errs.append(f"{k} (ZeRO++) acts only in ZeRO-3")


class EngineStub:
    """An engine of which only the configuration exists; its methods are DeepSpeedEngine's own."""

    def __init__(self, cfg, pipeline):
        from deepspeed.runtime.engine import DeepSpeedEngine

        self._config, self.global_rank, self.pipeline_parallelism = cfg, 0, pipeline
        self._of = DeepSpeedEngine

    def __getattr__(self, name):
        import types

        found = getattr(self._of, name)
        return types.MethodType(found, self) if callable(found) else found


def check_optimizer(cfg, raw, o):
    """DeepSpeedEngine._do_optimizer_sanity_check, on an optimizer over one weight."""
    import torch

    kind = ((raw.get("optimizer") or {}).get("type") or "").lower()
    params = (raw.get("optimizer") or {}).get("params") or {}
    if "max_grad_norm" in params:
        raise ValueError("'max_grad_norm' is not supported as an optimizer parameter [runtime/engine.py _configure_basic_optimizer]")
    classes = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad,
               "rmsprop": torch.optim.RMSprop}
    if kind in classes:
        basic = classes[kind]([torch.nn.Parameter(torch.zeros(1))], lr=1e-4)
        EngineStub(cfg, o.pp > 1)._do_optimizer_sanity_check(basic)


def check_auto_ep(cfg, o, tp):
    """DeepSpeed's own validation of AutoEP, before and after it has seen the model."""
    import types

    given = getattr(cfg, "expert_parallel_config", None)
    if given is None or not given.enabled:
        return
    from deepspeed.module_inject import auto_ep_config as ep

    z = cfg.zero_config
    ep.validate_autoep_config(
        given, o.world_size, o.pp, tp, o.sp, zero_stage=int(z.stage),
        deepcompile_enabled=bool(getattr(getattr(cfg, "compile_config", None), "deepcompile", False)),
        tp_preset_model=getattr(cfg.tensor_parallel_config, "preset_model", None),
        use_data_before_expert_parallel=cfg.use_data_before_expert_parallel_,
        zero_offload_optimizer=z.offload_optimizer is not None, zero_offload_param=z.offload_param is not None)
    n_experts = (o.model or {}).get("n_experts")
    if n_experts:
        layer = types.SimpleNamespace(
            num_experts=n_experts, moe_module_name="moe", score_apply="post", num_expert_groups=None,
            num_limited_groups=None)
        ep.validate_autoep_post_detection(given, [layer])
    if int(z.stage) == 3:
        where = "[runtime/engine.py _validate_zero3_moe_compatibility]"
        if o.sp > 1:
            raise ValueError(f"AutoEP with ZeRO Stage 3 does not support sequence parallelism {where}")
        if z.zero_quantized_gradients or z.zero_hpz_partition_size > 1:
            raise ValueError(f"AutoEP with ZeRO Stage 3 supports neither quantized gradients nor hpZ {where}")


def check_ulysses(o):
    """What UlyssesSPAttentionHF and the data loader ask of the model."""
    m, sp = o.model or {}, o.sp
    if sp <= 1 or not m.get("heads"):
        return
    where = "[runtime/sequence_parallel/ulysses_sp.py]"
    if m["heads"] % sp:
        raise ValueError(f"Attention head count {m['heads']} is not divisible by SP size {sp} {where}")
    kv = m["kv_heads"]
    if kv % sp and sp % kv:
        raise ValueError(f"KV attention head count {kv} is not divisible by SP size {sp} or vice versa {where}")
    if m["seq_len"] % sp:
        raise ValueError(f"sequence of {m['seq_len']} tokens is not divisible by SP size {sp} {where}")


def build_engine(raw, o):
    os.environ["DS_ACCELERATOR"] = "cpu"
    for k, v in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(o.port)).items():
        os.environ[k] = v
    import deepspeed
    import torch

    c = copy.deepcopy(raw)
    micro = o._resolved["train_micro_batch_size_per_gpu"]
    gas = o._resolved["gradient_accumulation_steps"]
    c["train_micro_batch_size_per_gpu"], c["gradient_accumulation_steps"] = micro, gas
    c["train_batch_size"] = micro * gas
    for k in ("sequence_parallel_size", "data_parallel_size", "expert_parallel"):
        c.pop(k, None)
    if "tensor_parallel" in c:
        c["tensor_parallel"]["autotp_size"] = 0
    c.get("zero_optimization", {}).pop("zero_hpz_partition_size", None)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    kw = {}
    if "optimizer" not in c:
        kw["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-4)
    eng, *_ = deepspeed.initialize(model=model, config=c, **kw)
    return type(eng.optimizer).__name__


def layers_per_stage(pipeline, pp):
    """The blocks on each stage, cut by the functions that PipelineModule._partition_layers calls."""
    from deepspeed.runtime import utils

    layers, method = pipeline["layers"], pipeline["method"]
    if method == "uniform":
        parts = utils.partition_uniform(num_items=layers + 2, num_parts=pp)
    elif method.startswith("type:"):
        parts = utils.partition_balanced(weights=[0] + [1] * layers + [0], num_parts=pp)
    else:
        raise ValueError(f"partition_method {method!r} is not re-checked here")
    edge = layers + 1  # position of the head; the embedding is at 0
    return [min(int(b), edge) - max(int(a), 1) for a, b in zip(parts, parts[1:])]


def load():
    """Import DeepSpeed with its log silenced; -> (module, log handler)."""
    import deepspeed
    import deepspeed.runtime.engine  # noqa: F401  before the forks
    import torch
    from deepspeed.utils import logger

    # Imports for seconds the first time, which the forks would repeat.
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    with contextlib.suppress(ImportError):  # since 0.19.2
        import deepspeed.module_inject.auto_ep_config  # noqa: F401
    with contextlib.suppress(ImportError):
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
    log = Log()
    logger.addHandler(log)
    for h in list(logger.handlers):
        if h is not log:
            logger.removeHandler(h)
    logger.propagate = False
    return deepspeed, log


def check_one(text, o, deepspeed, log):
    """Check one JSON text in this process (the pretended world is patched in: one check per process)."""
    import deepspeed.comm as dist
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.config_utils import dict_raise_error_on_duplicate_keys

    errs, warns, resolved, version = [], [], {}, deepspeed.__version__
    try:
        raw = json.loads(text, object_pairs_hook=dict_raise_error_on_duplicate_keys)
    except ValueError as e:
        errs.append(f"JSON: {e}")
        raw = None
    if raw is not None:
        for kv in o.auto:
            k, _, v = kv.partition("=")
            node, parts = raw, k.split(".")
            for p in parts[:-1]:
                node = node.setdefault(p, {})
            node[parts[-1]] = json.loads(v)
        left = [k for k in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                            "gradient_clipping") if raw.get(k) == "auto"]
        if left:
            errs.append(f'"auto" stands for a value only under the Hugging Face Trainer; give --auto for {left}')
        o.sp = o.sp or int(raw.get("sequence_parallel_size", 1) or 1)
        auto_tp = int((raw.get("tensor_parallel") or {}).get("autotp_size", 0) or 0)
        tp = max(o.tp, auto_tp, 1)
        if o.world_size % (tp * o.pp * o.sp):
            errs.append(f"world size {o.world_size} is not divisible by tp*pp*sp = {tp * o.pp * o.sp}")
        o.dp = o.world_size // (tp * o.pp * o.sp)
        # AutoTP gets no mpu: DeepSpeedConfig then divides the batch by the WHOLE world
        seen = o.world_size // (o.tp * o.pp * o.sp)
        if seen != o.dp and "train_batch_size" in raw:
            warns.append(f"AutoTP: train_batch_size is checked against {seen} ranks, though only {o.dp} hold "
                         f"different data; give micro batch and accumulation steps only")
    if not errs:
        dist.get_rank = lambda group=None: 0
        dist.get_world_size = lambda group=None: o.world_size
        t = Traced(copy.deepcopy(raw))
        try:
            cfg = DeepSpeedConfig(t, mpu=Mpu(seen, o.tp, o.pp))
        except BaseException as e:
            tb = traceback.extract_tb(e.__traceback__)
            at = next((f for f in reversed(tb) if "deepspeed" in f.filename), tb[-1])
            msg = " ".join(str(e).split()) or at.line
            errs.append(f"{type(e).__name__}: {msg} [{at.filename[at.filename.rfind('deepspeed'):]}:{at.lineno} {at.name}]")
            cfg = None
        if cfg is not None:
            z = cfg.zero_config
            resolved = {
                "world_size": o.world_size, "dp": o.dp, "dp_seen_by_config": seen, "tp": tp, "pp": o.pp, "sp": o.sp,
                "train_batch_size": cfg.train_batch_size,
                "train_micro_batch_size_per_gpu": cfg.train_micro_batch_size_per_gpu,
                "gradient_accumulation_steps": cfg.gradient_accumulation_steps,
                "zero_stage": int(z.stage), "zero_hpz_partition_size": getattr(z, "zero_hpz_partition_size", None),
                "overlap_comm": z.overlap_comm, "reduce_bucket_size": int(z.reduce_bucket_size),
                "offload_optimizer": str(getattr(z.offload_optimizer, "device", None)),
                "offload_param": str(getattr(z.offload_param, "device", None)),
                "cpu_checkpointing": bool(cfg.activation_checkpointing_config.cpu_checkpointing),
                "bf16": bool(getattr(getattr(cfg, "bfloat16_config", None), "enabled", getattr(cfg, "bfloat16_enabled", False))),
                "fp16": bool(getattr(getattr(cfg, "float16_config", None), "enabled", getattr(cfg, "fp16_enabled", False))),
                "optimizer": cfg.optimizer_name,
                "gradient_clipping": cfg.gradient_clipping,
                "grad_accum_dtype": cfg.grad_accum_dtype,
                "communication_data_type": str(cfg.communication_data_type).replace("torch.", ""),
            }
            o._resolved = resolved
            if o.pipeline:
                resolved["layers_per_stage"] = layers_per_stage(o.pipeline, o.pp)
            known = t.asked | flag_probe.keys_read(os.path.dirname(deepspeed.__file__))
            for k in raw:
                if k not in known:
                    errs.append(f"unknown top-level key {k!r}: DeepSpeed {version} never reads it")
            rules(cfg, raw, o, errs, warns)
            for check in (lambda: check_optimizer(cfg, raw, o), lambda: check_auto_ep(cfg, o, tp), lambda: check_ulysses(o)):
                try:
                    check()
                except Exception as e:
                    tb = traceback.extract_tb(e.__traceback__)
                    at = next((f for f in reversed(tb) if "deepspeed/" in f.filename), None)
                    where = f" [{at.filename[at.filename.rfind('deepspeed/'):]}:{at.lineno} {at.name}]" if at else ""
                    errs.append(f"engine: {type(e).__name__}: {' '.join(str(e).split())}{where}")
            ep = getattr(cfg, "expert_parallel_config", None)
            resolved["ep"] = ep.autoep_size if ep is not None and ep.enabled else 1
    for lvl, m in log.lines:
        if "deprecated" in m.lower():
            (warns if o.allow_deprecated else errs).append("deprecated: " + m)
        elif lvl in ("WARNING", "ERROR"):
            warns.append(m)
    if o.engine and not errs:
        import importlib

        importlib.reload(dist)
        try:
            resolved["engine_optimizer"] = build_engine(raw, o)
        except BaseException as e:
            tb = traceback.extract_tb(e.__traceback__)
            at = next((f for f in reversed(tb) if "deepspeed" in f.filename), tb[-1])
            errs.append(f"engine: {type(e).__name__}: {' '.join(str(e).split()) or at.line} "
                        f"[{at.filename[at.filename.rfind('deepspeed'):]}:{at.lineno}]")
    return {"accepted": not errs, "deepspeed": version, "errors": errs, "warnings": warns, "resolved": resolved}


def many_options(o, case):
    """The options of one case: what the command line says, with the case's values over it."""
    one = copy.copy(o)
    for k in ("world_size", "tp", "pp", "sp", "ep", "gpus_per_node", "pipeline", "model"):
        if case.get(k) is not None:
            setattr(one, k, case[k])
    one.auto = [*o.auto, *(f"{k}={json.dumps(v)}" for k, v in (case.get("auto") or {}).items())]
    return one


def check_many(o, deepspeed, log):
    """One fork per case, so DeepSpeed is imported once."""
    flag_probe.keys_read(os.path.dirname(deepspeed.__file__))  # once, before the forks
    lines = sys.stdin if o.json_file == "-" else open(o.json_file)

    def check(case):
        sys.stdout = io.StringIO()
        return check_one(case["json"], many_options(o, case), deepspeed, log)

    return forked.print_answers(lines, check, o.json)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("json_file", nargs="?", default="-")
    ap.add_argument("--world-size", type=int)
    ap.add_argument("--tp", type=int, default=1)
    ap.add_argument("--pp", type=int, default=1)
    ap.add_argument("--sp", type=int, default=0, help="Ulysses size; default: the file's sequence_parallel_size or 1")
    ap.add_argument("--ep", type=int, default=1)
    ap.add_argument("--gpus-per-node", type=int, default=8)
    ap.add_argument("--source")
    ap.add_argument("--allow-deprecated", action="store_true")
    ap.add_argument("--auto", action="append", default=[], metavar="KEY=VALUE",
                    help='value the HF Trainer would fill in for an "auto" key, e.g. train_micro_batch_size_per_gpu=2')
    ap.add_argument("--engine", action="store_true")
    ap.add_argument("--port", type=int, default=29577)
    ap.add_argument("--json", action="store_true")
    ap.add_argument("--options", action="store_true", help="print the keys that this release knows")
    ap.add_argument("--many", action="store_true", help="the file holds one case a line, see above")
    ap.set_defaults(pipeline=None, model=None)
    o = ap.parse_args()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("DS_BUILD_OPS", "0")
    if o.source:
        sys.path.insert(0, os.path.abspath(o.source))

    real = sys.stdout
    sys.stdout = io.StringIO()
    try:
        deepspeed, log = load()
    except BaseException as e:
        print(f"the checker cannot load DeepSpeed: {e!r}", file=sys.stderr)
        return 2
    finally:
        sys.stdout = real
    if o.options:
        forked.print_options("deepspeed")
        return 0
    if o.many:
        return check_many(o, deepspeed, log)
    if not o.world_size:
        ap.error("--world-size is required")
    text = sys.stdin.read() if o.json_file == "-" else open(o.json_file).read()
    sys.stdout = io.StringIO()
    try:
        rep = check_one(text, o, deepspeed, log)
    finally:
        sys.stdout = real
    errs, warns, resolved, version = rep["errors"], rep["warnings"], rep["resolved"], rep["deepspeed"]
    if o.json:
        print(json.dumps(rep, indent=1, default=str))
    else:
        print(("ACCEPTED" if not errs else "REFUSED") + f" by deepspeed {version}")
        for e in errs:
            print("  BAD " + e)
        for w in warns:
            print("  warning: " + w)
        for k, v in resolved.items():
            print(f"  {k} = {v}")
    return 0 if not errs else 1


if __name__ == "__main__":
    sys.exit(main())
