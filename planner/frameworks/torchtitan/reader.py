"""torchtitan's job files (TOML, releases up to 0.2) and recipes (Python, from 0.3) to a run.

A recipe is read from its syntax tree and never executed: calls of functions in the same file are
followed, configuration classes become sections, everything else is passed over.
"""

import ast
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from costmodels.axes import off_values
from costmodels.schedule.stages import spelled, stage_layers
from planner.errors import InputProblem, SpecError
from planner.frameworks.runs.existing_run import Doubt, ExistingRun, Switch
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.settings import Reader, flattened, with_set
from planner.frameworks.torchtitan.releases import (
    OLD_MODELS,
    SPLIT_POINTS,
    TOML_RELEASE,
    old_fields,
    release_of,
    split_counts,
    unknown_in,
    with_present_names,
    with_sizes_in_sequences,
)
from planner.option_names import option
from planner.specs.importers.imported import Imported, Origin
from searches.frameworks.registry import framework_rules

SECTIONS = ("model", "training", "parallelism", "activation_checkpoint")
SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "zbvzerobubble": "zb-v",
    "dualpipev": "dualpipe-v",
    "loopedbfs": "interleaved",
    "interleavedzerobubble": "interleaved",
}
"""Schedule of a plan by lower-case name in torch.distributed.pipelining."""
ONE_STAGE = ("1f1b", "gpipe")
"""Names (lower case) of schedules with one stage a rank; the others have two unless told."""
_CLASS_SECTIONS = {
    "TrainingConfig": "training",
    "ParallelismConfig": "parallelism",
    "CompileConfig": "compile",
    "Training": "training",
    "Parallelism": "parallelism",
    "Compile": "compile",
}
_AC_CLASSES = {
    "SelectiveAC": {"mode": "selective"},
    "FullAC": {"mode": "full"},
    "MemoryBudgetAC": {"mode": "memory_budget"},
    "FirstLayersAC": {"mode": "full", "policy": "first-layers"},
    "AttentionCoreAC": {"mode": "selective", "policy": "attention-core"},
}
"""Policies by class; the last two are those that recipes of the planner bring along."""
MAX_DEPTH = 10
"""Deepest chain of functions in a recipe."""


SMALL = {
    ("llama3", "1B"): {
        "layers": 16,
        "hidden": 2048,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 8192,
        "vocab": 128256,
        "tied": True,
    },
    ("llama3", "3B"): {
        "layers": 28,
        "hidden": 3072,
        "heads": 24,
        "kv_heads": 8,
        "ffn": 8192,
        "vocab": 128256,
        "tied": True,
    },
    ("llama4", "debugmodel"): {
        "layers": 6,
        "hidden": 256,
        "heads": 16,
        "ffn": 768,
        "vocab": 2048,
        "n_experts": 8,
        "top_k": 1,
        "expert_ffn": 512,
        "shared_ffn": 512,
        "moe_every": 2,
    },
    ("qwen3", "debugmodel"): {
        "layers": 8,
        "hidden": 256,
        "heads": 16,
        "kv_heads": 8,
        "head_dim": 128,
        "ffn": 3072,
        "vocab": 2048,
        "tied": True,
    },
    ("qwen3", "debugmodel_moe"): {
        "layers": 8,
        "hidden": 256,
        "heads": 16,
        "kv_heads": 8,
        "head_dim": 128,
        "vocab": 2048,
        "n_experts": 64,
        "top_k": 8,
        "expert_ffn": 768,
    },
    ("gpt_oss", "debugmodel"): {
        "layers": 4,
        "hidden": 256,
        "heads": 64,
        "kv_heads": 8,
        "head_dim": 64,
        "vocab": 201088,
        "bias": True,
        "n_experts": 8,
        "top_k": 4,
        "expert_ffn": 2880,
    },
}
"""Registered models that job files are not written for, as in torchtitan 0.2.2 and 0.3.0."""
GROUPS = {("deepseek_v3", "236B"): (8, 3), ("deepseek_v3", "671B"): (8, 4)}
"""Groups of experts, and those that a token may use (torchtitan/models/deepseek_v3)."""
_MOE = {
    "n_experts": "experts",
    "top_k": "topk",
    "expert_ffn": "moe_ffn",
    "shared_ffn": "shared_ffn",
    "dense_layers": "dense_layers",
    "moe_every": "every",
    "n_groups": "routing_groups",
    "top_groups": "top_groups",
}
_MLA = ("q_rank", "kv_rank", "qk_nope", "qk_rope", "v_head")


