"""The example sweeps: read, counted, and their models are what their comments say."""

from pathlib import Path

import pytest

from costmodels.parameters import active_params, total_params
from planner.errors import SpecError
from planner.specs.loader import load_model
from planner.sweeps.families import load_family
from planner.sweeps.spec.spec import load_sweep

SWEEPS = Path(__file__).parents[3] / "examples" / "sweeps"
POINTS = {
    "domain-by-model-size": 18,
    "gpus-by-march": 24,
    "llama3-70b-1000-points": 1000,
    "sampled-future-part": 54,
    "worth-more-2029": 12,
}


def test_every_example_is_known():
    assert sorted(POINTS) == sorted(file.stem for file in SWEEPS.glob("*.yaml"))


@pytest.mark.parametrize("name", [name for name in POINTS if POINTS[name] < 1000])
def test_every_point_of_an_example_has_valid_inputs(name):
    sweep = load_sweep(SWEEPS / f"{name}.yaml")
    points = list(sweep.points())
    assert sweep.name == name
    assert len(points) == POINTS[name]
    assert not [point.fault for point in points if point.fault]


@pytest.mark.parametrize("name", ["gpus-by-march", "worth-more-2029"])
def test_assumptions_of_an_example_reach_the_reader_and_no_row(name, tmp_path):
    text = (SWEEPS / f"{name}.yaml").read_text(encoding="utf-8")
    changed = tmp_path / f"{name}.yaml"
    changed.write_text(text.replace("notes:\n", "notes:\n  - One more.\n"), encoding="utf-8")
    usual, other = load_sweep(SWEEPS / f"{name}.yaml"), load_sweep(changed)
    assert len(usual.header()["notes"]) == 2
    assert other.header()["notes"][0] == "One more."
    assert other.sweep_id == usual.sweep_id


def test_the_thousand_points_are_a_thousand():
    assert load_sweep(SWEEPS / "llama3-70b-1000-points.yaml").n_points == 1000


@pytest.mark.parametrize(
    ("name", "family", "n_params"),
    [
        ("dense-2t-2029", ("llama3-8b", "llama3-70b", "llama3-405b"), 2e12),
        ("moe-5t-2029", ("deepseek-v2", "deepseek-v3"), 5e12),
    ],
)
def test_models_of_2029_are_those_of_their_families(name, family, n_params):
    given = load_model(name)
    made = load_family(family).document(n_params)["model"]
    stated = {**given.document["model"], "name": made["name"]}
    assert stated == made
    assert total_params(given.shape, 8192) == pytest.approx(n_params, rel=0.01)


def test_what_works_on_a_token_of_the_model_with_experts():
    given = load_model("moe-5t-2029")
    assert active_params(given.shape, 8192) == pytest.approx(143e9, rel=0.01)


def test_the_changes_of_the_architect_are_twice_what_is_announced():
    sweep = load_sweep(SWEEPS / "worth-more-2029.yaml")
    rows = [dict(sweep.columns(point)) for point in sweep.points()]
    base = rows[0]
    factors = {
        "twice the HBM capacity": ("in.pools.0.accelerator.memory", 2),
        "twice the HBM bandwidth": ("in.pools.0.accelerator.hbm_bandwidth", 2),
        "twice the NIC": ("in.pools.0.nic_speed", 2),
        "domain of 576": ("in.pools.0.scale_up_domain", 8),
    }
    for row in rows[:5]:
        changed = {k for k in row if k.startswith("in.pools") and row[k] != base[k]}
        wanted = factors.get(row["in.change"])
        assert changed == ({wanted[0]} if wanted else set())
        if wanted:
            assert row[wanted[0]] == wanted[1] * base[wanted[0]]


def test_a_bare_name_means_the_packaged_sweep() -> None:
    by_name, by_path = load_sweep("worth-more-2029"), load_sweep(SWEEPS / "worth-more-2029.yaml")
    assert by_name.sweep_id == by_path.sweep_id
    with pytest.raises(SpecError, match=r"(?s)called 'worth-less'.*gpus-by-march"):
        load_sweep("worth-less")
