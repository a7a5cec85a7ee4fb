"""What the tests of the emitters share: a pool, a layout, golden files."""

import os
from pathlib import Path
from typing import Any

from costmodels.examples import LLAMA3_8B
from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.testing import toy_accelerator
from hardware.parts import Link, Pool

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
        "n_devices": 8, "tp": 1, "pp": 1, "vpp": 1, "split": "even", "mbs": 1, "gbs": 128,
        "zero": 1, "sp": False, "recompute": "none", "recompute_layers": 0,
    } | changes  # fmt: skip
    n, tp, pp, vpp = (int(str(base[key])) for key in ("n_devices", "tp", "pp", "vpp"))
    base.setdefault("dp", n // (tp * pp))
    base.setdefault("schedule", "none" if pp == 1 else "interleaved" if vpp > 1 else "1f1b")
    base.setdefault("stage_layers", (shape.layers // (pp * vpp),) * (pp * vpp))
    return Layout(**base)  # type: ignore[arg-type]


def golden(name: str, text: str) -> None:
    """Compare with the stored text; UPDATE_GOLDENS=1 stores it anew."""
    file = GOLDENS / name
    if os.environ.get("UPDATE_GOLDENS") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"{file} differs; UPDATE_GOLDENS=1 stores the new text"
