"""Plans whose steps were compiled for TPUs: models cut in depth, so that a compiler takes minutes."""

from dataclasses import dataclass, replace
from typing import Any

from costmodels.examples import LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B
from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from hardware.catalogue import load_catalogue
from hardware.parts import Pool
from tests.planner.emitting import layout
from tools.samples.draw import pool_of

CHIPS = {"v6e": "tpu-v6e", "v5p": "tpu-v5p"}
"""Parts of the catalogue by the first word of MaxText's `compile_topology`."""


@dataclass(frozen=True, slots=True)
class Case:
    """One plan, and what it is compiled for."""

    name: str
    shape: ModelShape
    layout: Layout
    seq_len: int
    chip: str = "v6e"

    @property
    def job(self) -> TrainingJob:
        """What is trained."""
        return TrainingJob(self.seq_len, self.layout.gbs)

    @property
    def topology(self) -> str:
        """MaxText's `compile_topology`."""
        return f"{self.chip}-{self.layout.n_devices}"

    @property
    def pool(self) -> Pool:
        """One slice."""
        n = self.layout.n_devices
        part = load_catalogue().accelerator(CHIPS[self.chip])
        return replace(pool_of("tpu", n, n, "Google"), accelerator=part)


def case(
    name: str, shape: ModelShape, layers: int, seq_len: int = 2048, **changes: Any
) -> Case:
    """Return a case of ZeRO-3 on 8 chips with full recomputation, changed where it says so."""
    chip = changes.pop("chip", "v6e")
    n, tp, mbs = (changes.setdefault(key, x) for key, x in (("n_devices", 8), ("tp", 1), ("mbs", 1)))
    dp, n_micro = n // tp, changes.pop("n_micro", 1)
    full = {"recompute": "full", "recompute_layers": layers}
    base = {"dp": dp, "zero": 3, "sp": tp > 1, "gbs": mbs * dp * n_micro, **full}
    cut = replace(shape, layers=layers)
    return Case(name, cut, layout(cut, **base | changes), seq_len, chip)


NONE = {"recompute": "none", "recompute_layers": 0}


def matrix() -> list[Case]:
    """Return Llama 3 8B by depth, tensor parallelism, micro-batch and recomputation on 8 chips."""
    return [
        case(f"llama-{n}-tp{tp}-mbs{mbs}-{word}", LLAMA3_8B, n, tp=tp, mbs=mbs, **again)
        for n in (4, 8, 12)
        for tp in (1, 2)
        for mbs in (1, 2)
        for word, again in (("full", {}), ("none", NONE))
    ]
