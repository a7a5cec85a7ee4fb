"""Slices of TPUs whose shape the cluster file states."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from hardware.catalogue import load_catalogue
from hardware.torus import Torus, is_slice, slice_examples, slice_shape
from planner.errors import SpecError
from planner.specs.inputs import ClusterInput
from planner.specs.loader import load_cluster


def read(tmp_path: Path, **pool: Any) -> ClusterInput:
    path = tmp_path / "cluster.yaml"
    entry = {"accelerator": "tpu-v5p", "nodes": 64, **pool}
    path.write_text(yaml.safe_dump({"pools": [entry]}, sort_keys=False))
    return load_cluster(str(path))


def torus_of(name: str) -> Torus:
    torus = load_catalogue().accelerator(name).torus
    assert torus is not None
    return torus


@pytest.mark.parametrize(
    ("pool", "shape", "domain", "stated"),
    [
        ({}, (4, 8, 8), 256, None),
        ({"slice": "4x8x8"}, (4, 8, 8), 256, None),  # the usual one
        ({"slice": "16x4x4"}, (4, 4, 16), 256, "4x4x16"),
        ({"slice": "4x4x4"}, (4, 4, 4), 64, None),  # four slices
        ({"slice": "4X4X16", "scale_up_domain": 256}, (4, 4, 16), 256, "4x4x16"),
        ({"accelerator": "tpu-v6e", "nodes": 32, "slice": "16x16"}, (16, 16), 256, None),
        ({"accelerator": "tpu-7x", "nodes": 64, "slice": "4x4x16"}, (4, 4, 16), 512, "4x4x16"),
        ({"accelerator": {"like": "tpu-v5p"}, "slice": "4x4x16"}, (4, 4, 16), 256, "4x4x16"),
    ],
)
def test_a_stated_slice_is_the_domain(
    tmp_path: Path, pool: dict[str, Any], shape: tuple[int, ...], domain: int, stated: str | None
) -> None:
    cluster = read(tmp_path, **pool)
    (result,) = cluster.cluster.pools
    assert (result.slice_shape, result.scale_up_domain) == (shape, domain)
    assert cluster.document["pools"][0].get("slice") == stated


def test_the_document_of_a_slice_reads_back(tmp_path: Path) -> None:
    first = read(tmp_path, slice="4x4x16")
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(first.document))
    again = load_cluster(str(path))
    assert again.document == first.document
    assert again.cluster.pools[0].slice_shape == (4, 4, 16)


@pytest.mark.parametrize(
    ("pool", "message", "fix"),
    [
        ({"slice": "4x4"}, "no slice of tpu-v5p is 4x4", "4x4x8"),
        ({"slice": "4x6x8"}, "no slice of tpu-v5p is 4x6x8", "multiples of 4"),
        ({"slice": "16x32x32"}, "no slice of tpu-v5p is 16x32x32", "6,144 chips"),
        ({"slice": "4x4x16", "scale_up_domain": 64}, "scale_up_domain says 64", "leave"),
        ({"slice": "4x4x12"}, "256 devices are no whole slices of 4x4x12", "multiple of 48"),
        ({"slice": 448}, "expected chips along each axis, got 448", "4x4x8"),
        ({"slice": "4x4x0"}, "no slice of tpu-v5p is 0x4x4", "4x4x8"),
        ({"accelerator": "tpu-v6e", "slice": "4x16"}, "no slice of tpu-v6e is 4x16", "8x16"),
        ({"accelerator": "h100", "slice": "4x4x4"}, "comes in no slices", "leave it out"),
    ],
)
def test_what_is_no_slice_is_refused_with_its_line(
    tmp_path: Path, pool: dict[str, Any], message: str, fix: str
) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, **pool)
    text = " ".join(str(caught.value).split())
    assert message in text
    assert fix in text
    assert "cluster.yaml:4:" in text
    assert "pools.0.slice" in text


@pytest.mark.parametrize("part", ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-7x"])
def test_usual_shapes_and_examples_are_slices(part: str) -> None:
    torus = torus_of(part)
    sizes = [n for n in range(1, 2049) if slice_shape(torus, n)]
    assert len(sizes) > 6
    assert all(is_slice(torus, slice_shape(torus, n)) for n in sizes)
    assert all(is_slice(torus, shape) for shape in slice_examples(torus))
