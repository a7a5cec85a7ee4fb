"""torchtitan's recipes (Python, from 0.3) to a run.

A recipe is read from its syntax tree and never executed: calls of functions in the same file are
followed, configuration classes become sections, everything else is passed over.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.megatron.layer_kinds import kind_runs
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.settings import flattened, with_set
from planner.frameworks.torchtitan.flavors import flavors
from planner.frameworks.torchtitan.reader import run_of_settings
from planner.frameworks.torchtitan.releases import with_sizes_in_sequences

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


def looks_like_recipe(text: str) -> bool:
    """Tell whether a text is a torchtitan recipe."""
    return "Trainer.Config" in text or bool(
        re.search(r"from torchtitan\b.* import|import torchtitan\b", text)
        and re.search(r"^def ", text, re.M)
    )


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
    changed = _with_recompute(with_set(flattened(_sections(config)), query.sets))
    settings = with_sizes_in_sequences(changed)
    settings.setdefault("model.name", _family(text, name))
    if backend := re.search(r"(?:get_attention_config\(|attn_backend=)\"(\w+)\"", text):
        settings.setdefault("model.attn_backend", backend[1])
    constants = {key.lower(): value for key, value in evaluator.names.items()}
    kind = f"torchtitan recipe ({name})"
    sizes = _written_sizes(constants, text)
    return run_of_settings(settings, source, kind, query, sizes, launched=launched)


def _with_recompute(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings whose recomputation, where `--set` names it in a word, is that one."""
    word = settings.get("activation_checkpoint")
    policy = {"none": "none", "full": "full", "selective": "attention-core"}.get(str(word))
    if policy is None:
        return settings
    others = {k: x for k, x in settings.items() if not k.startswith("activation_checkpoint")}
    mode = {"activation_checkpoint.mode": word, "activation_checkpoint.policy": policy}
    return {**others, **mode}


def _written_sizes(constants: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the sizes that a recipe of the planner states as constants; {} in other recipes."""
    if not all(isinstance(constants.get(k), int) for k in ("layers", "hidden", "heads", "vocab")):
        return {}
    biased = "GptOss" in text
    window, unwindowed = constants.get("window"), constants.get("full_attention")
    if isinstance(window, int) and isinstance(unwindowed, list):
        kinds = ["moe" if i in unwindowed else "window+moe" for i in range(constants["layers"])]
        constants = {**constants, "window": {"size": window}, "layer_kinds": kind_runs(kinds)}
    return {**constants, "tied": "enable_weight_tying=True" in text, "bias": biased}


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
