#!/usr/bin/env python3
"""Ask TRL, axolotl, LLaMA-Factory, ms-swift and torchtune themselves what they understand of their files. CPU only.

  check_tuners.py CASES.jsonl [--tool trl]   # a line: {"id", "tool", "files", "world_size", "wants"}

Run, the tools' own code: TrlParser over the dataclasses of trl.scripts.sft or dpo, as the launcher says, AxolotlInputConfig (pydantic, and
its sections; unknown keys are refused here, axolotl drops them), llamafactory.hparams.get_train_args, ms-swift's command line over SftArguments or RLHFArguments. The launch
configuration goes through accelerate's launcher as in check_accelerate, DeepSpeed's JSON through the Trainer's
own HfTrainerDeepSpeedConfig, which refuses values other than the arguments'. peft puts the adapters into the
model of model_config.json on the meta device: what is trained is counted. torchtune's parser of recipes and its
own check of components read its YAML, its builder makes the model there, and `tune run` knows the recipe.
Not on a CPU: tf32 and, of TRL, fp16 are taken out before and judged by name. Answers as of `forked`.
"""
import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import traceback
import types

import check_accelerate
import fake_world
import forked

DEVICE_KEYS = ("tf32", "fp16", "bf16")
"""Keys whose checks ask this machine for a GPU."""


def load():
    import logging

    logging.disable(logging.WARNING)
    os.environ["DISABLE_VERSION_CHECK"] = "1"  # of LLaMA-Factory: of transformers it wants an older one
    check_accelerate.load()
    import peft  # noqa: F401
    import transformers  # noqa: F401
    import yaml  # noqa: F401


def load_tool(tool):
    if tool == "trl":
        from trl import DatasetMixtureConfig, DPOConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser  # noqa: F401
        import trl.trainer.utils  # noqa: F401
    elif tool == "axolotl":
        import axolotl.utils.schemas.config  # noqa: F401
    elif tool == "swift":
        import swift.arguments  # noqa: F401
    elif tool == "torchtune":
        import torchtune.config  # noqa: F401
        import torchtune.models.llama3  # noqa: F401
    else:
        import llamafactory.hparams.parser  # noqa: F401


def ask_trl(path, text, resolved, errors):
    from trl import DatasetMixtureConfig, DPOConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser
    from trl.trainer.utils import get_peft_config, get_quantization_config

    device = {key: f"\n{key}: true\n" in text for key in DEVICE_KEYS}
    with open(path, "w") as f:
        f.write(re.sub(rf"^({'|'.join(DEVICE_KEYS)}): .*$", "", text, flags=re.M))
    with open(path.replace(".yaml", ".sh")) as f:
        is_dpo = "-m trl.scripts.dpo " in f.read()
    parser = TrlParser((ScriptArguments, DPOConfig if is_dpo else SFTConfig, ModelConfig, DatasetMixtureConfig))
    words = ["--config", path, "--use_cpu", "true"]
    script, args, model, _ = parser.parse_args_and_config(words, fail_with_unknown_args=True)
    quantized = get_quantization_config(model)
    base = "bf16"
    if quantized is not None and quantized.load_in_4bit:
        base = "nf4" if quantized.bnb_4bit_use_double_quant else "nf4-plain"
    elif quantized is not None:
        base = "int8"
    resolved.update(seq_len=args.max_length, base=base)
    if is_dpo:
        resolved.update(packing="none", reference="precomputed" if args.precompute_ref_log_probs else "memory")
        if model.use_peft and model.lora_dropout and args.disable_dropout:
            errors.append("the dropout of the adapters is switched off")
        return args, get_peft_config(model), args.gradient_checkpointing, device
    resolved.update(packing={"wrapped": "unmasked"}.get(args.packing_strategy, "masked") if args.packing else "none")
    if args.packing and args.packing_strategy == "bfd" and model.attn_implementation != "flash_attention_2":
        errors.append("packs are not masked without FlashAttention")
    return args, get_peft_config(model), args.gradient_checkpointing, device


