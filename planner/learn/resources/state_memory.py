"""ZeRO and FSDP: what a device holds of weights, gradients and optimizer, and the walls."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodels.memory import param_bytes_kept, state_bytes_per_param
from costmodels.precision import RECIPES, Recipe
from planner.learn import fields
from planner.learn.machines import DEFAULT_DEVICE, OWN, devices, models, of_device, of_model
from planner.learn.results import (
    Calculator,
    CalculatorResult,
    Difference,
    NamedTable,
    Number,
    Preset,
    shown,
    sig,
)
from planner.learn.writeups import GUIDE, MODELER
from planner.render.report.answers import AnswerTable

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart

STAGES = (
    (0, "0: nothing sharded", "W + G + K"),
    (1, "1: optimizer", "W + G + K/D"),
    (2, "2: and gradients", "W + (G + K)/D"),
    (3, "3: and weights (FSDP)", "(W + G + K)/D"),
)
ZERO = "Rajbhandari et al. 2020 (ZeRO), section 5; costmodels.memory.state_bytes_per_param"
SIXTEEN, EIGHTEEN = RECIPES["bf16-grads", "adam"], RECIPES["bf16", "adam"]


def recipes() -> tuple[tuple[str, str], ...]:
    """Return the recipes that differ in bytes, as a choice."""
    return tuple(
        (name, f"{name}: {recipe.total_bytes:g} bytes, {recipe.name}")
        for (name, _), recipe in RECIPES.items()
        if not name.startswith("fp8")
    )


@dataclass(frozen=True, slots=True)
class StateMemoryInputs:
    """A model, a recipe and how many devices share it."""

    model: str = fields.choice("Model", OWN, models(), group="Model")
    params: float = fields.number_field(
        "Parameters",
        of_model("params", 7e9),
        fields.InputRange(1e-3, 1e6, "billion"),
        follows="the model, 7 billion without one",
        group="Model",
    )
    recipe: str = fields.choice(
        "Recipe", "bf16-grads", recipes(), note="bytes of a parameter", group="Model"
    )
    ranks: int = fields.count_field(
        "Data-parallel devices",
        8,
        fields.InputRange(1, 1_000_000),
        note="D, among which ZeRO shards",
        group="Machine",
    )
    model_parallel: int = fields.count_field(
        "Devices that split the model",
        1,
        fields.InputRange(1, 100_000),
        note="t p: tensor times pipeline",
        group="Machine",
    )
    device: str = fields.choice("Device", DEFAULT_DEVICE, devices(), group="Machine")
    memory_bytes: float = fields.size_field(
        "Memory of a device",
        of_device("memory"),
        fields.InputRange(0.1, 1e5, "GB"),
        follows="the device",
        group="Machine",
    )
    reserve: float = fields.percent_field(
        "Kept for activations and the rest",
        30,
        fields.InputRange(0, 95, "%"),
        note="of the memory",
        group="Machine",
    )
    unit_params: float = fields.number_field(
        "Largest unit that FSDP gathers",
        0,
        fields.InputRange(0, 1e5, "million"),
        note="two of them stand beside the shards",
        group="Model",
    )

    @property
    def local(self) -> float:
        """Parameters of a device after tensor and pipeline parallelism."""
        return self.params / self.model_parallel

    @property
    def usable_bytes(self) -> float:
        """What states may take."""
        return self.memory_bytes * (1 - self.reserve)


def device_bytes(recipe: Recipe, zero: int, ranks: int, params: float, unit: float = 0.0) -> float:
    """Return the states of one device under a ZeRO stage, bytes; `unit` as in the inputs.

    Stage 3 adds two gathered units of weights and two of gradients, stage 2 those of gradients
    (`costmodels.memory.zero3_working_bytes` has the largest unit of a real model).
    """
    each = state_bytes_per_param(recipe, zero, ranks).item()
    gathered = {2: recipe.param_wire_bytes, 3: recipe.param_bytes + recipe.param_wire_bytes}
    return float(params * each + 2 * unit * gathered.get(zero, 0.0))


def largest_model(recipe: Recipe, zero: int, ranks: int, usable: float) -> float:
    """Return the parameters of a device's part whose states fit: memory / bytes per parameter."""
    return float(usable / state_bytes_per_param(recipe, zero, ranks).item())


