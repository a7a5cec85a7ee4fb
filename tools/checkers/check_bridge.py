#!/usr/bin/env python3
"""Ask Megatron-Bridge itself whether it accepts a recipe. CPU only; runs the recipe.

  check_bridge.py recipe.py --function pretrain_config --world-size 64 --source BRIDGE_DIR
  check_bridge.py CASES.jsonl --many --json --source BRIDGE_DIR    # one import, a fork per case; a line:
      {"id", "text" or "file", "function", "world_size", "env", "gpu_arch"}

BRIDGE_DIR is an unpacked wheel of megatron-bridge. It is never installed: importing it as a whole wants
Transformer Engine and some twenty packages more. Here its packages are entered without running their
__init__.py, names that an __init__.py would offer are looked up in it, and packages that the machine
lacks are empty stubs. What then runs is Bridge's own code over megatron-core's own:
  recipe       the function itself: unknown fields are refused by the dataclasses
  validate     ConfigContainer.validate: finalises every part, so TransformerConfig.__post_init__,
               DistributedDataParallelConfig and OptimizerConfig run, and Bridge's own cross-checks
  microbatches, groups, layers, first step: as check_megatron.py
Exit 0 accepted, 1 refused, 2 could not run.
"""
import argparse
import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import tempfile
import traceback
import types

import check_megatron
import fake_world
import forked

STUBBED = ("PIL", "datasets", "omegaconf", "transformers", "yaml", "megatron.energon", "hydra", "modelopt",
           "nvidia_resiliency_ext", "flash_attn", "wandb", "mlflow", "comet_ml", "rich", "tqdm", "safetensors",
           "huggingface_hub", "accelerate", "timm", "peft", "diffusers", "torchvision", "torchaudio", "qwen_vl_utils",
           "open_clip", "mamba_ssm", "causal_conv1d", "fla", "nvdlfw_inspect", "pydantic", "regex", "tensorboard",
           "einops_exts", "sentencepiece", "tiktoken", "google", "multistorageclient")
"""Packages that get a stub where they are not installed."""


class Anything(type):
    """A class that stands for whatever a missing package would offer."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {"__module__": cls.__module__})

    def __call__(cls, *args, **kwargs):
        return cls

    def __or__(cls, other):
        return other

    __ror__ = __or__

    def __getitem__(cls, key):
        return cls


class StubModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = Anything(name, (), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages that the machine lacks."""

    def find_spec(self, name, path=None, target=None):
        parent = sys.modules.get(name.rpartition(".")[0])
        if name in STUBBED or isinstance(parent, StubModule):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = StubModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        module.__version__ = "99.0"


class BarePackage(types.ModuleType):
    """A package of Bridge without its __init__.py; what that would offer is imported when it is asked for."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        init = os.path.join(self.__path__[0], "__init__.py")
        if os.path.exists(init):
            with open(init) as f:
                tree = ast.parse(f.read())
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    for alias in node.names:
                        if (alias.asname or alias.name) == name:
                            value = getattr(importlib.import_module(node.module), alias.name)
                            setattr(self, name, value)
                            return value
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


class BridgeFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds megatron.bridge in an unpacked wheel."""

    def __init__(self, source):
        self.source = source

    def find_spec(self, name, path=None, target=None):
        if name != "megatron.bridge" and not name.startswith("megatron.bridge."):
            return None
        place = os.path.join(self.source, *name.split("."))
        if os.path.isdir(place):
            spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
            spec.submodule_search_locations = [place]
            return spec
        if os.path.exists(place + ".py"):
            return importlib.util.spec_from_file_location(name, place + ".py")
        return None

    def create_module(self, spec):
        return BarePackage(spec.name)

    def exec_module(self, module):
        pass