@cache
def flavors() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return the `model:` sections of torchtitan's models by name and flavor."""
    from planner.frameworks.torchtitan.toml import FLAVORS

    entries: dict[str, dict[str, Mapping[str, Any]]] = {}
    for (family, flavor), sizes in {**SMALL, **OLD_MODELS, **FLAVORS}.items():
        groups = GROUPS.get((family, flavor))
        more = {"n_groups": groups[0], "top_groups": groups[1]} if groups else {}
        entries.setdefault(family, {})[flavor] = model_section({**sizes, **more})
    return entries


def model_section(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `model:` section of sizes under the names of a `ModelShape`.

    Norms are RMS norms, positions rotary and MLPs gated in every model of torchtitan.
    """
    latent, experts = bool(sizes.get("kv_rank")), bool(sizes.get("n_experts"))
    plain = ("layers", "hidden", "heads", "vocab", "bias")
    section = {key: sizes[key] for key in plain if key in sizes}
    if not latent:
        section |= {key: sizes[key] for key in ("kv_heads", "head_dim") if sizes.get(key)}
    if sizes.get("ffn"):
        section["ffn"] = sizes["ffn"]
    if latent:
        section["mla"] = {key: sizes.get(key, 0) for key in _MLA}
        section.pop("bias", None)
    if experts:
        section["moe"] = {name: sizes[key] for key, name in _MOE.items() if sizes.get(key)}
    if sizes.get("mtp_layers"):
        section["mtp_layers"] = sizes["mtp_layers"]
    return section | {"gated": True, "tied": bool(sizes.get("tied", False))}


def looks_like_toml(text: str) -> bool:
    """Tell whether a text is a torchtitan job file."""
    return bool(
        re.search(r"^\s*\[(parallelism|training|activation_checkpoint)\]", text, re.M)
        and "=" in text
    )


def looks_like_recipe(text: str) -> bool:
    """Tell whether a text is a torchtitan recipe."""
    return "Trainer.Config" in text or bool(
        re.search(r"from torchtitan\b.* import|import torchtitan\b", text)
        and re.search(r"^def ", text, re.M)
    )


def read_toml(text: str, source: str, query: RunQuery, *, launched: bool = False) -> ExistingRun:
    """Return the run of a job file.

    `launched`: a launcher says on how many devices it starts. Otherwise the product of the degrees
    wins over it.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"at line (\d+), column (\d+)", str(error))
        line, column = (int(x) for x in match.groups()) if match else (0, 0)
        tokens = re.sub(r"\s*\(at line.*\)", "", str(error))
        raise SpecError(
            InputProblem(f"not valid TOML: {tokens}", "check the line", source, line, column)
        ) from None
    settings = with_set(flattened(data), query.sets)
    return job_file_run(settings, source, query, launched=launched)


def job_file_run(
    settings: dict[str, Any], source: str, query: RunQuery, *, launched: bool = False
) -> ExistingRun:
    """Return the run of a job file's settings.

    Of whichever release they are: where the user names none the fields tell.
    """
    kind = "torchtitan job file (TOML)"
    older = "" if query.version else release_of(_unknown(settings, TOML_RELEASE), settings)
    if not older:
        run = _run(settings, source, kind, query, launched=launched)
        return _with_own_fields(run) if any(settings.get(key) for key in OWN_FIELDS) else run
    strange = unknown_in(old_fields()[older], settings)
    run = _run(with_present_names(settings), source, kind, query, launched=launched)
    note = f"its keys are those of release {older}; changes are named by those of {TOML_RELEASE}"
    return replace(
        run,
        release=older,
        unknown=(),
        notes=(*run.notes, note),
        doubts=tuple(
            Doubt(key, f"no key of torchtitan {older}", "judged and priced as without it")
            for key in strange
        ),
        written={**run.written, **{key: f"{key} = {value}" for key, value in settings.items()}},
    )


OWN_FIELDS = ("experimental.custom_args_module", "job.custom_config_module")
"""Keys that name a module with more fields."""


def _with_own_fields(run: ExistingRun) -> ExistingRun:
    """Return the run of a job file whose own module may define what is not known of it."""
    why = "no field of torchtitan's; the module that the file names may have it"
    doubts = tuple(Doubt(key, why, "judged and priced as without it") for key in run.unknown)
    return replace(run, unknown=(), doubts=doubts)


