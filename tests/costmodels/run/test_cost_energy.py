"""Money and electricity, by hand."""

from dataclasses import replace

import pytest

from costmodels.run.cost_energy import cost_usd, device_power_w, energy_j
from hardware.catalogue import load_catalogue

CATALOGUE = load_catalogue()


def test_power_of_an_h100_at_the_meter():
    # 700 W x 1.3 x 1.2: a node of eight draws 7.28 kW at the plug, within the logged 6.9 to 7.9.
    power = device_power_w(CATALOGUE.accelerator("h100"), CATALOGUE.operations)
    assert power == pytest.approx(1092.0)
    assert 6900 < 8 * power / CATALOGUE.operations.pue < 7900


def test_a_limit_of_the_owner_is_what_is_drawn():
    part = replace(CATALOGUE.accelerator("h100"), power_limit_w=500.0)
    power = device_power_w(part, CATALOGUE.operations)
    assert power == pytest.approx(500.0 * 1.3 * 1.2)
    above = replace(part, power_limit_w=900.0)
    assert device_power_w(above, CATALOGUE.operations) == pytest.approx(1092.0)


def test_no_limit_no_power():
    part = replace(CATALOGUE.accelerator("h100"), tdp_w=0.0)
    assert device_power_w(part, CATALOGUE.operations) is None


def test_energy_and_cost_of_a_step():
    assert energy_j(1092.0, 512, 10.0) == pytest.approx(5_591_040.0)
    assert cost_usd(2.95, 512, 3600.0) == pytest.approx(1510.4)