def state_memory_result(x: StateMemoryInputs) -> CalculatorResult:
    """Return the answer."""
    recipe, d, n = RECIPES[x.recipe, "adam"], x.ranks, x.local
    w, _, g, k = param_bytes_kept(recipe)
    numbers = [
        Number(
            "state",
            "States of the whole model",
            x.params * recipe.total_bytes,
            "memory",
            "(W + G + K) N",
            f"({w:g} + {g:g} + {k:g}) * {sig(x.params)}",
            ZERO,
            f"{recipe.total_bytes:g} bytes a parameter: weights, gradients, optimizer with its "
            "master copy",
        )
    ]
    fits = []
    for zero, name, formula in STAGES:
        resident_bytes = device_bytes(recipe, zero, d, n, x.unit_params)
        ok = resident_bytes <= x.usable_bytes
        fits += [zero] if ok else []
        put = {
            0: f"({w:g} + {g:g} + {k:g})",
            1: f"({w:g} + {g:g} + {k:g}/{d})",
            2: f"({w:g} + ({g:g} + {k:g})/{d})",
            3: f"({w:g} + {g:g} + {k:g})/{d}",
        }[zero]
        numbers.append(
            Number(
                f"zero{zero}",
                f"A device with stage {name}",
                resident_bytes,
                "memory",
                f"({formula}) N",
                f"{put} * {sig(n)}",
                ZERO,
                f"of {shown(x.usable_bytes, 'bytes')} that states may take",
                "fits" if ok else "does not fit",
            )
        )
    for zero, name, formula in STAGES:
        maximum = largest_model(recipe, zero, d, x.usable_bytes) * x.model_parallel
        numbers.append(
            Number(
                f"largest{zero}",
                f"Largest model with stage {name}",
                maximum,
                "params",
                f"t p M / ({formula})",
                f"{x.model_parallel} * {shown(x.usable_bytes, 'bytes')} / "
                f"{sig(state_bytes_per_param(recipe, zero, d).item())}",
                ZERO,
            )
        )
    least = math.ceil(recipe.total_bytes * n / x.usable_bytes)
    walls = (
        largest_model(recipe, 1, 10**9, x.usable_bytes) * x.model_parallel,
        largest_model(recipe, 2, 10**9, x.usable_bytes) * x.model_parallel,
    )
    numbers += [
        Number(
            "least_devices",
            "Fewest devices that hold the states",
            least * x.model_parallel,
            "devices",
            "t p ceil((W + G + K) N / (t p M))",
            f"{x.model_parallel} * ceil({sig(recipe.total_bytes * n)} / {sig(x.usable_bytes)})",
            ZERO,
            "with stage 3, gathered units left out",
        ),
        Number(
            "wall1",
            "Wall of stage 1",
            walls[0],
            "params",
            "t p M / (W + G)",
            f"{x.model_parallel} * {sig(x.usable_bytes)} / {w + g:g}",
            ZERO,
            "the largest model however many devices shard",
        ),
        Number(
            "wall2",
            "Wall of stage 2",
            walls[1],
            "params",
            "t p M / W",
            f"{x.model_parallel} * {sig(x.usable_bytes)} / {w:g}",
            ZERO,
            "the largest model however many devices shard",
        ),
    ]
    word = f"stage {fits[0]} fits" if fits else "no stage fits"
    return CalculatorResult(
        f"{shown(x.params, 'params')} parameters at {recipe.total_bytes:g} bytes are "
        f"{shown(x.params * recipe.total_bytes, 'bytes')}; on {d} devices {word}.",
        tuple(numbers),
        _advice(x, fits, walls),
        (_table(x),),
        tuple(_differences(x)),
        (
            "Activations, logits, communication buffers, the CUDA context: the reserve stands "
            "for them; `planner learn activations` has the first.",
            "Experts, which shard over their own group.",
            "Traffic: `planner learn data-parallel`.",
        ),
    )


def _advice(x: StateMemoryInputs, fits: list[int], walls: tuple[float, float]) -> tuple[str, ...]:
    if 0 in fits:
        return ("Everything fits without sharding: stage 1 costs no traffic and frees memory.",)
    if fits:
        return (f"Stage {fits[0]} is the first that fits; higher ones cost more traffic.",)
    results = ["No stage fits: more devices, or tensor or pipeline parallelism."]
    if x.params > walls[1]:
        results.append(
            "Stages 1 and 2 never fit, however many devices: weights alone are too much."
        )
    elif x.params > walls[0]:
        results.append(
            "Stage 1 never fits, however many devices: weights and gradients alone do not."
        )
    return tuple(results)


