"""Model providers of Megatron-Bridge to model files: a class of Python, or its fields as YAML.

The class is read from its syntax tree, never imported: fields with the bases that stand in the
same file, or whose fields are known here (`BASES`, from megatron/bridge/models/*/*_provider.py).
The YAML is what `ConfigContainer.to_yaml` writes.
"""

import ast
from collections.abc import Mapping
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.bridge.reader import typed_setting
from planner.frameworks.bridge.recipe_settings import megatron_settings_of, path_of, setting_of
from planner.frameworks.bridge.recipe_tree import parsed_recipe
from planner.frameworks.megatron.flags import Parsed
from planner.frameworks.megatron.model import MegatronSettings, megatron_model
from planner.specs.importers.huggingface.reader import AS_TYPE
from planner.specs.importers.imported import Imported
from planner.specs.yaml.document import parse_yaml

_RMS: Mapping[str, Any] = {
    "normalization": "RMSNorm",
    "activation_func": "silu",
    "gated_linear_unit": True,
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "share_embeddings_and_output_weights": False,
}
_QWEN3: Mapping[str, Any] = {
    **_RMS,
    "qk_layernorm": True,
    "kv_channels": 128,
    "num_query_groups": 8,
    "vocab_size": 151936,
    "seq_length": 40960,
}
BASES: Mapping[str, Mapping[str, Any]] = {
    "GPTModelProvider": {},
    "MLAModelProvider": {"multi_latent_attention": True},
    "MLATransformerConfig": {"multi_latent_attention": True},
    "TransformerConfig": {},
    "LlamaModelProvider": {**_RMS, "seq_length": 4096},
    "Llama2ModelProvider": {**_RMS, "seq_length": 4096},
    "Llama3ModelProvider": {**_RMS, "num_query_groups": 8},
    "Llama31ModelProvider": {**_RMS, "num_query_groups": 8},
    "Qwen2ModelProvider": {
        **_RMS,
        "add_qkv_bias": True,
        "vocab_size": 151936,
        "seq_length": 4096,
    },
    "Qwen3ModelProvider": _QWEN3,
    "Qwen3MoEModelProvider": {**_QWEN3, "num_moe_experts": 128, "moe_router_topk": 8},
    "DeepSeekModelProvider": {
        **_RMS,
        "multi_latent_attention": True,
        "qk_layernorm": True,
        "num_attention_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
        "seq_length": 4096,
    },
}
"""Fields that a price depends on of classes whose source need not lie in the file."""
NOT_PRICED: Mapping[str, str] = {
    "sparse_attention_type": "sparse attention",
    "experimental_attention_variant": "another kind of attention",
    "linear_attention_freq": "linear attention",
    "hybrid_override_pattern": "layers of several kinds",
    "hybrid_layer_pattern": "layers of several kinds",
    "is_hybrid_model": "layers of several kinds",
    "heterogeneous_layers_config_path": "layers of several widths",
    "moe_latent_size": "experts on a latent",
}
"""Fields of layers that these settings cannot say."""
NEEDED = ("num_layers", "hidden_size", "num_attention_heads")


def read_provider(
    text: str, source: str = "", overrides: Mapping[str, object] | None = None
) -> Imported:
    """Return the model file of a provider; `model.as` names the class where a file has several.

    Raises `SpecError` where sizes are missing, where several classes have them, and for fields of
    layers that are not priced.
    """
    named = str((overrides or {}).get(AS_TYPE) or "")
    is_python = "class " in text and not text.lstrip().startswith(("model:", "_target_"))
    name, fields = _of_python(text, source, named) if is_python else _of_yaml(text, source)
    for field, what in NOT_PRICED.items():
        if fields.get(f"model.{field}"):
            message = f"model.{field} of {name}: {what}, which is not read from a provider"
            raise SpecError(InputProblem(message, "give the config.json of the model", source))
    missing = [field for field in NEEDED if f"model.{field}" not in fields]
    if missing:
        message = f"{name} does not say {', '.join(missing)}"
        fix = "give the file with the class that it is derived from"
        raise SpecError(InputProblem(message, fix, source))
    fields.setdefault("model.seq_length", 4096)
    settings = {"bf16": True, **megatron_settings_of(fields)}
    settings.setdefault("tokenizer_model", name)  # tells the vocabulary where nothing states it
    typed = {dest: typed_setting(dest, value) for dest, value in settings.items()}
    given = {dest: value for dest, value in typed.items() if value is not None}
    written = {dest: f"{path_of(dest) or dest} = {settings[dest]!r}" for dest in given}
    parsed = Parsed(given, written, (), (), {})
    model = megatron_model(MegatronSettings(parsed, source), name=name[:64])
    kind = f"model provider of Megatron-Bridge ({name})"
    notes = (*model.notes, *_not_read(fields))
    return Imported("model", model.document, model.origins, source, kind, notes)