def read_recipe(
    text: str,
    source: str,
    query: RunQuery,
    function: str = "",
    *,
    launched: bool = False,
) -> ExistingRun:
    """Return the run of a recipe; `function` names it where the file has several.

    `launched`: a launcher says on how many devices it starts.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        where = error.lineno or 0, error.offset or 0
        raise SpecError(
            InputProblem(f"not valid Python: {error.msg}", "", source, *where)
        ) from None
    recipes = _recipes(tree)
    if not recipes:
        message = "no function that returns Trainer.Config"
        raise SpecError(InputProblem(message, "name a torchtitan recipe", source))
    name = function or (next(iter(recipes)) if len(recipes) == 1 else "")
    if name not in recipes:
        listed = ", ".join(recipes)
        message = f"no recipe {name!r}" if name else f"{len(recipes)} recipes in one file"
        raise SpecError(InputProblem(message, f"name one: {source}#NAME with {listed}", source))
    evaluator = _Evaluator(tree)
    config = evaluator.call(name, 0)
    settings = with_sizes_in_sequences(with_set(flattened(_sections(config)), query.sets))
    settings.setdefault("model.name", _family(text, name))
    if backend := re.search(r"(?:get_attention_config\(|attn_backend=)\"(\w+)\"", text):
        settings.setdefault("model.attn_backend", backend[1])
    constants = {key.lower(): value for key, value in evaluator.names.items()}
    kind = f"torchtitan recipe ({name})"
    sizes = _written_sizes(constants, text)
    return _run(settings, source, kind, query, sizes, launched=launched)


def _written_sizes(constants: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the sizes that a recipe of the planner states as constants; {} in other recipes."""
    if not all(isinstance(constants.get(k), int) for k in ("layers", "hidden", "heads", "vocab")):
        return {}
    biased = "GptOss" in text
    return {**constants, "tied": "enable_weight_tying=True" in text, "bias": biased}


# ---- recipes


def _recipes(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return the functions of a file that return a Trainer.Config, directly or from another."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    entries: dict[str, ast.FunctionDef] = {}
    for _ in range(MAX_DEPTH):
        for name, node in functions.items():
            text = ast.unparse(node)
            calls = any(re.search(rf"= {other}\(|return {other}\(", text) for other in entries)
            if "Trainer.Config(" in text or calls:
                entries.setdefault(name, node)
    public = {name: node for name, node in entries.items() if not name.startswith("_")}
    return {name: node for name, node in functions.items() if name in (public or entries)}


def _family(text: str, name: str) -> str:
    """Return the model family from the import of the registry, else from the function's name."""
    imported = re.search(r"torchtitan\.models\.(\w+)", text)
    if imported and imported.group(1) in flavors():
        return imported.group(1)
    return next((family for family in flavors() if name.startswith(family)), "")


class _Evaluator:
    """Follows the assignments of recipe functions."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions = {
            node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)
        }
        self.names: dict[str, Any] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.names[node.targets[0].id] = self.value(node.value, {}, 0)

    def call(self, name: str, depth: int) -> Any:
        """Return what a function of the file returns, as nested dicts."""
        if depth > MAX_DEPTH:
            return {}
        node, scope = self.functions[name], {}
        for argument, default in zip(
            reversed(node.args.args), reversed(node.args.defaults), strict=False
        ):
            scope[argument.arg] = self.value(default, {}, depth)
        for statement in node.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self.value(statement.value, scope, depth)
            self.statement(statement, scope, depth)
        return {}

    def statement(self, node: ast.stmt, scope: dict[str, Any], depth: int) -> None:
        """Follow one assignment: `x = ...` or `config.section.key = ...`."""
        targets: list[ast.expr]
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        elif isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        else:
            return
        result = self.value(value, scope, depth)
        for target in targets:
            if isinstance(target, ast.Name):
                scope[target.id] = result
            elif isinstance(target, ast.Attribute):
                self._put(target, result, scope)

    def _put(self, target: ast.Attribute, result: Any, scope: dict[str, Any]) -> None:
        keys: list[str] = [target.attr]
        node = target.value
        while isinstance(node, ast.Attribute):
            keys.insert(0, node.attr)
            node = node.value
        place = scope.get(node.id) if isinstance(node, ast.Name) else None
        for key in keys[:-1]:
            if not isinstance(place, dict):
                return
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        if isinstance(place, dict):
            place[keys[-1]] = result

    def value(self, node: ast.expr, scope: dict[str, Any], depth: int) -> Any:
        """Return a literal, a section as a dict, a number; None for everything else."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return scope.get(node.id, self.names.get(node.id))
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(item, scope, depth) for item in node.elts]
        if isinstance(node, ast.Dict):
            keys = [self.value(k, scope, depth) if k else None for k in node.keys]
            values = [self.value(v, scope, depth) for v in node.values]
            return {str(k): v for k, v in zip(keys, values, strict=True)}
        if isinstance(node, ast.Call):
            return self._called(node, scope, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand, scope, depth)
            return -inner if isinstance(inner, (int, float)) else None
        if isinstance(node, ast.BinOp):
            return self._computed(node, scope, depth)
        if isinstance(node, ast.Attribute):
            inner = self.value(node.value, scope, depth)
            return inner.get(node.attr) if isinstance(inner, dict) else None
        return None

    def _computed(self, node: ast.BinOp, scope: dict[str, Any], depth: int) -> Any:
        left, right = (self.value(x, scope, depth) for x in (node.left, node.right))
        if not all(isinstance(x, (int, float)) and abs(x) < 1e15 for x in (left, right)):
            return None
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.FloorDiv) and right:
            return left // right
        return None

    def _called(self, node: ast.Call, scope: dict[str, Any], depth: int) -> Any:
        name = ast.unparse(node.func)
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is not None:
                keywords[keyword.arg] = self.value(keyword.value, scope, depth)
        if name in self.functions and not node.args and not keywords:
            return self.call(name, depth + 1)
        if name in ("cast", "typing.cast") and len(node.args) == 2:
            return self.value(node.args[1], scope, depth)
        arguments = [self.value(a, scope, depth) for a in node.args]
        return {"__class__": name, "__arguments__": arguments, **keywords}


