"""Draws the details of a model: what changes no figure of a plan and goes into its files."""

from random import Random

from costmodels.shapes import ModelShape
from planner.specs.schema import EXPERT_DETAILS, NO_DETAILS, DetailsSpec

SHARE = 0.5
"""Plans whose model has details."""
FIELDS: dict[str, tuple[object, ...]] = {
    "rotary_base": (10000.0, 500000.0, 1000000.0, 10000.5),
    "rotary_percent": (0.5, 0.25, 1.0),
    "no_rope_every": (2, 4),
    "norm_epsilon": (1e-5, 1e-6),
    "qk_norm": ("head", "width", "l2"),
    "qkv_bias": (True, False),
    "attention_out_bias": (True, False),
    "window": (128, 1024, 4096),
    "full_attention_every": (2, 6),
    "attention_sinks": (True, False),
    "init_std": (0.02, 0.006),
    "router_scores": ("softmax", "sigmoid"),
    "router_norm_topk": (True, False),
    "router_scale": (1.0, 2.5),
    "router_bias": (True, False),
    "aux_loss": (0.0, 0.001),
    "aux_loss_scope": ("batch", "sequence"),
    "shared_expert_gate": (True, False),
}
"""Values of the fields that stand alone."""
SCALINGS: tuple[dict[str, object], ...] = (
    {"rope_scaling": "linear", "rope_scaling_factor": 4.0},
    {"rope_scaling": "linear", "rope_scaling_factor": 2.5},
    {"rope_scaling": "dynamic", "rope_scaling_factor": 2.0},
    {"rope_scaling": "longrope"},
    {
        "rope_scaling": "llama3",
        "rope_scaling_factor": 8.0,
        "rope_original_positions": 8192,
        "rope_low_frequency": 1.0,
        "rope_high_frequency": 4.0,
    },
    {"rope_scaling": "llama3", "rope_scaling_factor": 32.0, "rope_original_positions": 4096},
    {
        "rope_scaling": "yarn",
        "rope_scaling_factor": 40.0,
        "rope_original_positions": 4096,
        "rope_beta_fast": 32.0,
        "rope_beta_slow": 1.0,
        "rope_mscale": 1.0,
        "rope_mscale_all_dim": 1.0,
    },
    {
        "rope_scaling": "yarn",
        "rope_scaling_factor": 32.0,
        "rope_original_positions": 2048,
        "rope_truncate": False,
    },
)
"""Ways in which rotary positions are stretched."""
ACTIVATIONS = {
    True: ("silu", "gelu_tanh", "clamped_swiglu"),
    False: ("gelu", "gelu_tanh", "relu", "squared_relu"),
}
"""Activations of an MLP, by whether it has a gate."""


def draw_details(random: Random, shape: ModelShape) -> DetailsSpec:
    """Return details that can stand beside the shape; none at all every other time."""
    if random.random() >= SHARE:
        return NO_DETAILS
    names = [name for name in FIELDS if shape.n_experts or name not in EXPERT_DETAILS]
    found = {name: random.choice(FIELDS[name]) for name in random.sample(names, 5)}
    if "window" not in found:
        found.pop("full_attention_every", None)
    if random.random() < 0.4:
        found |= random.choice(SCALINGS)
    if random.random() < 0.2:
        found["activation"] = random.choice(ACTIVATIONS[shape.gated])
    if shape.positions != "rope":
        found = {k: v for k, v in found.items() if not k.startswith(("rotary_", "rope_"))}
    return DetailsSpec(**found)
