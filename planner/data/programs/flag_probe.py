#!/usr/bin/env python3
"""Print what the installed release of a training framework can be told, as one JSON object.

    python flag_probe.py megatron|bridge|deepspeed|torchtitan|fsdp2|maxtext|mindspeed

Runs beside the framework, needs no GPU and nothing else. The framework's own parser or
configuration classes are asked: `{"framework", "release", "options": {name: {"default", "choices",
"required"}}}`. Options of command lines start with `--`; fields of classes are `Class.field`.
"""

import argparse
import ast
import contextlib
import dataclasses
import importlib
import io
import json
import os
import sys
import typing
from importlib.metadata import version

PACKAGES = {
    "megatron": "megatron-core",
    "bridge": "megatron-bridge",
    "deepspeed": "deepspeed",
    "torchtitan": "torchtitan",
    "fsdp2": "accelerate",
    "maxtext": "maxtext",
    "mindspeed": "mindspeed_llm",
}
CONFIG_NAMES = ("config", "param_dict", "_param_dict", "ds_config", "config_dict")
"""What DeepSpeed calls the dict of its JSON where it reads a key."""

if not hasattr(typing, "override"):  # Python 3.11: the one name of 3.12 that megatron-core imports
    typing.override = lambda method: method


def options_of(framework):
    """Return the options of an importable framework by name."""
    return dict(sorted(READERS[framework]()))


def megatron_options():
    """Yield the flags of Megatron-LM's parser."""
    from megatron.training.arguments import add_megatron_arguments

    yield from parser_options(add_megatron_arguments(argparse.ArgumentParser()))


def bridge_options():
    """Yield the fields of Megatron-Bridge's configuration and of its providers."""
    from megatron.bridge.models.mla_provider import MLAModelProvider
    from megatron.bridge.training import config

    for cls in (
        config.ConfigContainer,
        MLAModelProvider,
        config.TrainingConfig,
        config.DistributedInitConfig,
        config.DistributedDataParallelConfig,
        config.OptimizerConfig,
        config.CheckpointConfig,
    ):
        yield from named(cls)


def deepspeed_options():
    """Yield top-level keys of the JSON, and the fields of DeepSpeed's configuration models."""
    import deepspeed
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel

    for key in sorted(keys_read(os.path.dirname(deepspeed.__file__))):
        yield key, {"required": False}
    left = list(DeepSpeedConfigModel.__subclasses__())
    while left:
        model = left.pop()
        left += model.__subclasses__()
        if ".inference." in model.__module__:
            continue
        for name, field in model.model_fields.items():
            facts = {"required": field.is_required(), "default": plain(field.default)}
            yield f"{model.__name__}.{name}", facts


def torchtitan_options():
    """Yield the fields of a job file (up to 0.2) or of the classes of a recipe."""
    config = importlib.import_module("torchtitan.config")
    if hasattr(config, "JobConfig"):
        yield from dataclass_options(config.JobConfig)
        return
    for name in vars(config):
        if hasattr(getattr(config, name), "__dataclass_fields__"):
            yield from named(getattr(config, name))


def fsdp2_options():
    """Yield the options of `accelerate launch` and the keys of its file."""
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig

    yield from parser_options(launch_command_parser())
    yield from named(ClusterConfig)
    yield from named(ParallelismConfig)


def maxtext_options():
    """Yield the keys of MaxText's YAML: the fields of its configuration model."""
    import enum

    from maxtext.configs.types import MaxTextConfig

    for key, field in sorted(MaxTextConfig.model_fields.items()):
        facts = {"required": field.is_required(), "default": plain(field.default)}
        kinds = [field.annotation, *typing.get_args(field.annotation)]
        named = [x for x in kinds if isinstance(x, type) and issubclass(x, enum.Enum)]
        if named:
            facts["choices"] = [str(one.value) for one in named[0]]
        yield key, facts