def _sections(config: Any) -> dict[str, Any]:
    """Return the sections of a job file that a recipe's configuration stands for."""
    if not isinstance(config, dict):
        return {}
    out: dict[str, Any] = {}
    for key, value in config.items():
        if not isinstance(value, dict):
            continue
        kind = str(value.get("__class__", "")).removesuffix(".Config").rsplit(".", 1)[-1]
        plain = {k: v for k, v in value.items() if not k.startswith("__")}
        if kind == "model_registry" or key == "model_spec":
            arguments = value.get("__arguments__", [])
            out["model"] = {"flavor": arguments[0] if arguments else plain.get("flavor", "")}
            converters = [
                str(c.get("__class__", ""))
                for c in plain.get("converters") or []
                if isinstance(c, dict)
            ]
            out["model"]["converters"] = converters
        elif kind in _AC_CLASSES or key == "activation_checkpoint":
            out["activation_checkpoint"] = {**_AC_CLASSES.get(kind, {"mode": "none"}), **plain}
            if kind == "SelectiveAC":
                out["activation_checkpoint"].setdefault("selective_ac_option", "op")
        elif kind in _CLASS_SECTIONS or key in ("training", "parallelism", "compile"):
            out[_CLASS_SECTIONS[kind] if kind in _CLASS_SECTIONS else str(key)] = plain
    if config.get("activation_checkpoint", 0) is None or "activation_checkpoint" not in config:
        out["activation_checkpoint"] = {"mode": "none"}
    return out


# ---- from settings to a run


