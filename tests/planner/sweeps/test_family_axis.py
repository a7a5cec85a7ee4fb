"""`family:` in a sweep file: `model.params` is a field like others."""

import pickle

import pytest

from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.sweeps.families import load_family
from planner.sweeps.spec.spec import load_sweep, sweep_from_dict

LLAMA = {"models": ["llama3-8b", "llama3-70b", "llama3-405b"]}


def sweep(**sections):
    return sweep_from_dict({"cluster": "h100-x512", "family": LLAMA, **sections})


def test_each_size_is_the_model_of_the_family():
    found = sweep(vary={"model.params": ["30B", "70B", "1T"], "training.seq_len": [4096, 8192]})
    points = list(pickle.loads(pickle.dumps(found)).points())
    models = [found.inputs(point)[0] for point in points]
    assert [m.shape.name for m in models[::2]] == ["llama3-30b", "llama3-70b", "llama3-1t"]
    assert [m.job.seq_len for m in models[:2]] == [4096, 8192]
    made = load_family(LLAMA["models"]).document(30e9)["model"]
    assert (models[0].shape.layers, models[0].shape.ffn) == (made["layers"], made["ffn"])
    assert total_params(models[4].shape, 4096) == pytest.approx(1e12, rel=0.01)
    assert dict(found.columns(points[4]))["in.model.params"] == 1e12
    assert len({point.point_id for point in points}) == 6


def test_sizes_are_sampled_and_constrained_like_other_numbers():
    found = sweep(
        vary={"model.params": "30B .. 1T log"},
        design="latin",
        samples=6,
        where=["model.params <= 200e9"],
    )
    sizes = [dict(found.columns(point))["in.model.params"] for point in found.points()]
    assert 0 < len(sizes) < 6
    assert max(sizes) <= 200e9


def test_one_size_for_all_points():
    found = sweep(set={"model.params": "120B"}, vary={"pools.0.nodes": [32, 64]})
    names = {found.inputs(point)[0].shape.name for point in found.points()}
    assert names == {"llama3-120b"}


def test_other_models_make_another_sweep():
    vary = {"model.params": ["30B"]}
    two = {"models": ["llama3-8b", "llama3-70b"]}
    assert sweep(vary=vary).sweep_id != sweep(vary=vary, family=two).sweep_id
    assert sweep(vary=vary).header()["family"]["name"] == "llama3"


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"family": None, "model": "llama3-8b"}, "without `family:`"),
        ({"model": "llama3-8b"}, "stands beside `model`"),
        ({"vary": {"pools.0.nodes": [2]}}, "a family without sizes"),
        ({"family": {"models": ["llama3-8b"]}}, "needs two models, and has 1"),
        ({"family": {"models": ["llama3-8b", "llama3-80b"]}}, "no example called 'llama3-80b'"),
        ({"family": {"models": ["llama3-8b", "gpt3-175b"]}}, "differ in `gated`"),
        ({"vary": {"model.params": ["30B", "90T"]}}, "90.0 T parameters are beyond the family"),
        ({"vary": {"model.params": ["30 GB"]}}, "unknown unit 'GB' in a count"),
    ],
)
def test_bad_families_are_one_clear_error(sections, text):
    with pytest.raises(SpecError, match=text):
        sweep(**{"vary": {"model.params": ["30B"]}, **sections})


def test_errors_name_the_line(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "cluster: h100-x8\nfamily: {models: [llama3-8b, llama3-70b]}\n"
        "vary:\n  model.params: [30B, 90T]\n"
    )
    with pytest.raises(SpecError, match=r"s\.yaml:4:\d+: vary\.model\.params: 90\.0 T"):
        load_sweep(file)
