"""What the tests of the emitters share: a pool, a layout, golden files, a reader of recipes."""

import ast
from pathlib import Path
from typing import Any

from costmodels.examples import LLAMA3_8B, toy_accelerator
from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from hardware.parts import Link, Pool
from tests.snapshots import check_snapshot

GOLDENS = Path(__file__).parents[1] / "goldens" / "emit"
HEADER = ["plan 0123456789ab of result ba9876543210", "planner 0.1.0"]
JOB = TrainingJob(seq_len=8192, global_batch=128)


def pool(generation: str = "hopper", per_node: int = 8) -> Pool:
    none = (0.0, 0.0, 0.0)
    link = Link("none", "scale-up", 1.0, 1.0, none, none, none, none, none, none, 0.0)
    part = toy_accelerator(generation=generation)
    return Pool("test", part, 4096, per_node, per_node, link, per_node, link, 0.0)


def layout(shape: ModelShape = LLAMA3_8B, **changes: Any) -> Layout:
    """One layout on 8 devices with even stages, changed where a test says so."""
    base: dict[str, object] = {
        "n_devices": 8,
        "tp": 1,
        "pp": 1,
        "vpp": 1,
        "split": "even",
        "mbs": 1,
        "gbs": 128,
        "zero": 1,
        "sp": False,
        "recompute": "none",
        "recompute_layers": 0,
    } | changes
    n, tp, pp, vpp = (int(str(base[key])) for key in ("n_devices", "tp", "pp", "vpp"))
    base.setdefault("dp", n // (tp * pp))
    base.setdefault("schedule", "none" if pp == 1 else "interleaved" if vpp > 1 else "1f1b")
    base.setdefault("stage_layers", (shape.layers // (pp * vpp),) * (pp * vpp))
    return Layout(**base)  # type: ignore[arg-type]


def golden(name: str, text: str) -> None:
    """Compare with the stored text; `pytest --renew` stores it anew."""
    check_snapshot(GOLDENS / name, text)


def keywords_of(recipe: str, call: str) -> dict[str, Any]:
    """Return the keyword arguments of the first call of `call` in a Python recipe.

    Literals as values, constants of the module looked up, anything else as its source.
    """
    constants = constants_of(recipe)
    for node in ast.walk(ast.parse(recipe)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == call:
            return {str(word.arg): _value(word.value, constants) for word in node.keywords}
    raise AssertionError(f"no call of {call}")


def constants_of(recipe: str) -> dict[str, Any]:
    """Return the constants at the top of a recipe."""
    return {
        node.targets[0].id: node.value.value
        for node in ast.parse(recipe).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }


def _value(node: ast.expr, constants: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
