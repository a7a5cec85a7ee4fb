"""Ask MaxText itself: runs in an environment that has it, on fake devices of the CPU.

    check_maxtext.py --tables           # kinds of keys, and its models, as JSON
    check_maxtext.py --options          # its keys with defaults and choices, as JSON
    check_maxtext.py --configs FILE     # a line of JSON a plan: what its parser makes of it

`--configs` reads lines `{"name", "file", "n_devices", "slices"}` and prints for each what
`maxtext.configs.pyconfig` derives, or why it refuses.
"""

import argparse
import contextlib
import enum
import io
import json
import os
import sys
import typing
from pathlib import Path

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
    asked = parser.parse_args()
    if asked.tables or asked.options:
        print(json.dumps(tables() if asked.tables else options()))
        return 0
    for line in asked.configs.read_text().splitlines():
        question = json.loads(line)
        print(json.dumps({"name": question["name"], **derived(question)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
