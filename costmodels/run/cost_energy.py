"""Money and electricity of a training step, from its time and the devices in use."""

from hardware.parts import Accelerator, Operations

SECONDS_PER_HOUR = 3600.0


def device_power_w(part: Accelerator, operations: Operations) -> float | None:
    """Return the power that one device costs at the meter, watts; None where no limit is known.

    P = power limit x node overhead x PUE, the limit being `Accelerator.drawn_w`. The overhead
    (`Operations.power_overhead`) is what a node draws at the plug while it trains over the limits
    of its accelerators: CPUs, memory, ports, fans, power supplies. Sources: the catalogue
    (`tdp_w`), MLPerf Training power logs v4.1 and v5.0. Left out: switches outside nodes, storage,
    idle devices; that a device which waits draws less than its limit (the logged overhead has it
    in the mean, not by plan).
    """
    if part.tdp_w <= 0.0:
        return None
    return part.drawn_w * operations.power_overhead * operations.pue


def energy_j(power_w: float, n_devices: int, time_s: float) -> float:
    """Return the energy of `n_devices` over a time, joules: E = P n t.

    >>> energy_j(1000.0, 8, 3600.0) / 3.6e6  # kWh
    8.0
    """
    return power_w * n_devices * time_s


def cost_usd(price_per_device_hour: float, n_devices: int, time_s: float) -> float:
    """Return the price of `n_devices` over a time, US dollars: price n t / 3600.

    Only devices in use are paid. Left out: storage, traffic, staff, discounts.

    >>> cost_usd(3.0, 8, 1800.0)
    12.0
    """
    return price_per_device_hour * n_devices * time_s / SECONDS_PER_HOUR