def ask_axolotl(path, text, resolved, errors):
    import yaml
    from axolotl.utils.schemas.config import AxolotlInputConfig
    from axolotl.utils.schemas.fsdp import FSDPConfig

    data = yaml.safe_load(text)
    known = set(AxolotlInputConfig.model_fields)
    errors += [f"unknown key {key}" for key in sorted(set(data) - known)]
    errors += [f"unknown key fsdp_config.{key}" for key in sorted(set(data.get("fsdp_config") or {}) - set(FSDPConfig.model_fields))]
    cfg = AxolotlInputConfig(**data)
    args = types.SimpleNamespace(per_device_train_batch_size=cfg.micro_batch_size,
                                 gradient_accumulation_steps=cfg.gradient_accumulation_steps, deepspeed=cfg.deepspeed)
    nested = (cfg.bnb_config_kwargs or {}).get("bnb_4bit_use_double_quant", True)
    base = ("nf4" if nested else "nf4-plain") if cfg.load_in_4bit else "int8" if cfg.load_in_8bit else "bf16"
    resolved.update(seq_len=cfg.sequence_len, base=base, packing="masked" if cfg.sample_packing else "none",
                    learning_rate=float(cfg.learning_rate))
    if cfg.rl is not None:
        resolved.update(reference="precomputed" if cfg.precompute_ref_log_probs else "memory")
        if cfg.rl != "dpo" or (cfg.adapter and cfg.lora_dropout):
            errors.append(f"rl {cfg.rl} with lora_dropout {cfg.lora_dropout}: its trainer has dropout off")
        if data.get("load_in_4bit") and (data.get("gradient_checkpointing_kwargs") or {}).get("use_reentrant"):
            errors.append("reentrant recomputation beside 4-bit weights")  # it asks only on several GPUs
    if cfg.fsdp_config is not None:
        resolved.update(shards=(cfg.dp_replicate_size or 1) * (cfg.dp_shard_size or 1))
    adapters = None
    if cfg.adapter:
        from peft import LoraConfig

        adapters = LoraConfig(r=cfg.lora_r, lora_alpha=cfg.lora_alpha, lora_dropout=cfg.lora_dropout, task_type="CAUSAL_LM",
                              target_modules=cfg.lora_target_modules, target_parameters=cfg.lora_target_parameters)
    recomputes = cfg.gradient_checkpointing or (cfg.fsdp_config is not None and cfg.fsdp_config.activation_checkpointing)
    return args, adapters, recomputes, {key: getattr(cfg, key) is True for key in DEVICE_KEYS}


def ask_llama_factory(path, text, resolved, errors):
    import yaml
    from llamafactory.hparams.parser import get_train_args

    data = yaml.safe_load(text)
    device = {key: bool(data.pop(key, False)) for key in DEVICE_KEYS}
    # DeepSpeed's engine would look for the ranks of the plan: `check_deepspeed` asks the Trainer instead.
    if (named := data.pop("deepspeed", None)) and not os.path.exists(os.path.join(os.path.dirname(path), named)):
        errors.append(f"deepspeed names {named}, which is not there")
    data |= {"use_cpu": True, "bf16": device["bf16"]}
    model, given, args, tuned, _ = get_train_args(data)
    bits, packing = model.quantization_bit, "unmasked" if given.packing else "none"
    base = ("nf4" if model.double_quantization else "nf4-plain") if bits == 4 else "int8" if bits == 8 else "bf16"
    # It takes a token off the length of packs, for the padding that follows.
    resolved.update(seq_len=given.cutoff_len + bool(given.packing), base=base, packing="masked" if given.neat_packing else packing)
    if tuned.stage == "dpo":
        resolved.update(reference="memory" if tuned.use_ref_model else "none")
    if given.neat_packing and str(model.flash_attn) not in ("fa2", "AttentionFunction.FA2"):
        errors.append(f"packs are not masked with {model.flash_attn}")
    adapters = None
    if tuned.finetuning_type == "lora":
        from peft import LoraConfig

        adapters = LoraConfig(r=tuned.lora_rank, lora_alpha=tuned.lora_alpha, lora_dropout=tuned.lora_dropout,
                              task_type="CAUSAL_LM", target_modules=tuned.lora_target)
    return args, adapters, not model.disable_gradient_checkpointing, device