@cache
def known_fields(release: str) -> frozenset[str]:
    """Return the fields of a release's configuration, dotted (`scripts/torchtitan_fields`)."""
    text = (files("planner") / "data" / "torchtitan_fields.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text)[release])


def _unknown(settings: Mapping[str, Any], release: str) -> tuple[str, ...]:
    """Return the settings that a release does not have, of the sections that are known of it.

    What stands below a known field is that field's value.
    """
    fields = known_fields(release)
    sections = {name.partition(".")[0] for name in fields}
    if release != TOML_RELEASE:  # a recipe's other parts are Python of any kind
        sections &= {"training", "parallelism", "compile"}
    results = []
    for name in settings:
        parts = name.split(".")
        is_known = any(".".join(parts[: i + 1]) in fields for i in range(len(parts)))
        inside = any(field.startswith(f"{name}.") for field in fields)
        if not is_known and not inside and (parts[0] in sections or release == TOML_RELEASE):
            results.append(name)
    return tuple(results)


def _run(
    settings: dict[str, Any],
    source: str,
    kind: str,
    query: RunQuery,
    sizes: Mapping[str, Any] | None = None,
    *,
    launched: bool = False,
) -> ExistingRun:
    model = query.model
    read = Reader(settings, source)
    notes: list[str] = []
    own_devices = None if launched else _stated_devices(read)
    layout = _degrees(read, own_devices or query.n_devices)
    batch = _batch(read, layout)
    layout |= batch
    local = max(1, read.number("training.local_batch_size", 8))
    passes = layout.get("n_micro", 0) * layout["mbs"] // local
    if layout["pp"] > 1 and passes > 1:
        notes.append(
            f"gradients are accumulated over {passes} local batches: the pipeline fills"
            " and drains for each of them, and is priced as if once"
        )
    job: dict[str, Any] = {
        "seq_len": read.number("training.seq_len", 2048),
        "precision": _precision(read, notes),
    }
    if "gbs" in layout:
        job["global_batch"] = layout["gbs"]
        steps = read.number("training.steps", 10_000)
        job["tokens"] = float(steps * layout["gbs"] * job["seq_len"])
    imported = None if model else described_model(read, job, sizes or {})
    layers = model.shape.layers if model else imported.document["model"]["layers"]  # type: ignore[union-attr]
    experts = model.shape.n_experts if model else imported.document["model"].get("moe")  # type: ignore[union-attr]
    if experts and layout["ep"] == 1:
        layout["etp"] = layout["tp"]  # without ep the experts are split over tp like any MLP
    layout |= _stages(read, layers, notes)
    layout |= _recompute(read, layout, layers, notes)
    job_file = kind.endswith("(TOML)")
    release = TOML_RELEASE if job_file else framework_rules("torchtitan").release
    stack, switches = _stack(read, layout)
    if read.switch("training.enable_cpu_offload"):
        notes.append(
            "training.enable_cpu_offload: states on the CPU are not modelled: memory is"
            " overestimated, the step underestimated"
        )
    return ExistingRun(
        framework="torchtitan",
        source=source,
        format=kind,
        settings=settings,
        layout=layout,
        release=TOML_RELEASE if job_file else "",
        unknown=_unknown(settings, release),
        n_devices=own_devices,
        model=imported,
        job=job,
        stack=stack,
        switches=switches,
        notes=tuple(notes),
        written={key: f"{key} = {value}" for key, value in settings.items()},
    )


def described_model(read: Reader, job: Mapping[str, Any], sizes: Mapping[str, Any]) -> Imported:
    """Return the model file of `[model] name, flavor`, or of sizes that the recipe states.

    Raises `SpecError` for a model that is not known.
    """
    name = read.text("model.name", "llama3")
    flavor = read.text("model.flavor", "debugmodel")
    if sizes:
        section, why = model_section(sizes), "a constant of the recipe"
    else:
        family = flavors().get(name.removesuffix("_ft"))
        plain = re.sub(r"_(flex|varlen)(_attn)?$|_irope$", "", flavor)
        if family is None or plain not in family:
            names = ", ".join(family) if family else ", ".join(flavors())
            what = f"flavor {flavor!r} of {name}" if family else f"model {name!r}"
            fix = f"known: {names}; or give the sizes with " + option("model", "FILE")
            raise SpecError(InputProblem(f"{what} is not in the table of sizes", fix, read.source))
        section, why = dict(family[plain]), f"torchtitan's {name} {flavor}"
        title = re.sub(r"[^A-Za-z0-9._+-]", "-", f"{name}-{plain}".lower())
        section = {"name": title, **section}
    training = {"optimizer": "adam", "global_batch": 1, **job}
    origins = [Origin(("model", key), why) for key in section]
    origins += [Origin(("training", key), f"training.{key}") for key in training]
    document = {"model": section, "training": training}
    return Imported("model", document, tuple(origins), read.source, why)


def _stated_devices(read: Reader) -> int | None:
    """Return the product of the degrees where none of them is left open."""
    degrees = [
        read.number(f"parallelism.{axis}_parallel_degree", 1)
        for axis in ("tensor", "pipeline", "context")
    ]
    degrees.append(read.number("parallelism.data_parallel_replicate_degree", 1))
    degrees.append(read.number("parallelism.data_parallel_shard_degree", -1))
    return math.prod(degrees) if min(degrees) > 0 else None


def _degrees(read: Reader, n_devices: int | None) -> dict[str, Any]:
    """Return the degrees; the leftover ranks shard where the degree is -1."""
    tp, pp, cp = (
        read.number(f"parallelism.{axis}_parallel_degree", 1)
        for axis in ("tensor", "pipeline", "context")
    )
    replicate = read.number("parallelism.data_parallel_replicate_degree", 1)
    shard = read.number("parallelism.data_parallel_shard_degree", -1)
    ep = read.number("parallelism.expert_parallel_degree", 1)
    rotate = read.text("parallelism.context_parallel_rotate_method", "allgather")
    entries: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "etp": read.number("parallelism.expert_tensor_parallel_degree", 1) if ep > 1 else 1,
        "sp": tp > 1 and read.switch("parallelism.enable_sequence_parallel", True),
        "cp_comm": "" if cp == 1 else "p2p" if rotate == "alltoall" else "all-gather",
        **off_values("rank_order", "optimizer_offload"),
        **off_values("activation_offload_layers", "dp_overlap"),
    }
    entries["tp_overlap"] = entries["sp"] and any(read.switch(key) for key in ASYNC_TP)
    rest = tp * pp * cp * max(1, replicate)
    if shard < 0:
        if not n_devices or n_devices % rest:
            return entries | ({"n_devices": n_devices} if n_devices else {})
        shard = n_devices // rest
    entries |= {"n_devices": shard * rest, "dp": shard * replicate, "dp_shard": shard * cp}
    if n_devices:
        entries["n_devices"] = n_devices
    sharded = shard * cp > 1
    policy = read.text("parallelism.fsdp_reshard_after_forward", "default")
    keeps = policy == "never" or (policy == "default" and pp > 1)
    # In a pipeline gradients are reduced once a step, not for every micro-batch.
    entries["zero"] = (1 if pp > 1 else 2 if keeps else 3) if sharded else 0
    if n_devices and shard * rest != n_devices:
        del entries["dp"], entries["dp_shard"]
    if not sharded and "dp" in entries:
        entries["dp_shard"] = entries["dp"] * cp  # no group of its own: as a plan has it
    return entries


