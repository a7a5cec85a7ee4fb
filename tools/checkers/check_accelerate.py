#!/usr/bin/env python3
"""Ask Hugging Face Accelerate itself whether it accepts a launch configuration. CPU only.

  check_accelerate.py accelerate.yaml [--world-size 64]
  check_accelerate.py CASES.jsonl --many --json    # one import, a fork per case; a line:
      {"id", "text" or "file", "world_size", "trainer" (text of TrainingArguments as JSON)}

Run, accelerate's own code: load_config_from_file (unknown keys at the top are refused), the launcher's own
parser and _validate_launch_command (which merges the file), the environment that the launcher would
set, and from that FullyShardedDataParallelPlugin and ParallelismConfig with its mesh over a pretended
world and _validate_accelerator; with "trainer" transformers' own HfArgumentParser.parse_dict, which refuses
unknown fields (bf16, fp16 and tf32 by name only: their checks ask this machine for a GPU). Keys inside fsdp_config and parallelism_config that the launcher has no
option for, and keys that FSDP2 ignores, are refused too: accelerate itself says nothing.
Exit 0 accepted, 1 refused, 2 could not run.
"""
import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import traceback
import types
import warnings

import fake_world
import forked


def load():
    import logging

    logging.disable(logging.WARNING)
    import torch.distributed  # noqa: F401

    fake_world.skip_foreign_groups()
    import accelerate
    import accelerate.commands.launch
    import accelerate.parallelism_config
    import accelerate.utils.launch
    import torch.distributed.fsdp.fully_sharded_data_parallel  # noqa: F401

    with contextlib.suppress(ImportError):
        import transformers.integrations.integration_utils  # noqa: F401  before the forks, as it takes seconds
        from transformers import HfArgumentParser, TrainingArguments  # noqa: F401
    return accelerate.__version__


def unknown_keys(cfg, parser):
    """Keys of the blocks that no launcher option takes."""
    known = {action.dest for action in parser._actions}
    for block, prefix in (("fsdp_config", "fsdp_"), ("parallelism_config", "parallelism_config_")):
        for key in getattr(cfg, block, None) or {}:
            full = key if key.startswith(prefix) else prefix + key
            if full not in known:
                yield f"unknown key {block}.{key}"


def check_parallelism(args, cfg, world, resolved, errors):
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import DistributedType

    p = ParallelismConfig()
    resolved.update(dp_replicate=p.dp_replicate_size, dp_shard=p.dp_shard_size, tp=p.tp_size, cp=p.cp_size, sp=p.sp_size,
                    dp=p.dp_replicate_size * p.dp_shard_size)
    p._validate_accelerator(types.SimpleNamespace(
        num_processes=world, multi_device=world > 1, is_main_process=True,
        is_fsdp2=bool(args.use_fsdp and int(args.fsdp_version or 1) == 2),
        distributed_type=DistributedType.FSDP if args.use_fsdp else DistributedType.MULTI_GPU))
    if p.total_size > 1:
        fake_world.start(world)
        p.build_device_mesh("cpu")


def check(path, world, errors, notes, resolved, out):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    cfg = load_config_from_file(path)
    n = getattr(cfg, "num_processes", None)
    resolved.update(distributed_type=str(cfg.distributed_type.value), world=n,
                    num_machines=getattr(cfg, "num_machines", None), mixed_precision=cfg.mixed_precision)
    if world and n != world:
        errors.append(f"num_processes {n} is not the world size {world}")
    if n and n > 0 and n % (getattr(cfg, "num_machines", 1) or 1):
        errors.append(f"num_processes {n} is not a multiple of num_machines {cfg.num_machines}")
    parser = launch_command_parser()
    errors += unknown_keys(cfg, parser)
    args = parser.parse_args(["--config_file", path, "train.py"])
    args, _, _ = _validate_launch_command(args)
    parallel = bool(getattr(cfg, "parallelism_config", None))
    if parallel and (not args.use_fsdp or int(args.fsdp_version or 1) == 1):
        errors.append("parallelism_config wants distributed_type FSDP and fsdp_version 2 [commands/launch.py]")
    os.environ.update({k: str(v) for k, v in prepare_multi_gpu_env(args).items()})
    if args.use_fsdp:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plugin = FullyShardedDataParallelPlugin()
            notes += [str(x.message)[:200] for x in caught]
        resolved.update(
            fsdp_version=plugin.fsdp_version, reshard_after_forward=plugin.reshard_after_forward
            if isinstance(plugin.reshard_after_forward, bool) else str(plugin.reshard_after_forward),
            state_dict_type=str(plugin.state_dict_type), cpu_offload=type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"
            or bool(getattr(plugin.cpu_offload, "offload_params", False)),
            activation_checkpointing=plugin.activation_checkpointing,
            activation_checkpointing_offload=bool(getattr(plugin, "activation_checkpointing_offload", False)),
            transformer_cls_names_to_wrap=plugin.transformer_cls_names_to_wrap)
    if parallel:
        check_parallelism(args, cfg, n, resolved, errors)


