"""Pipeline layouts of NVIDIA's performance recipes, said as splits, emitted and read again."""

import shlex
from dataclasses import dataclass
from typing import Any

import pytest

import planner
from planner.frameworks.megatron.arguments import megatron_run
from planner.frameworks.megatron.emitter import flag_groups
from planner.frameworks.megatron.flags import parse_flags
from planner.frameworks.runs.launch_script import LaunchCommand
from planner.frameworks.runs.query import RunQuery

LAYOUT = "--pipeline-model-parallel-layout"
CHUNKS = "--num-virtual-stages-per-pipeline-rank"
ENDS = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
DEEPSEEK = "Et*4|" + "t*4|" * 14 + "tmL"
GLM = "Et|t||" + "|".join(["tttt|tttt|tttt|tttt|"] * 4) + "|tttt|tttt|ttttmL"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a recipe cuts its layers."""

    layers: int
    pp: int
    vpp: int
    flags: str
    split: str
    """As `--pin split=` takes it."""
    mtp: int = 0


RECIPES = {
    "deepseek-v3, pp 16": Recipe(61, 16, 1, f"{LAYOUT} {DEEPSEEK}", "15x4-1", 1),
    "deepseek-v3, pp 8": Recipe(61, 8, 2, f"{LAYOUT} {DEEPSEEK}", "15x4-1", 1),
    "deepseek-v3, pp 4": Recipe(61, 4, 4, f"{LAYOUT} {DEEPSEEK}", "15x4-1", 1),
    "deepseek-v3, pp 4 short": Recipe(61, 4, 4, f"{LAYOUT} Et*4|(t*4|)*14tmL", "15x4-1", 1),
    "deepseek-v3, pp 2": Recipe(61, 2, 8, f"{LAYOUT} Et*4|(t*4|)*14tmL", "15x4-1", 1),
    "deepseek-v3, pp 8 x 4": Recipe(61, 8, 4, f"{LAYOUT} Et|(tt|)*30mL", "1-30x2-0", 1),
    "deepseek-v4-pro": Recipe(61, 4, 4, f"{LAYOUT} Et*4|(tttt|)*14tmL", "15x4-1", 1),
    "glm5.2, empty stages": Recipe(
        78, 13, 2, f"{LAYOUT} {GLM}", "1-1-0-4x4-0-4x4-0-4x4-0-4x4-0-3x4", 1
    ),
    "llama3-70b": Recipe(80, 8, 5, f"{LAYOUT} Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", "35x2-3-3x2-1"),
    "qwen3-next": Recipe(48, 2, 4, f"{LAYOUT} Et*4|(t*7|)*5t*8|tmL", "4-5x7-8-1", 1),
    "llama3.1-405b, pp 16": Recipe(126, 16, 8, f"{ENDS} {CHUNKS} 8", "0-126x1-0"),
    "llama3.1-405b, pp 8 x 4": Recipe(126, 8, 4, f"{ENDS} {CHUNKS} 4", "3-30x4-3"),
    "llama3.1-405b, pp 8 x 8": Recipe(126, 8, 8, f"{ENDS} {CHUNKS} 8", "1-62x2-1"),
    "qwen3-235b, pp 4": Recipe(94, 4, 1, ENDS, "23-2x24-23"),
    "qwen3-235b, pp 4 x 2": Recipe(94, 4, 2, f"{ENDS} {CHUNKS} 2", "11-6x12-11"),
    "qwen3-235b, pp 8": Recipe(94, 8, 1, ENDS, "11-6x12-11"),
    "qwen3-235b, pp 8 x 3": Recipe(94, 8, 3, f"{ENDS} {CHUNKS} 3", "3-22x4-3"),
    "qwen3-235b, pp 8 x 4": Recipe(94, 8, 4, f"{ENDS} {CHUNKS} 4", "2-30x3-2"),
    "qwen3-235b, 96 slots": Recipe(94, 8, 12, f"{ENDS} {CHUNKS} 12", "0-94x1-0"),
    "glm5.1": Recipe(
        78,
        6,
        1,
        "--decoder-first-pipeline-num-layers 14 --decoder-last-pipeline-num-layers 16",
        "14-4x12-16",
    ),
    "qwen3-vl-235b": Recipe(
        94,
        8,
        1,
        "--decoder-first-pipeline-num-layers 10 --decoder-last-pipeline-num-layers 12",
        "10-6x12-12",
    ),
}
"""Every pattern of the recipes that name one, by layout, counted ends or sizes of the ends."""
POOL = {"name": "any", "nodes": 16, "accelerators_per_node": 8, "accelerator": "h100-sxm-80gb"}


def read(recipe: Recipe, flags: str) -> dict[str, Any]:
    """Return the layout that the flags of a run come to."""
    base = (
        f"--num-layers {recipe.layers} --hidden-size 1024 --num-attention-heads 8"
        " --seq-length 1024 --micro-batch-size 1 --global-batch-size 256 --bf16 --vocab-size 1000"
        f" --pipeline-model-parallel-size {recipe.pp}"
    )
    base += f" --mtp-num-layers {recipe.mtp}" * (recipe.mtp > 0)
    words = shlex.split(f"{base} {flags}")
    launch = LaunchCommand.of_words(words, {})
    run = megatron_run(parse_flags(words), launch, "x", RunQuery(n_devices=8 * recipe.pp))
    return dict(run.layout)


def evaluated(recipe: Recipe, **pins: Any) -> planner.Result:
    model = {
        "layers": recipe.layers,
        "hidden": 1024,
        "heads": 8,
        "ffn": 4096,
        "vocab": 32000,
        "gated": True,
        "tied": False,
        "mtp_layers": recipe.mtp,
    }
    training = {"seq_len": 1024, "global_batch": 16 * recipe.pp, "precision": "bf16"}
    return planner.evaluate(
        {"model": model, "training": training},
        {"pools": [POOL | {"nodes": recipe.pp}]},
        pins={"pp": recipe.pp, "vpp": recipe.vpp, **pins},
    )


@pytest.mark.parametrize("name", RECIPES)
def test_the_layout_of_a_recipe_is_said_as_a_split_and_comes_back(name: str) -> None:
    recipe = RECIPES[name]
    result = evaluated(recipe, split=recipe.split)
    plan = result.plans[0].layout
    assert sum(plan.stage_layers) == recipe.layers
    assert len(plan.stage_layers) == recipe.pp * recipe.vpp
    assert {"megatron", "bridge"} <= set(result.plans[0].runs_on)
    # What the recipe says comes to the same stages, and so do the flags that we write.
    problem = result.plans[0].breakdown.rows.problem
    written = dict(flag_groups(plan, problem.shape, problem.job))["layout"]
    ours = " ".join(written)
    for flags in (recipe.flags, ours):
        got = read(recipe, flags)
        assert got["counts"] == plan.stage_layers
        assert (got["vpp"], got["split"]) == (recipe.vpp, plan.split)


def test_a_stage_of_the_embedding_alone_keeps_no_layer() -> None:
    recipe = Recipe(14, 8, 2, "", "")
    first, *_ = evaluated(recipe, split="0-14x1-0").plans
    rows = first.breakdown.stages
    assert rows[0]["activations"] < rows[1]["activations"]
    assert first.layout.split == "ends"