def load(o):
    """Import Bridge's configuration; -> its release."""
    if o.core:
        sys.path.insert(0, os.path.abspath(o.core))
    check_megatron.load(o)
    source = os.path.abspath(o.source)
    sys.meta_path.insert(0, BridgeFinder(source))
    sys.meta_path.append(StubFinder())
    for name, module in sys.modules.items():
        if name.startswith("transformer_engine"):
            module.__class__ = StubModule
    importlib.import_module("megatron.bridge.training.config")
    for name in ("gpt_provider", "mla_provider"):
        importlib.import_module(f"megatron.bridge.models.{name}")
    for name in ("megatron.bridge.recipes.common", "megatron.bridge.training.comm_overlap",
                 "megatron.bridge.training.mixed_precision"):
        importlib.import_module(name)
    info = [f for f in os.listdir(source) if f.startswith("megatron_bridge-")]
    return info[0].removeprefix("megatron_bridge-").removesuffix(".dist-info") if info else "checkout"


class BridgeChecker(check_megatron.Checker):
    """The stages of Megatron-LM's checker from the groups on, over a recipe."""

    def recipe(self, case, folder):
        path = case.get("file")
        if case.get("text") is not None:
            path = os.path.join(folder, "planner_recipe_under_check.py")
            with open(path, "w") as f:
                f.write(case["text"])
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        module = importlib.import_module(os.path.splitext(os.path.basename(path))[0])
        self.container = getattr(module, case["function"])()

    def validate_container(self):
        from megatron.bridge.training.config import runtime_config_update

        runtime_config_update(self.container)
        m, t, d, p = self.container.model, self.container.train, self.container.dist, self.container.ddp
        self.cfg = m
        world = int(os.environ["WORLD_SIZE"])
        fsdp = bool(p.use_megatron_fsdp or d.use_megatron_fsdp)
        cp_comm = m.cp_comm_type
        self.args = types.SimpleNamespace(
            world_size=world, data_parallel_size=self.container.data_parallel_size,
            tensor_model_parallel_size=m.tensor_model_parallel_size,
            pipeline_model_parallel_size=m.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=m.virtual_pipeline_model_parallel_size,
            context_parallel_size=m.context_parallel_size,
            hierarchical_context_parallel_sizes=m.hierarchical_context_parallel_sizes,
            expert_model_parallel_size=m.expert_model_parallel_size,
            expert_tensor_parallel_size=m.expert_tensor_parallel_size,
            num_distributed_optimizer_instances=p.num_distributed_optimizer_instances,
            hybrid_context_parallel=m.hybrid_context_parallel,
            hybrid_layer_pattern=getattr(m, "hybrid_layer_pattern", None),
            use_tp_pp_dp_mapping=d.use_tp_pp_dp_mapping,
            micro_batch_size=t.micro_batch_size, global_batch_size=t.global_batch_size,
            seq_length=m.seq_length, num_layers=m.num_layers, hidden_size=m.hidden_size,
            ffn_hidden_size=m.ffn_hidden_size, num_attention_heads=m.num_attention_heads,
            num_query_groups=m.num_query_groups,
            group_query_attention=m.num_query_groups != m.num_attention_heads,
            kv_channels=m.kv_channels, num_experts=m.num_moe_experts, moe_layer_freq=m.moe_layer_freq, moe_ffn_hidden_size=m.moe_ffn_hidden_size,
            sequence_parallel=m.sequence_parallel, use_distributed_optimizer=p.use_distributed_optimizer,
            overlap_grad_reduce=p.overlap_grad_reduce, overlap_param_gather=p.overlap_param_gather,
            recompute_granularity=m.recompute_granularity, recompute_method=m.recompute_method,
            recompute_num_layers=m.recompute_num_layers, recompute_modules=m.recompute_modules,
            cpu_offloading_num_layers=m.cpu_offloading_num_layers if m.cpu_offloading else 0,
            cp_comm_type=[cp_comm] if isinstance(cp_comm, str) else cp_comm,
            fp8_recipe=m.fp8_recipe if m.fp8 else None, use_megatron_fsdp=fsdp,
            data_parallel_sharding_strategy=p.data_parallel_sharding_strategy,
            params_dtype=m.params_dtype, grad_reduce_in_fp32=p.grad_reduce_in_fp32,
            optimizer_cpu_offload=self.container.optimizer.optimizer_cpu_offload,
            optimizer_offload_fraction=self.container.optimizer.optimizer_offload_fraction,
            vocab_size=m.vocab_size, make_vocab_size_divisible_by=m.make_vocab_size_divisible_by)

    def vocabulary(self):
        from megatron.bridge.utils.vocab_utils import calculate_padded_vocab_size

        m = self.container.model
        if not m.vocab_size:
            return
        self.result["padded_vocab_size"] = m.vocab_size
        if m.should_pad_vocab:
            self.result["padded_vocab_size"] = calculate_padded_vocab_size(
                m.vocab_size, m.make_vocab_size_divisible_by, m.tensor_model_parallel_size)

    def check(self, case, folder):
        for name, fn in (
            ("recipe", lambda: self.recipe(case, folder)),
            ("validate", self.validate_container),
            ("vocabulary", self.vocabulary),
            ("microbatches", self.microbatches),
            ("groups", self.groups),
            ("layers", self.layers),
            ("first step", self.first_step),
        ):
            self.stage(name, fn)


