"""Collectives on tori, computed by hand."""

import numpy as np
import pytest

from costmodels.comm.collectives import collective_s, point_to_point_s, torus_sent_bytes_per_s
from costmodels.comm.placement import place_group
from costmodels.comm.torus import links_apart
from hardware.catalogue import load_catalogue
from hardware.parts import Fabric, Pool
from hardware.torus import closed_axes, slice_shape

LINK = 90e9


def pool_of(name: str, n_chips: int, n_slices: int = 1) -> Pool:
    catalogue = load_catalogue()
    part = catalogue.accelerator(name)
    assert part.torus
    per_node = 4 * part.torus.devices_per_chip
    n_devices = n_chips * part.torus.devices_per_chip
    return Pool(
        name, part, n_devices * n_slices // per_node, per_node, n_devices,
        catalogue.link(part.scale_up_link), 4, catalogue.link("ethernet-50"), 0.0,
    )  # fmt: skip


def timed(operation: str, n_ranks: int, stride: int, pool: Pool, size: float = 1e9) -> float:
    group = place_group(np.array([n_ranks]), np.array([stride]), pool, Fabric())
    return float(collective_s(operation, np.array([size]), group, pool).item())


@pytest.mark.parametrize(
    ("name", "n", "shape"),
    [
        ("tpu-v5p", 4, (1, 2, 2)),
        ("tpu-v5p", 64, (4, 4, 4)),
        ("tpu-v5p", 128, (4, 4, 8)),
        ("tpu-v5p", 6144, (16, 16, 24)),
        ("tpu-v5p", 96, ()),
        ("tpu-v5p", 8192, ()),
        ("tpu-v6e", 32, (4, 8)),
        ("tpu-v6e", 256, (16, 16)),
        ("tpu-v6e", 512, ()),
        ("tpu-7x", 128, (4, 4, 4)),  # devices, two a chip
        ("tpu-7x", 2, (1, 1, 1)),
        ("tpu-7x", 9, ()),
        ("tpu-7x", 18432, (16, 24, 24)),
    ],
)
def test_slices_have_the_usual_shape(name: str, n: int, shape: tuple[int, ...]) -> None:
    torus = load_catalogue().accelerator(name).torus
    assert torus is not None
    assert slice_shape(torus, n) == shape


def test_axes_close_in_cubes_and_whole_pods() -> None:
    catalogue = load_catalogue()
    cubes, flat = (catalogue.accelerator(x).torus for x in ("tpu-v5p", "tpu-v6e"))
    assert cubes
    assert flat
    assert closed_axes(cubes, (4, 4, 8)) == (True, True, True)
    assert closed_axes(cubes, (2, 4, 4)) == (False, False, False)
    assert closed_axes(flat, (8, 16)) == (False, True)
    assert closed_axes(flat, (8, 8)) == (False, False)


@pytest.mark.parametrize(
    ("name", "chips", "n_ranks", "stride", "links", "hops"),
    [
        ("tpu-v5p", 64, 4, 1, 2, 2),  # one ring
        ("tpu-v5p", 64, 16, 1, 4, 4),  # two rings
        ("tpu-v5p", 64, 64, 1, 6, 6),  # all three
        ("tpu-v5p", 64, 4, 16, 2, 2),  # the last axis
        ("tpu-v5p", 64, 2, 1, 1, 1),  # a part of an axis: a line
        ("tpu-v5p", 64, 2, 2, 1, 2),  # two chips opposite: a ring, its links shared by two
        ("tpu-v6e", 64, 8, 1, 1, 7),  # 8x8 closes nowhere
        ("tpu-v6e", 256, 16, 1, 2, 8),  # 16x16 does
        ("tpu-v6e", 256, 256, 1, 4, 16),
        ("tpu-v5p", 64, 8, 1, 3, 3),  # a ring of 4 and a line of 2
    ],
)
def test_all_gathers_use_the_links_of_their_axes(
    name: str, chips: int, n_ranks: int, stride: int, links: float, hops: int
) -> None:
    expected = 2e-6 + hops * 1e-6 + (n_ranks - 1) / n_ranks * 1e9 / (links * LINK)
    pool = pool_of(name, chips)
    assert timed("all-gather", n_ranks, stride, pool) == pytest.approx(expected)
    assert timed("reduce-scatter", n_ranks, stride, pool) == pytest.approx(expected)
    assert timed("all-reduce", n_ranks, stride, pool) == pytest.approx(2 * expected)


def test_an_all_to_all_on_a_ring_is_a_quarter_of_the_gather() -> None:
    pool = pool_of("tpu-v6e", 256)
    # 16 ranks hold 1 GB each, 16 GB together, whose gather on two links takes 16 GB / (2 w).
    assert timed("all-to-all", 16, 1, pool) == pytest.approx(10e-6 + 16e9 / (2 * LINK) / 4)


def test_an_all_to_all_on_a_line_crosses_its_middle() -> None:
    pool = pool_of("tpu-v6e", 64)
    # Half of what 4 of 8 ranks hold passes one link.
    assert timed("all-to-all", 8, 1, pool) == pytest.approx(9e-6 + 2e9 / LINK)


