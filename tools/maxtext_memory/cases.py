"""Plans whose steps were compiled for TPUs, of models cut in depth."""

from dataclasses import dataclass, replace
from typing import Any

from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B
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
        """MaxText's `compile_topology`: v5p counts cores, two a chip."""
        n = self.layout.n_devices * (2 if self.chip == "v5p" else 1)
        return f"{self.chip}-{n}"

    @property
    def pool(self) -> Pool:
        """One slice."""
        n = self.layout.n_devices
        part = load_catalogue().accelerator(CHIPS[self.chip])
        return replace(pool_of("tpu", n, n, "Google"), accelerator=part)


def case(name: str, shape: ModelShape, layers: int, seq_len: int = 2048, **changes: Any) -> Case:
    """Return a case of ZeRO-3 on 8 chips with full recomputation, changed where it says so."""
    chip = changes.pop("chip", "v6e")
    n, tp, mbs = (
        changes.setdefault(key, x) for key, x in (("n_devices", 8), ("tp", 1), ("mbs", 1))
    )
    dp, n_micro = n // tp, changes.pop("n_micro", 1)
    full = {"recompute": "full", "recompute_layers": layers}
    base = {"dp": dp, "zero": 3, "sp": tp > 1, "gbs": mbs * dp * n_micro, **full}
    cut = replace(shape, layers=layers)
    return Case(name, cut, layout(cut, **base | changes), seq_len, chip)


NONE = {"recompute": "none", "recompute_layers": 0}
MLP, CORE = (
    {"recompute": "selective", "recompute_layers": 0, "recompute_modules": (name,)}
    for name in ("mlp", "core_attn")
)
CONTEXT = {"cp": 2, "dp": 4, "shard": 8, "cp_comm": "all-gather", "gbs": 4}
DEEPSEEK_5 = replace(DEEPSEEK_V3, mtp_layers=0)
"""Three dense layers and two with experts, by its first layers."""


def matrix() -> list[Case]:
    """Return Llama 3 8B by depth, tensor parallelism, micro-batch and recomputation on 8 chips."""
    return [
        case(f"llama-{n}-tp{tp}-mbs{mbs}-{word}", LLAMA3_8B, n, tp=tp, mbs=mbs, **again)
        for n in (4, 8, 12)
        for tp in (1, 2)
        for mbs in (1, 2)
        for word, again in (("full", {}), ("none", NONE))
    ]


def others() -> list[Case]:
    """Return what else a step may differ in: shards, accumulation, experts, depth, offloading."""
    return [
        *(case(f"llama-12-{n}-chips", LLAMA3_8B, 12, n_devices=n) for n in (16, 32, 64, 256)),
        case("llama-4-2-micro-batches", LLAMA3_8B, 4, n_micro=2),
        case("llama-4-zero-0", LLAMA3_8B, 4, zero=0),
        case("llama-4-zero-1", LLAMA3_8B, 4, zero=1),
        case("llama-4-zero-1-2-micro-batches", LLAMA3_8B, 4, zero=1, n_micro=2),
        case("llama-8-tokens-8k", LLAMA3_8B, 8, seq_len=8192),
        case("llama-8-tokens-8k-offload", LLAMA3_8B, 8, seq_len=8192, activation_offload_layers=8),
        case("mixtral-4", MIXTRAL_8X7B, 4),
        case("mixtral-4-ep4", MIXTRAL_8X7B, 4, ep=4),
        case("llama-32-64-chips-tokens-16k", LLAMA3_8B, 32, seq_len=8192, mbs=2, n_devices=64),
        case("llama-32-64-chips-none", LLAMA3_8B, 32, n_devices=64, **NONE),
        case("llama-70b-64-chips-tokens-8k", LLAMA3_70B, 80, seq_len=8192, n_devices=64),
        case("llama-8-tokens-8k-mlp", LLAMA3_8B, 8, seq_len=8192, **MLP),
        case("llama-8-tokens-8k-core-attn", LLAMA3_8B, 8, seq_len=8192, **CORE),
        case("llama-8-tokens-8k-cp2", LLAMA3_8B, 8, seq_len=8192, **CONTEXT),
        case("deepseek-v3-5-ep8", DEEPSEEK_5, 5, ep=8, n_devices=32),
        case("llama-8-v5p", LLAMA3_8B, 8, chip="v5p"),
        case("llama-8-v5p-none", LLAMA3_8B, 8, chip="v5p", **NONE),
    ]


def all_cases() -> list[Case]:
    """Return every case; their names are those of the kept table."""
    return [*matrix(), *others()]