def _not_read(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the fields of the model that no setting takes up."""
    own = ("gated_linear_unit", "activation_func", "share_embeddings_and_output_weights")
    names = [
        path.removeprefix("model.")
        for path, value in fields.items()
        if path.startswith("model.")
        and not setting_of(path)
        and path.removeprefix("model.") not in own
        and value not in (None, False)
        and not isinstance(value, Mapping)
        and not path.removeprefix("model.").endswith(("_fusion", "_fuser", "_dtype"))
    ]
    return (f"fields not read: {', '.join(sorted(names))}",) if names else ()


def _of_yaml(text: str, source: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the provider's class and the fields by path of a dumped configuration."""
    data = parse_yaml(text, source).data
    sections = data if isinstance(data.get("model"), Mapping) else {"model": data}
    fields: dict[str, Any] = {}
    for section, values in sections.items():
        if isinstance(values, Mapping):
            fields |= {f"{section}.{key}": _plain(value) for key, value in values.items()}
    target = str(sections["model"].get("_target_", "provider"))
    fields.pop("model._target_", None)
    return target.rpartition(".")[2], fields


def _plain(value: Any) -> Any:
    """Return the last word of a function that the file names."""
    if isinstance(value, Mapping) and isinstance(value.get("_target_"), str):
        return value["_target_"].rpartition(".")[2]
    return value


def _of_python(text: str, source: str, named: str) -> tuple[str, dict[str, Any]]:
    """Return a class of a file and its fields by path, those of its bases among them."""
    classes = {x.name: x for x in parsed_recipe(text, source).body if isinstance(x, ast.ClassDef)}
    providers = {name: _fields_of(name, classes, ()) for name in classes}
    complete = [name for name, fields in providers.items() if "num_layers" in fields]
    name = named or (complete[0] if len(complete) == 1 else "")
    if name not in complete:
        message = f"no provider {name!r}" if name else f"{len(complete)} providers in one file"
        fix = (
            f"name one: --as {' or '.join(complete[:12])}"
            if complete
            else "name a file with sizes"
        )
        raise SpecError(InputProblem(message, fix, source))
    return name, {f"model.{key}": value for key, value in providers[name].items()}


def _fields_of(
    name: str, classes: Mapping[str, ast.ClassDef], above: tuple[str, ...]
) -> dict[str, Any]:
    """Return the fields of a class; those of the first base win over those of the later ones."""
    if name in above or name not in classes:
        return dict(BASES.get(name, {}))
    fields: dict[str, Any] = {}
    for base in reversed(classes[name].bases):
        fields |= _fields_of(ast.unparse(base).rpartition(".")[2], classes, (*above, name))
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            fields[node.target.id] = _value(node.value)
    return fields


def _value(node: ast.expr) -> Any:
    """Return a default: a literal, a product or sum of lists, a factory of one, a last name."""
    if isinstance(node, ast.Call):
        factory = next((x.value for x in node.keywords if x.arg == "default_factory"), None)
        return _value(factory.body) if isinstance(factory, ast.Lambda) else None
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        is_short = isinstance(right, int) and 0 <= right <= 100_000
        if isinstance(node.op, ast.Mult) and (isinstance(left, int) or is_short):
            return left * right if isinstance(left, int | list) else None
        both = isinstance(left, int | list) and type(left) is type(right)
        return left + right if isinstance(node.op, ast.Add) and both else None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
