"""Ask MaxText itself: runs in an environment that has it, on fake devices of the CPU.

    check_maxtext.py --tables           # kinds of keys, and its models, as JSON
    check_maxtext.py --options          # its keys with defaults and choices, as JSON
    check_maxtext.py --configs FILE     # a line of JSON a plan: what its parser makes of it
    check_maxtext.py --train FILE key=value ...
                                        # trains on fake devices: mesh, shards, losses as JSON

`--configs` reads lines `{"name", "file", "n_devices", "slices"}` and prints for each what
`maxtext.configs.pyconfig` derives, or why it refuses.
"""

import argparse
import contextlib
import dataclasses
import enum
import io
import json
import math
import os
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import compiled_hlo

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

FACTS = (
    "num_target_devices",
    "num_slices",
    "mesh_axes",
    "ici_parallelism",
    "dcn_parallelism",
    "global_batch_size_to_train_on",
    "micro_batch_size_to_train_on",
    "gradient_accumulation_steps",
    "max_target_length",
    "emb_dim",
    "num_decoder_layers",
    "num_query_heads",
    "num_kv_heads",
    "mlp_dim",
    "moe_mlp_dim",
    "num_experts",
    "vocab_size",
    "decoder_block",
    "remat_policy",
    "quantization",
    "context_parallel_strategy",
    "shard_optimizer_over_data",
    "opt_type",
)
SIZES = (
    "decoder_block",
    "base_emb_dim",
    "base_num_query_heads",
    "base_num_kv_heads",
    "base_mlp_dim",
    "base_moe_mlp_dim",
    "base_num_decoder_layers",
    "head_dim",
    "vocab_size",
    "logits_via_embedding",
    "num_experts",
    "num_experts_per_tok",
    "shared_experts",
    "first_num_dense_layers",
    "interleave_moe_layer_step",
    "n_routing_groups",
    "topk_routing_group",
    "attention_type",
    "attention_bias",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "mtp_num_layers",
    "sliding_window_size",
    "opt_type",
    "use_qk_norm",
    "mlp_activations",
)
"""Keys of a model that a plan depends on."""


def kind_of(annotation: object) -> str:
    """Return what a field takes: int, float, bool, word, or anything else."""
    kinds = [one for one in (annotation, *typing.get_args(annotation)) if isinstance(one, type)]
    if any(issubclass(one, enum.Enum) for one in kinds):
        return "word"
    for name, kind in (("bool", bool), ("float", float), ("int", int)):
        if kind in kinds:
            return name if str not in kinds else "other"
    return "other"


def tables() -> dict[str, object]:
    """Return the kinds of all keys, the sizes that models of the package state, and defaults."""
    import maxtext.configs
    import yaml
    from maxtext.configs.types import MaxTextConfig

    folder = Path(maxtext.configs.__file__).parent
    base = yaml.safe_load((folder / "base.yml").read_text())
    models = {}
    for file in sorted((folder / "models").glob("*.yml")):
        own = yaml.safe_load(file.read_text()) or {}
        while "base_config" in own:
            below = own.pop("base_config")
            if below.endswith("base.yml"):
                break
            own = {**(yaml.safe_load((file.parent / below).read_text()) or {}), **own}
        models[file.stem] = {key: number(own[key]) for key in SIZES if key in own}
    kinds = {name: kind_of(x.annotation) for name, x in sorted(MaxTextConfig.model_fields.items())}
    defaults = {key: number(base[key]) for key in SIZES if key in base}
    return {"kinds": kinds, "defaults": defaults, "models": models}


def number(value: object) -> object:
    """Return a value as JSON has it."""
    if isinstance(value, str) and value.replace("_", "").isdecimal():
        return int(value.replace("_", ""))
    return value


def options() -> dict[str, object]:
    """Return all keys with their defaults and choices."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "planner/data/programs"))
    import flag_probe

    return flag_probe.options_of("maxtext")


def derived(question: dict) -> dict[str, object]:
    """Return what MaxText derives from one YAML, or {"error": why it refuses}."""
    from maxtext.configs import pyconfig

    words = [
        "run_name=check",
        "base_output_directory=/tmp/check_maxtext",
        "skip_jax_distributed_system=true",
        "internal_compile=true",
        f"internal_compile_num_devices={question['n_devices']}",
        f"compile_topology_num_slices={question['slices']}",
    ]
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            config = pyconfig.initialize_pydantic(["", question["file"], *words])
    except BaseException as error:  # it ends the process where it refuses
        text = f"{type(error).__name__}: {error}"
        return {"error": f"{text} {told.getvalue()[-600:]}".strip()}
    return {name: plain(getattr(config, name)) for name in FACTS}


def trained(file: str, words: Sequence[str]) -> dict[str, object]:
    """Train the steps of one YAML and return what the running program shows of the plan.

    The axes of its mesh that are larger than 1, the shards of every weight and moment, the losses
    of the steps, and the collectives of the compiled step (`compiled_hlo.Collective`).
    """
    import jax
    from maxtext.common import metric_logger
    from maxtext.trainers.pre_train import train
    from maxtext.utils import train_utils

    seen: dict[str, Any] = {"programs": []}
    set_up, compile_step = train_utils.setup_train_loop, jax.stages.Lowered.compile
    write = metric_logger.MetricLogger.write_metrics

    def watched(*given: Any, **more: Any) -> Any:
        result = set_up(*given, **more)
        seen["mesh"], seen["state"] = result[4], result[10]
        return result

    def compiled(self: Any, *given: Any, **more: Any) -> Any:
        program = compile_step(self, *given, **more)
        seen["programs"].append(program.as_text())
        return program

    def written(self: Any, metrics: Any, step: int, *given: Any, **more: Any) -> Any:
        seen.setdefault("losses", []).append(float(metrics["scalar"]["learning/loss"]))
        return write(self, metrics, step, *given, **more)

    train_utils.setup_train_loop = watched
    jax.stages.Lowered.compile = compiled
    metric_logger.MetricLogger.write_metrics = written
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            train.main(["", file, *words])
            leaves = jax.tree_util.tree_leaves_with_path(seen["state"])
    except BaseException as error:  # it ends the process where it refuses
        return {"error": f"{type(error).__name__}: {error} {told.getvalue()[-800:]}"}
    shards = {
        jax.tree_util.keystr(path): leaf.size // math.prod(leaf.sharding.shard_shape(leaf.shape))
        for path, leaf in leaves
        if getattr(leaf, "ndim", 0) > 1 and hasattr(leaf, "sharding")
    }
    axes = {name: size for name, size in dict(seen["mesh"].shape).items() if size > 1}
    steps = [text for text in seen["programs"] if "train_step" in text[:80]]
    return {
        "mesh": axes,
        "shards": shards,
        "losses": seen.get("losses", []),
        "collectives": [
            dataclasses.asdict(one)
            for text in steps[:1]
            for one in compiled_hlo.collectives(text, math.prod(axes.values()))
        ],
    }


def plain(value: object) -> object:
    """Return a value as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def main() -> int:
    """Answer one question on the standard output; other output goes elsewhere."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--options", action="store_true")
    parser.add_argument("--configs", type=Path)
    parser.add_argument("--train")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    if asked.train:
        print(json.dumps(trained(asked.train, asked.words)))
        return 0
    if asked.tables or asked.options:
        print(json.dumps(tables() if asked.tables else options()))
        return 0
    for line in asked.configs.read_text().splitlines():
        question = json.loads(line)
        print(json.dumps({"name": question["name"], **derived(question)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