def _batch(read: Reader, layout: Mapping[str, Any]) -> dict[str, Any]:
    """Return micro-batch, batch and micro-batches of a step.

    With a pipeline the local batch is cut into micro-batches; accumulation repeats it.
    """
    local = read.number("training.local_batch_size", 8)
    total = read.number("training.global_batch_size", -1)
    mbs = max(1, local)
    if layout["pp"] > 1:
        mbs = max(1, read.number("parallelism.pipeline_parallel_microbatch_size", 1))
    entries: dict[str, Any] = {"mbs": mbs}
    dp = layout.get("dp")
    if total > 0:
        entries["gbs"] = total
    elif dp:
        entries["gbs"] = local * dp
    if dp and entries["gbs"] % (mbs * dp) == 0:
        entries["n_micro"] = entries["gbs"] // (mbs * dp)
    return entries


def _precision(read: Reader, notes: list[str]) -> str:
    converters = " ".join(str(x).lower() for x in read.settings.get("model.converters") or ())
    fp8 = "float8" in converters or "Float8" in converters
    recipe = next(
        (
            str(read.settings[key])
            for key in ("quantize.linear.float8.recipe_name", "float8.recipe_name")
            if read.given(key)
        ),
        "",
    )
    if "mx" in converters:
        return "fp8-mxfp8"
    if fp8:
        return "fp8-rowwise" if recipe.startswith("rowwise") else "fp8-tensorwise"
    if read.text("training.dtype", "float32") == "bfloat16":
        notes.append(
            "training.dtype bfloat16: priced with fp32 master weights and optimizer"
            " states; memory is overestimated"
        )
    if read.text("training.mixed_precision_param", "bfloat16") == "float32":
        return "fp32"
    return "bf16"


