"""Options of the command line over what a sweep file says."""

from pathlib import Path

import pytest

from planner.sweeps.spec.options import parse_vary
from planner.sweeps.spec.spec import load_sweep


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("pools.0.nodes=32,64", [32, 64]),
        ("pools.0.nodes = 8..64*2 , 100", ["8..64*2", 100]),
        ("pools.0.accelerator.memory=80 GiB,160 GiB", ["80 GiB", "160 GiB"]),
        ("training.precision=bf16,[bf16, fp8-delayed]", ["bf16", ["bf16", "fp8-delayed"]]),
        (
            "pools.0.accelerator={like: h100, memory: 1 TB},b200",
            [{"like": "h100", "memory": "1 TB"}, "b200"],
        ),
        ("fabric.rail_optimized=true,false", [True, False]),
        ("pools.0.nodes=", []),
    ],
)
def test_values_of_an_option(text, values):
    assert parse_vary(text) == (text.partition("=")[0].strip(), values)


def test_options_go_over_what_a_file_says(tmp_path: Path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "model: llama3-8b\ncluster: h100-x8\nvary:\n  training.seq_len: [1024, 2048]\n"
        "search: {framework: megatron, pin: {tp: 2}}\nwhere: n_devices > 1\n"
    )
    more = {
        "vary": ["training.seq_len=4096", "training.global_batch=64,128"],
        "search": {"framework": "any", "pin": {"pp": 1}},
        "set": [("training.tokens", "1T")],
        "where": ["training.global_batch < 100"],
    }
    sweep = load_sweep(file, more)
    assert sweep.n_points == 2
    assert [
        dict(sweep.columns(point))["in.training.global_batch"] for point in sweep.points()
    ] == [64]
    assert sweep.options.framework == "any"
    assert sweep.options.pins == {"tp": 2, "pp": 1}
    assert sweep.inputs(next(sweep.points()))[0].document["training"]["tokens"] == 1e12
