"""Rows of a sweep by a formula that can be worked out by hand.

A step takes `COMPUTE_S / devices` of arithmetic, `HBM_S / (devices x memory bandwidth)` of memory
traffic and `NIC_S / (speed of the NIC)` of network, all in units in which the numbers are round.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from planner.units import GIB

TOKENS_PER_STEP = 8192 * 1024
N_STEPS = 100_000
COMPUTE_S, HBM_S, NIC_S = 4096.0, 2048.0, 1.0
"""A device's seconds of arithmetic; seconds at 1 TB/s of HBM; seconds at 50 GB/s of NIC."""
USD_PER_DEVICE_HOUR = 3.6
NODES, MEMORY, HBM, NIC = (
    "pools.0.nodes",
    "pools.0.accelerator.memory",
    "pools.0.accelerator.hbm_bandwidth",
    "pools.0.nic.bandwidth",
)
UNITS = {NODES: "", MEMORY: "B", HBM: "B/s", NIC: "B/s"}
LABELS = {
    NODES: "nodes",
    MEMORY: "accelerator memory",
    HBM: "accelerator HBM bandwidth",
    NIC: "NIC bandwidth",
}


def row(index: int, values: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return one row: nothing fits where all devices hold less than 2 TiB."""
    nodes = values.get(NODES, 8)
    memory = values.get(MEMORY, 80 * GIB)
    hbm, nic = values.get(HBM, 2e12), values.get(NIC, 50e9)
    devices = 8 * nodes
    found: dict[str, Any] = {"index": index, "point_id": f"{index:012x}"}
    head = {f"in.{path}": value for path, value in values.items()}
    facts = {
        "model": "llama3-70b",
        "n_params": 70.6e9,
        "cluster": "h100",
        "accelerator": "h100-sxm",
        "n_devices": devices,
        "calibration": "shipped 0123",
    }
    if devices * memory < 2048 * GIB:
        reason = f"nothing fits: the closest needs {2048 / devices:.1f} GiB"
        return found | {"status": "infeasible", "reason": reason} | head | facts | more
    compute_s = COMPUTE_S / devices
    hbm_s = HBM_S / devices / (hbm / 1e12)
    nic_s = NIC_S / (nic / 50e9)
    step = compute_s + hbm_s + nic_s
    tp = 8 if memory * devices < 8192 * GIB else 4
    run_s = step * N_STEPS
    return (
        found
        | {"status": "ok", "reason": None}
        | head
        | facts
        | {
            "proven": True,
            "best.plan_id": f"p{index}",
            "best.layout": f"tp{tp} pp2 dp{devices // tp // 2} mbs1",
            "best.devices": devices,
            "best.tp": tp,
            "best.pp": 2,
            "best.cp": 1,
            "best.ep": 1,
            "best.dp": devices // tp // 2,
            "best.step_time_s": step,
            "best.step_time_p10_s": 0.9 * step,
            "best.step_time_p90_s": 1.1 * step,
            "best.tokens_per_s": TOKENS_PER_STEP / step,
            "best.tokens_per_s_per_device": TOKENS_PER_STEP / step / devices,
            "best.mfu": 0.5 * compute_s / step,
            "best.peak_bytes": 2000 * GIB / devices,
            "best.usable_bytes": 0.95 * memory,
            "best.binding": max(
                ("compute", compute_s),
                ("hbm", hbm_s),
                ("scale_out", nic_s),
                key=lambda entry: entry[1],
            )[0],
            "best.run_s": run_s,
            "best.cost_usd": run_s / 3600 * devices * USD_PER_DEVICE_HOUR,
            "best.energy_j": run_s * devices * 700.0,
            "best.flops_per_device": compute_s * 500e12,
            "best.hbm_bytes_per_device": hbm_s * hbm * 0.8,
            "best.scale_up_bytes_per_device": 100e9,
            "best.scale_out_bytes_per_device": nic_s * nic,
            "peak_flops_per_s": 1000e12,
            "hbm_bytes_per_s": hbm,
            "scale_up_bytes_per_s": 450e9,
            "scale_out_bytes_per_s": nic,
            "elasticity.matmul_flops": -compute_s / step,
            "elasticity.hbm_bandwidth": -hbm_s / step,
            "elasticity.scale_out_bandwidth": -nic_s / step,
        }
        | more
    )


def grid(axes: Mapping[str, Sequence[Any]], **more: Any) -> list[dict[str, Any]]:
    """Return the rows of all combinations."""
    return [
        row(index, dict(zip(axes, values, strict=True)), **more)
        for index, values in enumerate(product(*axes.values()))
    ]


def header(axes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the header of a sweep over such axes."""
    return {
        "sweep_id": "0123456789ab",
        "name": "test",
        "design": "grid",
        "axes": [
            {
                "path": path,
                "label": LABELS.get(path, path),
                "unit": UNITS.get(path, ""),
                "values": list(values),
                "numbers": list(values),
            }
            for path, values in axes.items()
        ],
        "versions": {"planner": "0.1.0", "catalogue": "abc"},
    }


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return rows by column, in the order in which columns first appear."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
