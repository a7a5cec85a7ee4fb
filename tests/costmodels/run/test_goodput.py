"""Failures and checkpoints, by hand and by simulation."""

import math
import random
from dataclasses import replace

import pytest

from costmodels.examples import LLAMA3_8B
from costmodels.problem import Problem
from costmodels.run.goodput import (
    best_interval_s,
    checkpoint_time_s,
    goodput,
    goodput_frac,
    job_mtbf_s,
    saved_bytes,
)
from costmodels.shapes import TrainingJob
from costmodels.stacks import STACKS
from hardware.catalogue import load_catalogue
from hardware.parts import Fabric
from tests.searches.instances import toy_pool

HOUR = 3600.0
DEFAULTS = load_catalogue().operations
JOB = Problem(LLAMA3_8B, TrainingJob(8192, 64), toy_pool(8), Fabric(), STACKS["fused"])


def test_the_run_of_llama3_fails_every_three_hours():
    # 419 unexpected interruptions in 54 days on 16,384 devices: 54 x 24 / 419 = 3.093 h.
    assert job_mtbf_s(DEFAULTS, 16384) / HOUR == pytest.approx(54 * 24 / 419, rel=1e-4)


def test_a_checkpoint_holds_weights_and_optimizer():
    # bf16 weights (2) and fp32 master, momentum, variance (12) of 8,030,261,248 parameters.
    assert saved_bytes(JOB) == 14 * 8_030_261_248


def test_checkpoint_time_is_stated_or_from_the_bandwidth():
    stated = replace(DEFAULTS, checkpoint_s=7.0)
    shared = replace(DEFAULTS, checkpoint_bytes_per_s=2e12, bandwidth_is_per_device=False)
    assert checkpoint_time_s(stated, 1e12, 8) == 7.0
    assert checkpoint_time_s(shared, 5.7e12, 16384) == pytest.approx(2.85)
    assert checkpoint_time_s(DEFAULTS, 122e6 * 80, 8) == pytest.approx(10.0)


def test_interval_by_hand():
    # delta 60 s, M 6 h: sqrt(2 x 60 x 21600) = 1609.97; ratio 60 / 43200 = 1 / 720.
    by_hand = 1609.9689 * (1 + math.sqrt(1 / 720) / 3 + 1 / 720 / 9) - 60
    assert best_interval_s(60.0, 6 * HOUR) == pytest.approx(by_hand, rel=1e-6)
    assert best_interval_s(100.0, 50.0) == 50.0  # a checkpoint longer than two failures' distance
    assert best_interval_s(0.0, 50.0) == 0.0


@pytest.mark.parametrize(("stop_s", "mtbf_s"), [(60.0, 6 * HOUR), (5.0, HOUR), (600.0, 2 * HOUR)])
def test_the_interval_is_within_a_hair_of_the_best(stop_s, mtbf_s):
    at = best_interval_s(stop_s, mtbf_s)
    best = max(goodput_frac(stop_s, mtbf_s, 600.0, at * x / 200) for x in range(20, 800))
    assert goodput_frac(stop_s, mtbf_s, 600.0, at) > best * (1 - 1e-3)


def test_the_share_is_that_of_a_simulated_run():
    stop_s, mtbf_s, restart_s, interval_s = 60.0, 3 * HOUR, 600.0, 1100.0
    dice = random.Random(1)
    wall_s, n_segments = 0.0, 20_000
    for _ in range(n_segments):
        needed = interval_s + stop_s
        while (failure := dice.expovariate(1 / mtbf_s)) < needed:
            wall_s += failure
            while (again := dice.expovariate(1 / mtbf_s)) < restart_s:
                wall_s += again
            wall_s += restart_s
        wall_s += needed
    simulated = n_segments * interval_s / wall_s
    assert goodput_frac(stop_s, mtbf_s, restart_s, interval_s) == pytest.approx(
        simulated, rel=5e-3
    )


def test_limits():
    assert goodput_frac(0.0, HOUR, 360.0, 0.0) == pytest.approx(math.exp(-0.1))
    assert goodput_frac(1e9, 1.0, 0.0, 1.0) == 0.0  # never gets as far as a checkpoint
    assert goodput_frac(1.0, 1e12, 1.0, 1e6) == pytest.approx(1.0, rel=1e-5)


def test_more_devices_lose_more_to_failures():
    shares = [goodput(JOB, DEFAULTS, n).goodput_frac for n in (8, 512, 4096, 16384)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.99 > 0.95 > shares[-1] > 0.8