def test_slices_exchange_over_the_data_centre_network() -> None:
    pool = pool_of("tpu-v5p", 64, n_slices=2)
    near = 8e-6 + 63 / 64 * 1e9 / (6 * LINK)
    far = 10e-6 + 20e-6 + 0.5e9 / (64 * pool.nic_bytes_per_s)
    assert timed("all-gather", 128, 1, pool) == pytest.approx(near + far)


def test_neighbours_have_one_link_and_share_those_on_the_way() -> None:
    pool = pool_of("tpu-v5p", 64)
    assert [links_apart(pool, stride) for stride in (1, 2, 4, 8, 16)] == [1, 2, 1, 2, 1]
    group = place_group(np.array([2]), np.array([2]), pool, Fabric())
    assert point_to_point_s(1e9, group, pool).item() == pytest.approx(3e-6 + 1e9 / (LINK / 2))


@pytest.mark.parametrize(
    ("name", "chips", "operation", "n_ranks", "stride", "links"),
    [
        ("tpu-v5p", 64, "all-gather", 64, 1, 6),
        ("tpu-v5p", 64, "all-reduce", 16, 1, 4),  # two rings
        ("tpu-v5p", 64, "reduce-scatter", 2, 2, 1),  # a ring whose links two share
        ("tpu-v5p", 64, "all-to-all", 64, 1, 2 * 63 / 64),  # 8 w / 4
        ("tpu-v6e", 64, "all-to-all", 64, 1, 63 / 64 / 2),  # lines of 8: 4 w / 8
        ("tpu-v5p", 64, "point-to-point", 2, 1, 1),
        ("tpu-v5p", 64, "point-to-point", 2, 2, 1 / 2),
    ],
)
def test_a_rank_sends_at_what_its_group_has_of_the_links(
    name: str, chips: int, operation: str, n_ranks: int, stride: int, links: float
) -> None:
    pool = pool_of(name, chips)
    group = place_group(n_ranks, stride, pool, Fabric())
    rate = float(torus_sent_bytes_per_s(operation, group, pool))
    assert rate == pytest.approx(links * LINK)


@pytest.mark.parametrize("operation", ["all-gather", "all-to-all"])
def test_what_is_sent_takes_its_time_at_that_rate(operation: str) -> None:
    pool, huge = pool_of("tpu-v5p", 128), 1e15
    group = place_group(32, 1, pool, Fabric())
    sent = huge * 31 / 32
    rate = float(torus_sent_bytes_per_s(operation, group, pool))
    assert timed(operation, 32, 1, pool, huge) == pytest.approx(sent / rate, rel=1e-6)


def test_a_group_that_is_no_box_has_one_link() -> None:
    expected = 2e-6 + 5e-6 + 5 / 6 * 1e9 / LINK
    assert timed("all-gather", 6, 1, pool_of("tpu-v5p", 64)) == pytest.approx(expected)


DIES = 6
"""Links of the torus that join the two dies of a chip of TPU7x."""


@pytest.mark.parametrize(
    ("n_ranks", "stride", "n_chips", "links", "dies", "hops"),
    [
        (2, 1, 1, None, 2, 1),  # a chip
        (4, 2, 4, 2 / 2, 1, 2),  # a die of each of 4 chips, a ring whose links two groups share
        (8, 1, 4, 2, 2, 3),  # both dies of them
        (32, 1, 16, 4, 2, 5),
        (64, 2, 64, 6 / 2, 1, 6),
        (128, 1, 64, 6, 2, 7),  # all devices of 4x4x4
        (4, 1, 2, 1, 2, 2),  # two chips: a line
        (2, 2, 2, 1 / 2, 1, 1),
    ],
)
def test_dies_of_a_chip_share_its_links_and_have_their_own(
    n_ranks: int, stride: int, n_chips: int, links: float | None, dies: int, hops: int
) -> None:
    pool, size = pool_of("tpu-7x", 64), 1e9
    between = (n_chips - 1) / n_chips * size / (links * LINK) if links else 0.0
    within = (dies - 1) / dies * size / (DIES * LINK)
    expected = 2e-6 + hops * 1e-6 + between + within
    assert timed("all-gather", n_ranks, stride, pool) == pytest.approx(expected)


def test_an_all_to_all_of_dies_loads_the_links_of_their_chips_twice() -> None:
    pool = pool_of("tpu-7x", 64)
    # Of 64 ranks, a die of each chip, each holds 1 GB: 8 w / 4 an axis, shared by two groups.
    assert timed("all-to-all", 64, 2, pool) == pytest.approx(8e-6 + 1e9 / LINK)
    assert timed("all-to-all", 128, 1, pool) == pytest.approx(9e-6 + 1e9 / LINK)
    # The other die of a chip gets half of what each has.
    assert timed("all-to-all", 2, 1, pool) == pytest.approx(3e-6 + 0.5e9 / (DIES * LINK))


def test_dies_are_the_innermost_ranks() -> None:
    pool = pool_of("tpu-7x", 64)
    apart = [links_apart(pool, stride) for stride in (1, 2, 4, 8, 16, 32)]
    assert apart == [1 / DIES, 2, 4, 2, 4, 2]
    group = place_group(np.array([2]), np.array([1]), pool, Fabric())
    assert point_to_point_s(1e9, group, pool).item() == pytest.approx(3e-6 + 1e9 / (DIES * LINK))