def stage_counts(n_stages: int, layers: int, first: int = 1, last: int = 1) -> tuple[int, ...]:
    """Return the layers of each virtual stage; () where torchtitan refuses to cut them.

    The ends hold `first` and `last` layers fewer; larger shares come first
    (torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part).

    >>> stage_counts(4, 32), stage_counts(1, 32)
    ((8, 9, 8, 7), (32,))
    """
    if n_stages == 1:
        return (layers,)
    share, rest = divmod(layers + first + last, n_stages)
    if share == 0 or max(first, last) > share:
        return ()
    counts = [share + (i < rest) for i in range(n_stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def _stages(read: Reader, layers: int, notes: list[str]) -> dict[str, Any]:
    pp = read.number("parallelism.pipeline_parallel_degree", 1)
    if pp == 1:
        return {"vpp": 1, "schedule": "none", "split": "even", "counts": (layers,)}
    name = read.text("parallelism.pipeline_parallel_schedule", "1F1B").lower()
    if name not in SCHEDULES:
        return {"vpp": 1}
    schedule = SCHEDULES[name]
    if name in ("loopedbfs", "interleavedzerobubble"):
        notes.append(f"schedule {name}: priced as Interleaved1F1B")
    first, last = (
        read.number(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1)
        for end in ("first", "last")
    )
    parts = read.settings.get("parallelism.module_fqns_per_model_part")
    split = split_counts(read.settings.get(SPLIT_POINTS), layers)
    if isinstance(parts, list) and parts:
        counts = tuple(sum(str(x).startswith("layers.") for x in part) for part in parts)
        stages = len(parts)
    elif split:
        counts, stages = split, len(split)
    else:
        per_stage = read.number("parallelism.pipeline_parallel_layers_per_stage")
        stages = pp * (1 if name in ONE_STAGE else 2)
        if per_stage:
            stages = math.ceil((layers + first + last) / per_stage)
        counts = stage_counts(stages, layers, first, last)
    if stages % pp:
        return {}
    vpp = stages // pp
    entries: dict[str, Any] = {"vpp": vpp, "schedule": schedule}
    if counts and min(counts) > 0:
        entries["counts"] = counts
        named = (n for n in ("even", "ends") if stage_layers(layers, pp, vpp, n) == counts)
        entries["split"] = next(named, spelled(counts))
    return entries


def _recompute(
    read: Reader, layout: Mapping[str, Any], layers: int, notes: list[str]
) -> dict[str, Any]:
    mode = read.text("activation_checkpoint.mode", "selective")
    policy = read.text("activation_checkpoint.policy", mode)
    n_layers = max(layout.get("counts") or (layers,))
    if policy == "full":
        return {"recompute": "full", "recompute_layers": n_layers}
    if policy == "first-layers":
        n = read.number("activation_checkpoint.layers", n_layers)
        return {"recompute": "full", "recompute_layers": min(n, n_layers)}
    if policy == "attention-core":
        return {"recompute": "selective", "recompute_layers": 0}
    if mode == "selective":
        option = read.text("activation_checkpoint.selective_ac_option", "2")
        if option.isdecimal() and int(option) > 0:
            every = -(-n_layers // int(option))
            return {"recompute": "full", "recompute_layers": every}
        notes.append("selective recomputation by operator: priced as full for half of the layers")
        return {"recompute": "full", "recompute_layers": -(-n_layers // 2)}
    if mode == "memory_budget":
        notes.append("recomputation by a memory budget is not modelled: priced without any")
    return {"recompute": "none", "recompute_layers": 0}


ASYNC_TP = (
    "parallelism.enable_async_tensor_parallel",
    "compile.enable_async_tensor_parallel",
)
"""Names of one setting: up to release 0.2, and from 0.3."""


def _stack(read: Reader, layout: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Switch, ...]]:
    """Return what torch.compile and the exchange of tokens change in the profile, and switches."""
    changed: dict[str, Any] = {}
    switches: list[Switch] = []
    components = read.settings.get("compile.components")
    enabled = read.switch("compile.enable") or read.switch("training.compile")
    if enabled and (components is None or "model" in components):
        changed["compiled"] = True
    else:
        sets = [("compile.enable", "true")]
        sets += [("compile.components", "[model, loss]")] * (components is not None)
        text = "set compile.enable = true (components model and loss)"
        switches.append(Switch(text, tuple(sets)))
    if layout["ep"] > 1:
        backend = read.text("parallelism.expert_parallel_comm_backend", "standard")
        if backend in ("deepep", "hybridep"):
            changed["expert_dispatch"] = "deduplicated"
        else:
            key = "parallelism.expert_parallel_comm_backend"
            switches.append(Switch(f'set {key} = "deepep"', ((key, "deepep"),)))
    return changed, tuple(switches)
