from typing import Any

import pytest

from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from costmodels.shapes import ModelShape
from planner.frameworks.runs.nearest_layout import Nearest, nearest_layout

STATED: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1, "mbs": 1, "gbs": 64, "zero": 1}


def near(shape: ModelShape = LLAMA3_8B, n_devices: int = 16, **stated: Any) -> Nearest:
    return nearest_layout(STATED | stated, shape, 8192, n_devices, 8)


def test_a_run_that_is_a_layout_is_taken_as_it_is() -> None:
    found = near(tp=2, pp=4, counts=(8, 8, 8, 8), sp=True, recompute="full", recompute_layers=3)
    assert found.repairs == ()
    x = found.layout
    assert x is not None
    assert (x.dp, x.n_micro, x.schedule, x.split, x.sp, x.recompute_layers) == (
        2,
        32,
        "1f1b",
        "even",
        True,
        3,
    )


@pytest.mark.parametrize(
    ("stated", "n_devices", "repair"),
    [
        ({"tp": 3, "gbs": 6}, 16, "6 devices, not 16: a multiple of tp 3 x pp 1 x cp 1"),
        ({"tp": 8}, 20, "16 devices, not 20: a multiple of tp 8 x pp 1 x cp 1"),
        ({"tp": 8}, 12, "8 devices, not 12: a multiple of tp 8 x pp 1 x cp 1"),
        ({"gbs": 60}, 16, "global batch 64, not 60: a multiple of mbs 1 x dp 16"),
        ({"gbs": 3}, 16, "global batch 16, not 3: a multiple of mbs 1 x dp 16"),
        (
            {"gbs": 20, "pp": 4, "vpp": 2, "counts": (4,) * 8},
            16,
            "global batch 16, not 20: a multiple of mbs 1 x dp 4 x pp 4 (interleaving)",
        ),
        ({"ep": 2}, 16, "ep 1, not 2: the model is dense"),
    ],
)
def test_numbers_that_do_not_divide(stated: dict[str, Any], n_devices: int, repair: str) -> None:
    found = near(n_devices=n_devices, **stated)
    assert found.repairs == (repair,)


def test_layers_that_do_not_divide_are_spread() -> None:
    found = near(n_devices=40, pp=5, gbs=64)
    assert found.layout is not None
    assert found.layout.stage_layers == (7, 7, 6, 6, 6)
    assert found.repairs[0].startswith("stages of 6 to 7 layers")


def test_experts_take_the_nearest_grid() -> None:
    found = near(MIXTRAL_8X7B, tp=2, ep=8, etp=2, n_devices=8)
    assert found.layout is not None
    assert (found.layout.ep, found.layout.etp) == (8, 1)
    odd = near(MIXTRAL_8X7B, ep=3, etp=1)
    assert odd.layout is not None
    assert odd.layout.ep == 2


def test_what_has_no_nearest_is_not_priced() -> None:
    assert near(tp=16, n_devices=8).why_not.startswith("tp 16 x pp 1 x cp 1 does not divide 8")
    assert near(pp=16, vpp=4, n_devices=16).why_not == "64 stages for 32 layers"


def test_groups_that_do_not_divide_and_groups_of_one() -> None:
    assert near(dp_shard=8).layout.shard == 8  # type: ignore[union-attr]
    assert near(dp_shard=16).layout.shard == 0  # type: ignore[union-attr]
    assert near(dp_shard=5).repairs == ("ZeRO over all 16 ranks: groups of 5 do not divide them",)
    alone = near(n_devices=8, tp=8, gbs=8)
    assert alone.layout is not None
    assert alone.layout.zero == 0