def _table(x: StateMemoryInputs) -> NamedTable:
    rows = []
    for name, recipe in (
        ("16 bytes: 2-byte gradients", SIXTEEN),
        ("18 bytes: fp32 gradients", EIGHTEEN),
    ):
        cells = [
            shown(device_bytes(recipe, zero, x.ranks, x.local), "bytes") for zero, *_ in STAGES
        ]
        rows.append((name, *cells))
    heads = ("Recipe", *(f"Stage {zero}" for zero, *_ in STAGES))
    return NamedTable(f"States of a device, {x.ranks} sharing", AnswerTable(heads, tuple(rows)))


def _differences(x: StateMemoryInputs) -> list[Difference]:
    recipe, d, n = RECIPES[x.recipe, "adam"], x.ranks, x.local
    double = 2 * n + 2 * n + SIXTEEN.total_bytes * n
    sharded = (2 + SIXTEEN.total_bytes) * n / d
    theirs = {0: double, 1: 4 * n + 16 * n / d, 2: 2 * n + sharded, 3: (20 / d) * n}
    why = (
        "The 16 bytes a parameter already hold weights and gradients; the table adds them once "
        "more (14 + 14 + 112 GB for 7 billion)."
    )
    results = [
        Difference(
            f"double{zero}",
            f"stage {zero}: {formula}",
            GUIDE,
            theirs[zero],
            device_bytes(recipe, zero, d, n),
            "bytes",
            why,
        )
        for zero, formula in (
            (0, "2N + 2N + 16N"),
            (1, "2N + 2N + 16N/P"),
            (2, "2N + (2N + 16N)/P"),
            (3, "(2N + 2N + 16N)/P"),
        )
    ]
    return [
        *results,
        Difference(
            "wide_weights",
            "ZeRO-2 = 4N + 14N/P",
            GUIDE,
            4 * n + 14 * n / d,
            device_bytes(recipe, 2, d, n),
            "bytes",
            "Weights of 4 bytes in a recipe whose weights are fp16, 2 bytes.",
        ),
        Difference(
            "seven_bytes",
            "weights, gradients and optimizer of 175 billion: 1.2 TB (7 bytes)",
            MODELER,
            7 * x.params,
            x.params * recipe.total_bytes,
            "bytes",
            "Weights 2, gradients "
            "2 or 4, fp32 master copy 4 and two moments of 4: 16 or 18 bytes.",
        ),
    ]


def state_memory_charts(x: StateMemoryInputs) -> "tuple[Chart, ...]":
    """Return states and the largest model over the number of devices."""
    from planner.learn.drawing import Axes, ChartText, Line, doubled, lines_chart

    recipe = RECIPES[x.recipe, "adam"]
    places = doubled(1, max(1024, 2 ** math.ceil(math.log2(x.ranks))))
    states = [
        Line(
            f"stage {zero}",
            [device_bytes(recipe, zero, d, x.local, x.unit_params) / 1e9 for d in places],
        )
        for zero, *_ in STAGES
    ]
    models_ = [
        Line(
            f"stage {zero}",
            [
                largest_model(recipe, zero, d, x.usable_bytes) * x.model_parallel / 1e9
                for d in places
            ],
        )
        for zero, *_ in STAGES
    ]
    return (
        lines_chart(
            ChartText(
                "states",
                "States of a device over the devices that share them",
                "Stage 1 falls to weights and gradients, stage 2 to weights, stage 3 without end.",
            ),
            Axes(
                ("Data-parallel devices", places),
                "GB",
                log_y=True,
                here=x.ranks,
                level=("what states may take", x.usable_bytes / 1e9),
            ),
            states,
        ),
        lines_chart(
            ChartText(
                "largest",
                "Largest model over the devices that share it",
                "Stages 1 and 2 run into a wall; stage 3 grows with the devices.",
            ),
            Axes(
                ("Data-parallel devices", places),
                "billion parameters",
                log_y=True,
                here=x.ranks,
                level=("the model", x.params / 1e9),
            ),
            models_,
        ),
    )


CALCULATOR = Calculator(
    "memory",
    "ZeRO and FSDP memory walls",
    "What does each ZeRO stage leave on a device, and which model is the largest that fits?",
    StateMemoryInputs,
    state_memory_result,
    state_memory_charts,
    (
        Preset("7 billion on 8 devices, 16 bytes", {}),
        Preset("The same, fp32 gradients", {"recipe": "bf16"}),
        Preset("65 billion on 64", {"params": "65", "ranks": "64"}),
        Preset(
            "GPT-3 split over 64, 16 replicas",
            {"params": "175", "model_parallel": "64", "ranks": "16", "recipe": "bf16"},
        ),
        Preset(
            "Llama 3 405B, FSDP over 1024",
            {"model": "llama3-405b", "ranks": "1024", "unit_params": "3190"},
        ),
    ),
)
