"""Plans of every kind that the plan view is tested on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from costmodels.problem import Problem
from planner.render.plan_view.data import PlanView, plan_view
from planner.render.plan_view.page import plan_body
from planner.solver.answer.result import Plan, Result
from planner.solver.solve import evaluate
from planner.solver.sources import read_inputs
from planner.specs.inputs import ClusterInput, ModelInput
from tests.repeats import halved, slow


@dataclass(frozen=True)
class Spec:
    """A layout of an example."""

    model: str
    cluster: str
    pins: Mapping[str, object]
    framework: str = "default"
    stack: str = ""
    sets: tuple[tuple[str, object], ...] = field(default=())


SMALL = (("training.global_batch", 64),)
SPECS: dict[str, Spec] = {
    "dense": Spec("llama3-8b", "h100-x8", {"tp": 2, "zero": 1}, sets=SMALL),
    "interleaved": Spec(
        "llama3-70b",
        "h100-x512",
        {"tp": 8, "pp": 4, "vpp": 5, "dp": 16, "recompute": "full"},
        sets=(("training.global_batch", 128), ("pools.0.price_per_hour", 2.5)),
    ),
    "experts": Spec("mixtral-8x7b", "h100-x512", {"tp": 2, "pp": 2, "ep": 8, "zero": 1}),
    "torus": Spec("mixtral-8x7b", "64xtpu-v5p", {"tp": 2, "ep": 8, "zero": 3}),
    "muon": Spec(
        "llama3-8b",
        "h100-x512",
        {"tp": 4, "pp": 2, "zero": 1},
        sets=(("training.optimizer", "muon"), ("training.precision", "fp8-tensorwise")),
    ),
    "muon-of-experts": Spec(
        "mixtral-8x7b",
        "h100-x512",
        {"tp": 2, "pp": 2, "ep": 8, "zero": 1},
        sets=(("training.optimizer", "muon"),),
    ),
    "cp": Spec(
        "llama3-8b",
        "h100-x512",
        {"tp": 2, "cp": 8, "pp": 2, "zero": 1, "cp_comm": "p2p"},
        sets=(("training.seq_len", 131072), ("training.global_batch", 64)),
    ),
    "adapters": Spec(
        "llama3-70b",
        "h100-x8",
        {"tp": 4, "pp": 2, "devices": 8},
        framework="bridge",
        sets=(
            ("training.task", "lora"),
            ("training.lora.targets", "linear_qkv,linear_proj"),
            ("training.lora.dropout", 0.1),
            *SMALL,
        ),
    ),
    "quantized-base": Spec(
        "llama3-8b",
        "h100-x8",
        {"zero": 3, "recompute": "full"},
        framework="fsdp2",
        sets=(("training.task", "qlora"), *SMALL),
    ),
    "adapters-of-experts": Spec(
        "mixtral-8x7b",
        "h100-x8",
        {"ep": 4},
        framework="bridge",
        sets=(
            ("training.task", "lora"),
            ("training.lora.targets", "all-linear,experts"),
            *SMALL,
        ),
    ),
    "zero3": Spec("llama3-8b", "h100-x512", {"zero": 3, "devices": 64}, framework="fsdp2"),
    "optimizer-offload": Spec(
        "llama3-8b",
        "h100-x8",
        {"tp": 1, "zero": 2, "optimizer_offload": "on"},
        framework="deepspeed",
        sets=SMALL,
    ),
    "one-device": Spec("llama3-8b", "h100-x8", {"devices": 1, "recompute": "full"}, sets=SMALL),
    "selective": Spec(
        "gpt3-175b",
        "a100-x1024",
        {"tp": 8, "pp": 8, "recompute": "selective"},
        sets=(("model.flash_attention", False),),
    ),
    "latent": Spec(
        "deepseek-v3",
        "h800-x2048",
        {"pp": 16, "ep": 64, "zero": 1, "split": "ends", "recompute_modules": "mla_up_proj"},
        stack="megatron-core-deepep",
    ),
    "fp8-latent": Spec(
        "deepseek-v3",
        "h800-x2048",
        {"pp": 16, "ep": 64, "zero": 1, "split": "ends", "precision": "fp8-blockwise"},
        sets=(("training.bf16_layers", [1, 1]), ("training.optimizer_states", "bf16-moments")),
    ),
    "fp8-gathered": Spec(
        "llama3-70b",
        "b200-x256",
        {"tp": 4, "pp": 2, "zero": 1},
        sets=(("training.precision", "fp8-tensorwise"), ("training.fp8_param_gather", True)),
    ),
    "hpz": Spec(
        "llama3-8b", "h100-x512", {"zero": 3, "hpz": 8, "devices": 64}, framework="deepspeed"
    ),
    "activation-offload": Spec(
        "llama3-8b", "h100-x8", {"tp": 2, "zero": 1, "activation_offload_layers": 16}, sets=SMALL
    ),
    "activation-inputs": Spec(
        "llama3-8b",
        "h100-x8",
        {
            "tp": 1,
            "zero": 1,
            "recompute": "full",
            "recompute_layers": 32,
            "activation_offload_layers": 32,
        },
        sets=SMALL,
    ),
    "module-offload": Spec(
        "llama3-8b",
        "h100-x8",
        {"pp": 2, "vpp": 2, "zero": 1, "offload_modules": "core_attn+attn_proj"},
        sets=(*SMALL, ("pools.0.host_link", "5 GB/s")),
    ),
    "module-offload-experts": Spec(
        "mixtral-8x7b",
        "h100-x512",
        {
            "pp": 2,
            "ep": 8,
            "zero": 1,
            "recompute_modules": "layernorm",
            "offload_modules": "qkv_linear+core_attn+attn_proj+mlp_norm+expert_fc1+moe_act",
        },
    ),
    "rack": Spec(
        "qwen3-235b-a22b",
        "gb200-nvl72-x576",
        {"tp": 1, "pp": 2, "ep": 32, "zero": 1, "devices": 64},
    ),
    "fp8": Spec(
        "llama3-70b",
        "b200-x256",
        {"tp": 2, "pp": 4, "zero": 1},
        sets=(("training.precision", "fp8-blockwise"),),
    ),
    "fp8-throughout": Spec(
        "llama3-70b",
        "b200-x256",
        {"tp": 2, "pp": 4, "zero": 1},
        sets=(
            ("training.precision", "fp8-mxfp8"),
            ("training.bf16_layers", [2, 1]),
            ("training.fp8_attention", True),
            ("training.fp8_output", True),
        ),
    ),
    "fp4": Spec(
        "llama3-70b",
        "b200-x256",
        {"tp": 2, "pp": 4, "zero": 1},
        sets=(("training.precision", "nvfp4"),),
    ),
    "zero-bubble": Spec("llama3-70b", "h100-x512", {"tp": 8, "pp": 4, "schedule": "zb-h1"}),
    "folded": Spec("llama3-70b", "h100-x512", {"tp": 8, "pp": 4, "schedule": "zb-v"}),
    "both-ways": Spec("llama3-70b", "h100-x512", {"tp": 8, "pp": 4, "schedule": "dualpipe"}),
    "blocking": Spec("llama3-70b", "h100-x512", {"tp": 8, "pp": 4}, stack="nanotron"),
}
FAST = ("interleaved", "experts")
"""Those that are looked at in every run of the tests."""


@dataclass(frozen=True)
class Opened:
    """A plan with all that its view needs."""

    model: ModelInput
    cluster: ClusterInput
    problem: Problem
    plan: Plan
    result: Result


@cache
def opened(name: str) -> Opened:
    """Return one of `SPECS`, priced."""
    spec = SPECS[name]
    result = evaluate(
        spec.model,
        spec.cluster,
        pins=spec.pins,
        framework=spec.framework,
        stack=spec.stack,
        overrides=spec.sets,
    )
    plan = result.plans[0]
    model, cluster = read_inputs(spec.model, spec.cluster, spec.sets)
    return Opened(model, cluster, plan.breakdown.rows.problem, plan, result)


@cache
def viewed(name: str) -> PlanView:
    """Return the view of one of `SPECS`."""
    found = opened(name)
    return plan_view(found.model, found.cluster, found.problem, found.plan)


@cache
def shown(name: str) -> str:
    """Return its HTML, the inside of `main`."""
    return plan_body(viewed(name))


def all_plans() -> list[Any]:
    """Return the names of `SPECS` as parameters; but for `FAST` ones they are slow, or `fit`."""

    return halved(name if name in FAST else slow(name) for name in SPECS)
