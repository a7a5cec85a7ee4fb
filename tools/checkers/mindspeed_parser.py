"""Asks the parser of MindSpeed-LLM, and its checks of arguments, without torch and torch_npu.

    python mindspeed_parser.py options MEGATRON MINDSPEED MINDSPEED_LLM
    python mindspeed_parser.py judge MEGATRON MINDSPEED MINDSPEED_LLM < LINES

The folders are checkouts that go together; MEGATRON has `megatron/` of core 0.12.1. `options`
prints the options of the parser as JSON: those of Megatron-LM with those of all features. `judge`
reads a JSON line a run, `{"words": [...], "world_size": n}`, lets the parser read the words behind
`pretrain_gpt.py`, checks them as a run does (mindspeed_llm/training/arguments.py,
validate_args_v2_decorator), and prints a JSON line: `{"error": text}`, empty where it runs, with
the values of some settings after the checks.

Packages that are not installed have names without meaning in their place (`absent`): the parser
and the checks are those of the checkouts, no line of them is changed.
"""

import argparse
import contextlib
import enum
import io
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from absent import Anything, stand_in  # noqa: E402

ROOTS = (
    *("torch", "torch_npu", "torchair", "acl", "mindspeed_ops", "apex", "triton"),
    *("transformer_engine", "transformers", "peft", "datasets", "tiktoken", "sentencepiece"),
    *("einops", "tqdm", "flask", "regex", "scipy", "pydantic"),
)
DTYPES = ("float", "half", "float32", "float16", "bfloat16", "uint8", "float8_e4m3fn")
SHOWN = (
    *("data_parallel_size", "num_layers", "num_layer_list", "context_parallel_algo"),
    *("virtual_pipeline_model_parallel_size", "use_flash_attn", "moe_token_dispatcher_type"),
    *("expert_tensor_parallel_size", "sequence_parallel", "recompute_num_layers"),
)


def load(megatron: str, mindspeed: str, llm: str) -> tuple[Any, Any]:
    """Return the manager of MindSpeed's features, and Megatron-LM's module of arguments."""
    stand_in(ROOTS)
    sys.path[:0] = [megatron, mindspeed, llm]
    sys.argv = ["pretrain_gpt.py"]
    import torch
    import torch.cuda

    torch.dtype = type("dtype", (), {})
    for name in DTYPES:
        setattr(torch, name, torch.dtype())
    # The check of grouped products asks for it; its answer on Ascend is torch_npu's.
    torch.cuda.get_device_capability = lambda: (8, 0)
    # The package patches Megatron-LM as it is imported, which needs devices.
    package = types.ModuleType("mindspeed_llm")
    package.__path__ = [str(Path(llm) / "mindspeed_llm")]
    sys.modules["mindspeed_llm"] = package
    sys.modules["mindspeed_llm.training.utils"] = Anything("mindspeed_llm.training.utils")
    import mindspeed_llm.features_manager  # noqa: F401
    from megatron.training import arguments
    from mindspeed.features_manager.features_manager import MindSpeedFeaturesManager

    return MindSpeedFeaturesManager, arguments


def with_features(manager: Any, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return Megatron-LM's parser with the options of all features."""
    manager.register_features_args(parser)
    return parser


def plain(value: Any) -> Any:
    """Return a value as JSON has it: members of an enumeration by name."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Anything):
        return None
    if isinstance(value, str) and value.startswith(os.sep):
        return None  # a file of the checkout
    return list(value) if isinstance(value, tuple | set) else value


def option(action: argparse.Action) -> dict[str, Any]:
    """Return one option as planner.frameworks.megatron.flags has it."""
    kinds = {"_StoreTrueAction": "on", "_StoreFalseAction": "off"}
    kind = kinds.get(type(action).__name__, "")
    if not kind:
        name = getattr(action.type, "__name__", "str") if action.type else "str"
        kind = name if name in ("int", "float", "bool") else "str"
        kind = "pattern" if "freq" in name else kind
    flags = [name for name in action.option_strings if name.startswith("--")]
    entry: dict[str, Any] = {"flags": flags, "dest": action.dest, "kind": kind}
    nargs = action.nargs if action.nargs not in (None, 0, "?") else None
    choices = [plain(x) for x in action.choices] if action.choices else None
    extra = {"nargs": nargs, "default": plain(action.default), "choices": choices}
    return entry | {name: value for name, value in extra.items() if value is not None}


def options(manager: Any, arguments: Any) -> list[dict[str, Any]]:
    """Return the options of the parser."""
    empty = argparse.ArgumentParser(allow_abbrev=False)
    parser = with_features(manager, arguments.add_megatron_arguments(empty))
    actions = (x for x in parser._actions if not isinstance(x, argparse._HelpAction))
    return [option(x) for x in actions if x.option_strings]


def fault(manager: Any, arguments: Any, words: list[str]) -> tuple[str, dict[str, Any]]:
    """Return why words are refused, empty where they are not, and settings after the checks."""
    from mindspeed_llm.training.arguments import _add_dummy_args_v2

    sys.argv = ["pretrain_gpt.py", *words]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            args = arguments.parse_args(lambda parser: with_features(manager, parser))
            manager.pre_validate_features_args(args)
            args = arguments.validate_args(args, {})
            manager.post_validate_features_args(args=args)
            _add_dummy_args_v2(args)
            manager.validate_features_args(args=args)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1], {}
    except Exception as error:  # whatever a check raises
        return f"{type(error).__name__}: {error}", {}
    return "", {name: plain(getattr(args, name, None)) for name in SHOWN}


def main() -> int:
    """Print options, or judge the runs of standard input."""
    if len(sys.argv) != 5 or sys.argv[1] not in ("options", "judge"):
        print(__doc__, file=sys.stderr)
        return 2
    what, *folders = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):
        manager, arguments = load(*(str(Path(x).resolve()) for x in folders))
    if what == "options":
        print(json.dumps(options(manager, arguments)))
        return 0
    # A launcher has to set it: Megatron-LM asks for it with tensor or context parallelism.
    for line in sys.stdin:
        run = json.loads(line)
        os.environ["WORLD_SIZE"] = str(run["world_size"])
        os.environ.update(run.get("env", {}))
        error, settings = fault(manager, arguments, run["words"])
        print(json.dumps({"error": error, "settings": settings}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