def ask_swift(path, text, resolved, errors):
    import yaml
    from swift.arguments import RLHFArguments, SftArguments
    from swift.cli.main import parse_yaml_args
    from swift.utils import parse_args

    folder = os.path.dirname(path)
    data = yaml.safe_load(text)
    device = {key: bool(data.pop(key, False)) for key in DEVICE_KEYS}
    # As above: `check_deepspeed` asks the Trainer with the ranks of the plan.
    if (named := data.pop("deepspeed", None)) and not os.path.exists(os.path.join(folder, named)):
        errors.append(f"deepspeed names {named}, which is not there")
    os.makedirs(os.path.join(folder, "model"))
    os.replace(os.path.join(folder, "model_config.json"), os.path.join(folder, "model", "config.json"))
    known = {"model": os.path.join(folder, "model"), "model_type": "llama", "template": "default", "use_cpu": True,
             "output_dir": folder, "bf16": False, "fp16": False, "report_to": "none"}
    with open(path, "w") as f:
        yaml.safe_dump(data | known, f, sort_keys=False)
    argv = [path]
    parse_yaml_args(argv)
    with open(path.replace(".yaml", ".sh")) as f:
        task = RLHFArguments if "swift rlhf " in f.read() else SftArguments
    os.chdir(folder)
    args, rest = parse_args(task, argv)
    errors += [f"unknown {rest}"] if rest else []
    quantized = args.get_quantization_config()
    base = "bf16"
    if quantized is not None:
        nested = "nf4" if quantized.bnb_4bit_use_double_quant else "nf4-plain"
        base = nested if quantized.load_in_4bit else "int8"
    resolved.update(seq_len=args.max_length, base=base, packing="masked" if args.packing else "none")
    if task is RLHFArguments:
        if args.rlhf_type == "dpo" and not args.training_args.precompute_ref_log_probs:
            resolved.update(reference="memory")
        if args.tuner_type == "lora" and args.lora_dropout and args.training_args.disable_dropout:
            errors.append("the dropout of the adapters is switched off")
        if args.tuner_type == "full" and args.ref_model != args.model:
            errors.append(f"reference {args.ref_model}")
    section = args.fsdp_config if args.fsdp else {}
    if args.gradient_checkpointing and section.get("activation_checkpointing"):
        errors.append("recomputed twice: by the Trainer and by FSDP2")
    recomputes = args.gradient_checkpointing or section.get("activation_checkpointing")
    adapters = None
    if args.tuner_type == "lora":
        from peft import LoraConfig

        adapters = LoraConfig(r=args.lora_rank, lora_alpha=args.lora_alpha, lora_dropout=args.lora_dropout, task_type="CAUSAL_LM",
                              target_modules=args.target_modules, target_parameters=args.target_parameters)
    return args.training_args, adapters, recomputes, device


def ask_torchtune(path, text, resolved, errors):
    import torch
    from omegaconf import OmegaConf
    from torchtune import config
    from torchtune._recipe_registry import get_all_recipes
    from torchtune.config._parse import TuneRecipeArgumentParser
    from torchtune.modules.peft import get_adapter_params

    given, rest = TuneRecipeArgumentParser().parse_known_args(["--config", path])
    cfg = OmegaConf.create(vars(given))
    errors += [f"unknown {rest}"] if rest else []
    config.validate(cfg)
    with open(path.replace(".yaml", ".sh")) as f:
        recipe = re.search(r"^ +(\S+) --config", f.read(), re.M)[1]
    known = {one.name: one for one in get_all_recipes()}
    if recipe not in known:
        errors.append(f"no recipe {recipe}")
    elif recipe.endswith("distributed") and not known[recipe].supports_distributed:
        errors.append(f"{recipe} is for one device")
    with torch.device("meta"):
        model = config.instantiate(cfg.model)
    resolved.update(seq_len=cfg.tokenizer.max_seq_len, packing="masked" if cfg.dataset.packed else "none")
    for name in ("seed", "shuffle", "epochs", "max_steps_per_epoch", "log_every_n_steps"):
        cfg[name]  # what recipes read without a default
    if "lora" in recipe:
        config.instantiate(cfg.loss)
        resolved.update(rank=cfg.model.lora_rank, alpha=cfg.model.lora_alpha, dropout=cfg.model.lora_dropout,
                        base="nf4" if cfg.model.quantize_base else "bf16",
                        trained=sum(p.numel() for p in get_adapter_params(model).values()))
    args = types.SimpleNamespace(per_device_train_batch_size=cfg.batch_size,
                                 gradient_accumulation_steps=cfg.gradient_accumulation_steps)
    return args, None, cfg.enable_activation_checkpointing, {key: cfg.dtype == key for key in DEVICE_KEYS}


