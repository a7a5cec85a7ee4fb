#!/usr/bin/env python3
"""Ask torchtitan itself whether it accepts a configuration. CPU only.

torchtitan up to 0.2.2 reads TOML job files; from 0.3.0 on a configuration is a Python function that
returns Trainer.Config, chosen with --module/--config.

  check_torchtitan.py recipe.py --config my_fn --world-size 64      # 0.3.0 or later
  check_torchtitan.py job.toml --world-size 64 --source TITAN_DIR   # an unpacked 0.2.2
  check_torchtitan.py --module llama3 --config llama3_8b --world-size 64 -- --parallelism.tensor_parallel_degree 2
  check_torchtitan.py CASES.jsonl --many --json [--source ...]      # one import, a fork per case; a line:
      {"id", "text" or "file", "kind" ("recipe" or "toml"), "config", "world_size", "args", "capability",
       "modules" {name: text}}; "modules" are written beside the text and can be imported by it

Run, torchtitan's and torch's own code:
  parse      ConfigManager: unknown keys are refused, the config dataclasses' own checks run
  mesh       ParallelDims and its build_mesh over a pretended world of the right size
  model      update_from_config (heads % tp, RoPE length, weight tying with a pipeline ...)
  converters 0.2.2: the classes of model.converters (0.3.0 runs them in the model registry)
  pipeline   pipeline_llm with the model chunks left out: number of stages, layers of each, torch's
             schedule class with its own conditions on micro-batches
Re-checked here, since torchtitan checks it only in a running Trainer: sequence % (tp * 2cp), global
batch % (local batch * dp), and what no code of it checks before the first step fails: widths % tp,
experts % ep. Exit 0 accepted, 1 refused, 2 the checker could not run.
"""
import argparse
import contextlib
import importlib
import inspect
import io
import json
import os
import re
import sys
import tempfile
import traceback
import types

import fake_world
import forked


def get(o, *names, default=None):
    for n in names:
        if hasattr(o, n):
            return getattr(o, n)
    return default


def load(source):
    """Import torchtitan and what every case needs; -> version."""
    if source:
        sys.path.insert(0, os.path.abspath(source))
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import torch.distributed  # noqa: F401

    fake_world.skip_foreign_groups()
    import torchtitan.config
    import torchtitan.distributed.parallel_dims
    import torchtitan.distributed.pipeline_parallel

    if hasattr(torchtitan.config, "JobConfig"):  # 0.2
        import torchtitan.protocols.train_spec as specs

        names = ("llama3", "qwen3", "deepseek_v3", "llama4", "gpt_oss")
        for name in names:
            with contextlib.suppress(Exception):
                specs.get_train_spec(name)
    else:
        import torchtitan.trainer  # noqa: F401

        for name in ("llama3", "qwen3", "deepseek_v3", "gpt_oss"):
            with contextlib.suppress(Exception):
                importlib.import_module(f"torchtitan.models.{name}.config_registry")
    leave_model_chunks_out()
    if source:
        folders = [f for f in os.listdir(source) if re.fullmatch(r"torchtitan-.*\.dist-info", f)]
        return folders[0].split("-")[1].removesuffix(".dist") if folders else "checkout"
    from importlib.metadata import version

    return version("torchtitan")


SPLIT = {}
"""What the stubbed module split was asked for: {"stages": [[module names]]}."""