def check_one(o, case, version):
    """Check one recipe in this process (Megatron keeps globals: one check per process)."""
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update({k: str(v) for k, v in (case.get("env") or {}).items()})
    os.environ.update(WORLD_SIZE=str(case["world_size"]), RANK="0", LOCAL_RANK="0")
    check_megatron.install_cuda_stub(case.get("gpu_arch", o.gpu_arch))
    out, o._err = io.StringIO(), io.StringIO()
    checker, code = BridgeChecker(o), 0
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out), contextlib.redirect_stderr(o._err):
        try:
            checker.check(case, folder)
        except check_megatron.Refused:
            code = 1
    return {"accepted": code == 0, "megatron_bridge": version, "stages": checker.stages,
            "resolved": checker.summary(), "warnings": checker.warnings}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("file", nargs="?", default="-")
    ap.add_argument("--function", default="pretrain_config")
    ap.add_argument("--world-size", type=int)
    ap.add_argument("--source", required=True, help="folder of an unpacked megatron-bridge")
    ap.add_argument("--core", help="folder of an unpacked megatron-core; default: the installed one")
    ap.add_argument("--gpu-arch", type=int, default=9)
    ap.add_argument("--te-version", default="2.14.0")
    ap.add_argument("--rank", type=int, default=0)
    ap.add_argument("--no-groups", action="store_true")
    ap.add_argument("--json", action="store_true")
    ap.add_argument("--options", action="store_true", help="print the fields that this release knows")
    ap.add_argument("--many", action="store_true", help="the file holds one case a line, see above")
    o = ap.parse_args()
    o.verbose = False
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            version = load(o)
    except BaseException:
        traceback.print_exc()
        print("the checker cannot load Megatron-Bridge", file=sys.stderr)
        return 2
    if o.options:
        forked.print_options("bridge")
        return 0
    if o.many:
        lines = sys.stdin if o.file == "-" else open(o.file)
        return forked.print_answers(lines, lambda case: check_one(o, case, version), o.json)
    if not o.world_size:
        ap.error("--world-size is required")
    answer = check_one(o, {"file": o.file, "function": o.function, "world_size": o.world_size}, version)
    if o.json:
        print(json.dumps(answer, indent=1, default=str))
    else:
        print(("ACCEPTED" if answer["accepted"] else "REFUSED") + f" by megatron-bridge {version}")
        for s in answer["stages"]:
            print(f"  {'ok ' if s['ok'] else 'BAD'} {s['stage']}" + ("" if s["ok"] else f": {s['error']}  [{s.get('at', '')}]"))
        for k, v in answer["resolved"].items():
            print(f"  {k} = {v}")
    return 0 if answer["accepted"] else 1


if __name__ == "__main__":
    sys.exit(main())