def check_trainer(text, resolved, errors):
    """TrainingArguments themselves, and the global batch that they and the mesh make."""
    from transformers import HfArgumentParser, TrainingArguments

    given = json.loads(text)
    given.setdefault("output_dir", tempfile.gettempdir())
    device = {k: given.pop(k) for k in ("bf16", "fp16", "tf32") if k in given}
    if device.get("bf16") and device.get("fp16"):
        errors.append("trainer: bf16 and fp16 exclude each other")
    given["use_cpu"] = True
    (args,) = HfArgumentParser(TrainingArguments).parse_dict(given)
    per_rank, steps = args.per_device_train_batch_size, args.gradient_accumulation_steps
    resolved.update(
        per_device_train_batch_size=per_rank, gradient_accumulation_steps=steps, trainer_bf16=bool(device.get("bf16")),
        trainer_fp16=bool(device.get("fp16")), gradient_checkpointing=args.gradient_checkpointing,
        global_batch_size=per_rank * steps * resolved.get("dp", 1),
        sync_each_batch=bool((args.accelerator_config.gradient_accumulation_kwargs or {}).get("sync_each_batch")))
    if args.gradient_checkpointing and resolved.get("activation_checkpointing"):
        errors.append("trainer: gradient_checkpointing beside fsdp_activation_checkpointing")


def check_one(case, version):
    errors, notes, resolved, out = [], [], {}, io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        path = case.get("file")
        if case.get("text") is not None:
            path = os.path.join(folder, "accelerate.yaml")
            with open(path, "w") as f:
                f.write(case["text"])
        for name in list(os.environ):
            if name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")):
                del os.environ[name]
        try:
            check(path, case.get("world_size"), errors, notes, resolved, out)
            if case.get("trainer") is not None:
                check_trainer(case["trainer"], resolved, errors)
        except SystemExit:
            errors.append("launcher refused: " + " ".join(out.getvalue().split())[-300:])
        except Exception as e:
            at = next((f for f in reversed(traceback.extract_tb(e.__traceback__)) if "accelerate" in f.filename), None)
            where = f" [{at.filename[at.filename.rfind('accelerate'):]}:{at.lineno} {at.name}]" if at else ""
            errors.append(f"{type(e).__name__}: {' '.join(str(e).split())}{where}")
    return {"accepted": not errors, "accelerate": version, "errors": errors, "warnings": notes, "resolved": resolved}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("file", nargs="?", default="-")
    ap.add_argument("--world-size", type=int)
    ap.add_argument("--source", help="folder of a checkout (its src); default: the installed accelerate")
    ap.add_argument("--json", action="store_true")
    ap.add_argument("--options", action="store_true", help="print the options that this release knows")
    ap.add_argument("--many", action="store_true", help="the file holds one case a line, see above")
    o = ap.parse_args()
    if o.source:
        sys.path.insert(0, os.path.abspath(o.source))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            version = load()
    except BaseException:
        traceback.print_exc()
        print("the checker cannot load accelerate", file=sys.stderr)
        return 2
    if o.options:
        forked.print_options("fsdp2")
        return 0
    if o.many:
        lines = sys.stdin if o.file == "-" else open(o.file)
        return forked.print_answers(lines, lambda case: check_one(case, version), o.json)
    answer = check_one({"file": o.file, "world_size": o.world_size}, version)
    if o.json:
        print(json.dumps(answer, indent=1, default=str))
    else:
        print(("ACCEPTED" if answer["accepted"] else "REFUSED") + f" by accelerate {version}")
        for e in answer["errors"]:
            print("  BAD " + e[:500])
        for w in answer["warnings"]:
            print("  warning: " + w)
        for k, v in answer["resolved"].items():
            print(f"  {k} = {v}")
    return 0 if answer["accepted"] else 1


if __name__ == "__main__":
    sys.exit(main())