TOOLS = {"torchtune": ask_torchtune, "swift": ask_swift, "trl": ask_trl, "axolotl": ask_axolotl, "llama-factory": ask_llama_factory}


def count_adapters(config, adapters):
    """Return the trained elements of the model with its adapters, on the meta device."""
    import torch
    from peft import get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = config.pop("model_type")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))
    with torch.device("meta"):
        tuned = get_peft_model(model, adapters)
    return sum(p.numel() for p in tuned.parameters() if p.requires_grad)


def check_deepspeed(config, args, world, resolved):
    """The Trainer's own merge: `auto` is filled, other values than the arguments' are refused."""
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    merged = HfTrainerDeepSpeedConfig(config)
    type(args).world_size = property(lambda _: world)
    merged.trainer_config_process(args)
    model = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=64))
    merged.trainer_config_finalize(args, model, 10)
    resolved.update(zero=merged.config["zero_optimization"]["stage"], train_batch_size=merged.config["train_batch_size"])
    if "auto" in json.dumps(merged.config["optimizer"]):
        raise ValueError(f"optimizer keeps auto: {merged.config['optimizer']}")


def check(case, folder, errors, resolved):
    tool, files, world = case["tool"], case["files"], case["world_size"]
    for name, text in files.items():
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    launch = files.get(f"{tool}-accelerate.yaml")
    launched, out = {}, io.StringIO()
    if launch:
        cwd = os.getcwd()
        os.chdir(folder)
        check_accelerate.check(os.path.join(folder, f"{tool}-accelerate.yaml"), world, errors, [], launched, out)
        os.chdir(cwd)
    for name in list(os.environ):
        if name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")):
            del os.environ[name]
    path = os.path.join(folder, f"{tool}.yaml")
    args, adapters, recomputes, device = TOOLS[tool](path, files[f"{tool}.yaml"], resolved, errors)
    recomputes = bool(recomputes)
    pair = 2 if resolved["reference"] else 1  # sequences of what the trainer counts as one
    if recomputes and launched.get("activation_checkpointing"):
        errors.append("recomputed twice: by the Trainer and by FSDP2")
    resolved.update(
        recomputes=recomputes or bool(launched.get("activation_checkpointing")),
        micro_batch=pair * args.per_device_train_batch_size,
        global_batch=pair * args.per_device_train_batch_size * args.gradient_accumulation_steps * world,
        half=next((key for key in ("bf16", "fp16") if device[key]), ""))
    if adapters is not None:
        resolved.update(rank=adapters.r, alpha=adapters.lora_alpha, dropout=adapters.lora_dropout)
        resolved["trained"] = count_adapters(json.loads(files["model_config.json"]), adapters)
    config = files.get(f"{tool}-deepspeed.json")
    if config and tool != "axolotl":
        args.bf16, args.fp16 = device["bf16"], device["fp16"]
        check_deepspeed(json.loads(config), args, world, resolved)
        if pair * resolved["train_batch_size"] != resolved["global_batch"]:
            errors.append(f"train_batch_size {resolved['train_batch_size']}")
    return launched


def check_one(case):
    errors, resolved, out = [], {"trained": None, "reference": ""}, io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            check(case, folder, errors, resolved)
        except SystemExit:
            errors.append("refused: " + " ".join(out.getvalue().split())[-300:])
        except Exception as e:
            at = traceback.extract_tb(e.__traceback__)[-1]
            errors.append(f"{type(e).__name__}: {' '.join(str(e).split())[:600]} [{at.filename.rsplit('/', 2)[-1]}:{at.lineno} {at.name}]")
    return {"accepted": not errors, "errors": errors, "resolved": resolved}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("file")
    ap.add_argument("--tool", choices=sorted(TOOLS), required=True)
    ap.add_argument("--json", action="store_true")
    o = ap.parse_args()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            load()
            load_tool(o.tool)
    except BaseException:
        traceback.print_exc()
        print("the checker cannot load the tools", file=sys.stderr)
        return 2
    fake_world.skip_foreign_groups()
    with open(o.file) as lines:
        own = [line for line in lines if line.strip() and json.loads(line)["tool"] == o.tool]
    return forked.print_answers(own, check_one, o.json)


if __name__ == "__main__":
    sys.exit(main())