def leave_model_chunks_out():
    """Let pipeline_llm form stages without modules, and torch's schedules without their messages."""
    import torch.distributed.pipelining.schedules as schedules
    import torchtitan.distributed.pipeline_parallel as pipeline

    name = "_pipeline_module_split" if hasattr(pipeline, "_pipeline_module_split") else "pipeline_module_split"
    indices = get(pipeline, "_get_pp_rank_to_stage_indices_mapping")

    def split(whole_model, pp_mesh, pp_schedule, device, module_names_per_stage, **_):
        n_stages, pp = len(module_names_per_stage), pp_mesh.size()
        SPLIT["stages"] = module_names_per_stage
        if indices is None:
            assert n_stages % pp == 0, f"num_stages {n_stages} must be evenly divisible by pp_degree {pp}"
            # torchtitan 0.2: the function is local to the split
            v = schedules.get_schedule_class(pp_schedule) in (schedules.ScheduleZBVZeroBubble, schedules.ScheduleDualPipeV)
            if v:
                assert n_stages // pp == 2, f"v schedules assume 2 stages per rank, got {n_stages // pp}"
            of_rank = lambda r: (r, n_stages - 1 - r) if v else tuple(r + s * pp for s in range(n_stages // pp))
        else:
            of_rank = lambda r: indices(r, pp, pp_schedule, n_stages)
        SPLIT["of_rank"] = [list(of_rank(r)) for r in range(pp)]
        stages = [
            types.SimpleNamespace(
                stage_index=i, num_stages=n_stages, group_size=pp, group_rank=0, is_first=i == 0,
                is_last=i == n_stages - 1, has_backward=False, submod=None)
            for i in of_rank(0)
        ]
        return stages, [None] * len(stages)

    setattr(pipeline, name, split)
    schedules._PipelineScheduleRuntime._prepare_schedule_with_comms = lambda self, actions, format="compute_only": None


class Report:
    """Errors in the order in which the framework would raise them, with where."""

    def __init__(self, version):
        self.version, self.errors, self.warnings, self.resolved = version, [], [], {}

    @contextlib.contextmanager
    def stage(self, name, quiet=None):
        try:
            yield
        except SystemExit:
            said = " ".join(quiet.getvalue().split())[-400:] if quiet else ""
            self.errors.append(f"{name}: command line refused: {said}")
        except Exception as e:
            tb = traceback.extract_tb(e.__traceback__)
            at = next((f for f in reversed(tb) if "/torchtitan" in f.filename or "/torch/" in f.filename), None)
            msg = " ".join(str(e).split()) or (at.line if at else "")
            pos = f" [{at.filename[at.filename.rfind('torch'):]}:{at.lineno} {at.name}]" if at else ""
            self.errors.append(f"{name}: {type(e).__name__}: {msg}{pos}")

    def must(self, ok, text):
        if not ok:
            self.errors.append("first step: " + text)

    def answer(self):
        return {"accepted": not self.errors, "torchtitan": self.version, "errors": self.errors,
                "warnings": self.warnings, "resolved": self.resolved}


def pretend_capability(major, minor):
    """Let the quantisation converters see this GPU."""
    import torch

    torch.cuda.get_device_capability = lambda *a, **k: (major, minor)
    for name, module in list(sys.modules.items()):
        if name.startswith("torchtitan") and hasattr(module, "has_cuda_capability"):
            module.has_cuda_capability = lambda a, b: (major, minor) >= (a, b)


def unknown_toml_keys(path):
    """The dataclasses ignore keys that they do not have: name those of a file."""
    import dataclasses
    import tomllib

    import torchtitan.config as tc

    with open(path, "rb") as f:
        data = tomllib.load(f)
    if data.get("job", {}).get("custom_config_module"):
        return []

    def walk(instance, body, prefix):
        known = {f.name for f in dataclasses.fields(instance)}
        for key, value in body.items():
            where = f"{prefix}{key}"
            if key not in known:
                yield where
            elif isinstance(value, dict) and dataclasses.is_dataclass(getattr(instance, key)):
                yield from walk(getattr(instance, key), value, where + ".")

    return list(walk(tc.JobConfig(), data, ""))


def parse(case, report, folder):
    """-> the parsed configuration, or None."""
    from torchtitan.config import ConfigManager

    quiet = io.StringIO()
    extra = list(case.get("args") or [])
    path = case.get("file")
    toml = case.get("kind") == "toml" or bool(path and path.endswith(".toml"))
    if case.get("text") is not None:
        path = os.path.join(folder, "job.toml" if toml else "planner_recipe_under_check.py")
        with open(path, "w") as f:
            f.write(case["text"])
    for name, text in (case.get("modules") or {}).items():
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    if path:
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    cfg = None
    with report.stage("parse", quiet), contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
        if toml:
            import torchtitan.config as tc

            if not hasattr(tc, "JobConfig"):
                raise ValueError("this torchtitan has no TOML job files (0.3.0 removed them)")
            report.errors += [f"parse: unknown TOML key {key}" for key in unknown_toml_keys(path)]
            cfg = ConfigManager().parse_args(["--job.config_file", os.path.abspath(path), *extra])
            if cfg.experimental.custom_import:
                importlib.import_module(cfg.experimental.custom_import)
        else:
            module = os.path.splitext(os.path.basename(path))[0] if path else case["module"]
            cfg = ConfigManager().parse_args(["--module", module, "--config", case["config"], *extra])
    return cfg


def mesh_of(cfg, world, report):
    """-> ParallelDims with its mesh over a pretended world, or None."""
    from torchtitan.distributed.parallel_dims import ParallelDims

    p, pd = cfg.parallelism, None
    with report.stage("mesh"):
        known = dict(
            dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree,
            cp=p.context_parallel_degree, tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree,
            ep=p.expert_parallel_degree, etp=get(p, "expert_tensor_parallel_degree"),
            spmd_backend=get(p, "spmd_backend"), world_size=world)
        takes = inspect.signature(ParallelDims).parameters
        pd = ParallelDims(**{k: v for k, v in known.items() if k in takes and v is not None})
        report.resolved.update(
            world=world, dp_replicate=pd.dp_replicate, dp_shard=pd.dp_shard, cp=pd.cp, tp=pd.tp, pp=pd.pp, ep=pd.ep,
            etp=get(pd, "etp", default=1), dp=pd.dp_replicate * pd.dp_shard)
        fake_world.start(world)
        pd.build_mesh()
    return pd


def model_of(cfg, report):
    """-> the model's configuration with the job's values in it, or None."""
    model = None
    with report.stage("model"):
        spec = get(cfg, "model_spec")
        if spec is not None:
            model = spec.model
            model.update_from_config(config=cfg)
        else:
            from torchtitan.protocols.train_spec import get_train_spec

            spec = get_train_spec(cfg.model.name)
            if cfg.model.flavor not in spec.model_args:
                raise ValueError(f"model {cfg.model.name} has no flavor {cfg.model.flavor!r}; has {sorted(spec.model_args)}")
            model = spec.model_args[cfg.model.flavor]
            model.update_from_config(cfg)
    return model


def widths(model):
    """-> {"heads", "kv_heads", "ffn", "expert_ffn", "n_experts", "layers", "hidden", "vocab"} of either release's model."""
    found = {"hidden": get(model, "dim"), "vocab": get(model, "vocab_size")}
    layers = get(model, "layers")
    if layers is None:  # 0.2: numbers
        found["layers"] = get(model, "n_layers")
        found["heads"] = get(model, "n_heads")
        found["kv_heads"] = get(model, "n_kv_heads") or found["heads"]
        moe = get(model, "moe_args")
        dense = get(model, "hidden_dim", "inter_dim")
        if dense is None and hasattr(model, "multiple_of"):
            dense = int(2 * 4 * model.dim / 3)
            if model.ffn_dim_multiplier is not None:
                dense = int(model.ffn_dim_multiplier * dense)
            dense = model.multiple_of * -(-dense // model.multiple_of)
        found["ffn"] = dense
        if moe is not None and get(model, "moe_enabled", default=True):
            found["n_experts"], found["expert_ffn"] = moe.num_experts, get(model, "moe_inter_dim")
        return found
    found["layers"] = len(layers)
    first = next((x.attention for x in layers if get(x, "attention") is not None), None)
    found["heads"] = get(first, "n_heads")
    found["kv_heads"] = get(first, "n_kv_heads") or found["heads"]
    for layer in layers:
        ffn, moe = get(layer, "feed_forward"), get(layer, "moe")
        if ffn is not None and get(ffn, "w2") is not None:
            found["ffn"] = ffn.w2.in_features
        if moe is not None:
            found["n_experts"] = get(moe, "num_experts") or get(get(moe, "routed_experts"), "num_experts")
            found["expert_ffn"] = get(moe, "hidden_dim") or get(get(moe, "routed_experts"), "hidden_dim")
    return found


def check_batch(cfg, pd, report):
    """What the Trainer checks once it runs."""
    p, t = cfg.parallelism, cfg.training
    dp = pd.dp_replicate * pd.dp_shard
    sp = get(p, "enable_sequence_parallel", default=True)
    divisor = (pd.tp if sp else 1) * (2 * pd.cp if pd.cp > 1 else 1)
    local, batch, seq = t.local_batch_size, t.global_batch_size, t.seq_len
    report.must(seq % divisor == 0, f"training.seq_len {seq} must be divisible by {divisor} (tp * 2cp) [trainer.py]")
    batch = local * dp if batch < 0 else batch
    report.must(local > 0 and batch > 0, f"training.local_batch_size {local}, global_batch_size {batch} [trainer.py]")
    whole = local > 0 and batch % (local * dp) == 0
    report.must(whole, f"training.global_batch_size {batch} must be a multiple of local_batch_size {local} * dp {dp} [trainer.py]")
    n_micro = local // get(p, "pipeline_parallel_microbatch_size", default=1) if pd.pp > 1 else 1
    accumulation = batch // (local * dp) if whole else None
    report.resolved.update(
        local_batch_size=local, global_batch_size=batch, seq_len=seq, sequence_parallel=bool(sp and pd.tp > 1),
        gradient_accumulation_steps=accumulation, pipeline_microbatches=n_micro)


def single_stage(name):
    """Whether a schedule runs one stage a rank."""
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

    return issubclass(get_schedule_class(name), PipelineScheduleSingle)


def check_sharding(cfg, pd, report):
    """What the FSDP wrapper asks of its policy."""
    with report.stage("sharding"):
        policy = cfg.parallelism.fsdp_reshard_after_forward
        fsdp = sys.modules.get("torchtitan.distributed.fsdp")
        if hasattr(fsdp, "get_fsdp_reshard_after_forward_policy"):
            fsdp.get_fsdp_reshard_after_forward_policy(policy, pd.pp > 1)
        elif policy not in ("default", "always", "never"):  # 0.2: inside apply_fsdp of each model
            raise ValueError(f"Invalid reshard_after_forward_policy: {policy}.")


def check_pipeline(cfg, pd, model, version, report):
    """pipeline_llm itself, without the model's chunks."""
    import torch
    import torchtitan.distributed.pipeline_parallel as pipeline

    if pd.pp == 1 or model is None:
        return
    p = cfg.parallelism
    with report.stage("pipeline"):
        loss = lambda *a, **k: None
        if hasattr(cfg, "model_spec"):
            if not cfg.model_spec.pipelining_fn:
                raise RuntimeError(f"Pipeline Parallel is enabled but {cfg.model_spec.name} does not support pipelining")
            pipeline.pipeline_llm(
                None, parallel_dims=pd, training=cfg.training, parallelism=p, compile_config=cfg.compile,
                ac_config=cfg.activation_checkpoint, dump_folder="", device=torch.device("cpu"), model_config=model,
                parallelize_fn=lambda m, **_: m, loss_fn=loss)
        else:
            pipeline.pipeline_llm(None, pd, cfg, torch.device("cpu"), model, lambda m, *_: m, loss)
        parts = SPLIT["stages"]
        counts = [sum(x.startswith("layers.") for x in part) for part in parts]
        held = [x for part in parts for x in part if x.startswith("layers.")]
        layers = widths(model)["layers"]
        report.resolved.update(
            schedule=p.pipeline_parallel_schedule, stages=len(parts), vpp=len(parts) // pd.pp, layers_per_stage=counts,
            stages_of_rank=SPLIT["of_rank"])
        if sorted(held) != sorted(f"layers.{i}" for i in range(layers)):
            report.warnings.append(f"the stages hold {len(held)} layers, the model has {layers}: torchtitan does not say")
        report.must(len(parts) == pd.pp or not single_stage(p.pipeline_parallel_schedule),
                    f"{p.pipeline_parallel_schedule} runs 1 stage a rank and leaves out the others, got {len(parts) // pd.pp}"
                    " [pipeline_parallel.py, stages[0]]")
        m = report.resolved["pipeline_microbatches"]
        if m < len(parts):
            report.warnings.append(f"{m} micro-batches for {len(parts)} stages: bubble")


def check_widths(pd, model, report):
    """What DTensor or the grouped GEMM cannot split evenly, noticed when the model is built or run."""
    w = widths(model)
    report.resolved.update({k: v for k, v in w.items() if v is not None})
    etp = get(pd, "etp", default=1) if pd.ep > 1 else pd.tp
    for key, name, over in (("heads", "attention heads", pd.tp), ("kv_heads", "KV heads", pd.tp),
                            ("ffn", "FFN width", pd.tp), ("n_experts", "experts", pd.ep), ("expert_ffn", "expert width", etp)):
        if w.get(key):
            report.must(w[key] % over == 0, f"{w[key]} {name} over {over} ranks")
    if pd.ep > 1 and not w.get("n_experts"):
        report.warnings.append(f"expert_parallel_degree {pd.ep} of a model without experts has no effect")
    cells = pd.dp_shard * pd.cp * pd.tp
    inner = pd.ep * (get(pd, "etp", default=1))
    report.must(cells % inner == 0, f"expert parallel {inner} must divide dp_shard * cp * tp = {cells} [parallel_dims.py]")


def check_one(case, version):
    """Check one configuration in this process (torchtitan and torch.distributed keep globals)."""
    report = Report(version)
    world = case["world_size"]
    os.environ.update(WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0")
    pretend_capability(*(case.get("capability") or (9, 0)))
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        cfg = parse(case, report, folder)
        if cfg is None:
            return report.answer()
        pd = mesh_of(cfg, world, report)
        if pd is not None and "batch" not in case.get("skip", ()):
            check_batch(cfg, pd, report)
        model = model_of(cfg, report)
        if pd is not None:
            check_sharding(cfg, pd, report)
        if pd is not None and model is not None:
            if get(cfg.model, "converters") if hasattr(cfg, "model") else None:
                with report.stage("converters"):
                    from torchtitan.protocols.model_converter import build_model_converters

                    build_model_converters(cfg, pd)
            check_pipeline(cfg, pd, model, version, report)
            check_widths(pd, model, report)
        ac = get(cfg, "activation_checkpoint")
        report.resolved.update(
            activation_checkpoint=get(ac, "mode") or (type(ac).__qualname__.split(".")[0] if ac is not None else "none"),
            compile=bool(cfg.compile.enable), reshard_after_forward=cfg.parallelism.fsdp_reshard_after_forward,
            mixed_precision_param=cfg.training.mixed_precision_param, dtype=cfg.training.dtype)
    return report.answer()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("file", nargs="?")
    ap.add_argument("--module")
    ap.add_argument("--config")
    ap.add_argument("--world-size", type=int)
    ap.add_argument("--source", help="folder of an unpacked release or a checkout; default: the installed one")
    ap.add_argument("--json", action="store_true")
    ap.add_argument("--options", action="store_true", help="print the fields that this release knows")
    ap.add_argument("--many", action="store_true", help="the file holds one case a line, see above")
    argv, extra = sys.argv[1:], []
    if "--" in argv:
        i = argv.index("--")
        argv, extra = argv[:i], argv[i + 1:]
    o = ap.parse_args(argv)
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            version = load(o.source)
    except BaseException:
        traceback.print_exc()
        print("the checker cannot load torchtitan", file=sys.stderr)
        return 2
    if o.options:
        forked.print_options("torchtitan")
        return 0
    if o.many:
        lines = sys.stdin if o.file == "-" else open(o.file)
        return forked.print_answers(lines, lambda case: check_one(case, version), o.json)
    if not o.world_size:
        ap.error("--world-size is required")
    if not o.file and not (o.module and o.config):
        ap.error("give a TOML file, a recipe with --config, or --module and --config")
    answer = check_one({"file": o.file, "module": o.module, "config": o.config, "world_size": o.world_size, "args": extra}, version)
    if o.json:
        print(json.dumps(answer, indent=1, default=str))
    else:
        print(("ACCEPTED" if answer["accepted"] else "REFUSED") + f" by torchtitan {version}")
        for e in answer["errors"]:
            print("  BAD " + e[:600])
        for w in answer["warnings"]:
            print("  warning: " + w)
        for k, v in answer["resolved"].items():
            print(f"  {k} = {v}")
    return 0 if answer["accepted"] else 1


if __name__ == "__main__":
    sys.exit(main())