def mindspeed_options():
    """Yield the options of MindSpeed-LLM's parser, beside torch_npu."""
    importlib.import_module("mindspeed_llm")  # it patches Megatron-LM
    from megatron.training.arguments import add_megatron_arguments
    from mindspeed.features_manager.features_manager import MindSpeedFeaturesManager

    parser = add_megatron_arguments(argparse.ArgumentParser())
    MindSpeedFeaturesManager.register_features_args(parser)
    yield from parser_options(parser)


READERS = {
    "megatron": megatron_options,
    "bridge": bridge_options,
    "deepspeed": deepspeed_options,
    "torchtitan": torchtitan_options,
    "fsdp2": fsdp2_options,
    "maxtext": maxtext_options,
    "mindspeed": mindspeed_options,
}


def named(cls):
    """Yield the fields of a dataclass as `Class.field`."""
    for key, facts in dataclass_options(cls):
        yield f"{cls.__name__}.{key}", facts


def dataclass_options(cls, prefix="", seen=()):
    """Yield (name, facts) of the fields of a dataclass, those of nested ones with dots between."""
    try:
        hints = typing.get_type_hints(cls)
    except Exception:  # a name that only a type checker imports
        hints = {}
    for field in dataclasses.fields(cls):
        missing = dataclasses.MISSING
        required = field.default is missing and field.default_factory is missing
        hint = hints.get(field.name)
        inner = hint if dataclasses.is_dataclass(hint) else None
        if inner is not None and inner not in seen:
            yield from dataclass_options(inner, f"{prefix}{field.name}.", (*seen, cls))
            continue
        facts = {"required": required}
        if typing.get_origin(hint) is typing.Literal:
            facts["choices"] = [str(x) for x in typing.get_args(hint)]
        if field.default is not missing:
            facts["default"] = plain(field.default)
        yield f"{prefix}{field.name}", facts


def parser_options(parser):
    """Yield (name, facts) of the options of an argparse parser."""
    for action in parser._actions:
        facts = {
            "required": bool(action.required),
            "choices": sorted(map(str, action.choices)) if action.choices else None,
            "default": plain(action.default),
        }
        yield from ((name, facts) for name in action.option_strings)


def plain(value):
    """Return a default as text that does not change from run to run."""
    text = str(value)
    return text if " at 0x" not in text else type(value).__name__


def keys_read(package):
    """Return the strings that some module uses as config["x"], config.get("x"), "x" in config."""
    names = set()
    for part in (
        "__init__.py",
        "runtime",
        "module_inject",
        "autotuning",
        "launcher",
        "monitor",
        "utils",
    ):
        for path in modules_under(os.path.join(package, part)):
            try:
                with open(path, encoding="utf-8") as file:
                    tree = ast.parse(file.read())
            except (SyntaxError, OSError):
                continue
            names.update(key for node in ast.walk(tree) if (key := key_of(node)))
    return names


def modules_under(root):
    """Yield the Python files of a folder, or the file itself."""
    if root.endswith(".py"):
        yield root
        return
    for folder, _, files in os.walk(root):
        yield from (os.path.join(folder, file) for file in files if file.endswith(".py"))


def key_of(node):
    """Return the key that an expression looks up in a dict of settings, if it does."""
    who = key = None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        who, key = node.value, node.slice.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "get" and node.args and isinstance(node.args[0], ast.Constant):
            who, key = node.func.value, node.args[0].value
    elif (
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Constant)
        and isinstance(node.ops[0], (ast.In, ast.NotIn))
    ):
        who, key = node.comparators[0], node.left.value
    if not isinstance(key, str) or not isinstance(who, (ast.Name, ast.Attribute)):
        return None
    name = who.id if isinstance(who, ast.Name) else who.attr
    return key if name in CONFIG_NAMES else None


def main():
    """Print the options of the framework that is named."""
    if len(sys.argv) != 2 or sys.argv[1] not in READERS:
        print(__doc__, file=sys.stderr)
        return 2
    framework = sys.argv[1]
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    with contextlib.redirect_stdout(io.StringIO()):
        found = {
            "framework": framework,
            "release": version(PACKAGES[framework]),
            "options": options_of(framework),
        }
    print(json.dumps(found, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
