"""What was measured of layers and links, and the clusters that plans are asked for.

The data are Sailor's (github.com/eth-easl/sailor, MIT licence): seconds of each layer by part,
tensor parallelism and micro-batch, and bandwidths between zones fitted by polynomials.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Way = tuple[str, int, int]
"""Part, tensor parallelism, sequences of a micro-batch."""
End = tuple[str, str, int]
"""Zone, part and devices of one end of a link."""

BYTES_PER_VALUE = 4
"""All is FP32."""


@dataclass(frozen=True, slots=True)
class Links:
    """Bandwidth of messages, by both ends."""

    fits: Mapping[tuple[End, End], tuple[float, ...]]
    """Polynomials in log2 of the size in MB, highest power first, GB/s."""
    egress_per_byte: Mapping[tuple[str, str], float]
    """US dollars from one zone to another."""

    def message_s(self, size_bytes: Floats, sender: End, receiver: End) -> Floats:
        """Return the seconds of messages; 0 of empty ones."""
        size = np.asarray(size_bytes, dtype=np.float64)
        power = np.log2(np.maximum(size, 1.0) / 1e6)
        value = np.zeros_like(power)
        for one in self.fits[sender, receiver]:
            value = value * power + one
        return np.asarray(np.where(size > 0, size / 1e9 / value, 0.0))

    def zones(self) -> list[str]:
        """Return the zones that egress is priced between."""
        return sorted({a for a, _ in self.egress_per_byte})


@dataclass(frozen=True, slots=True)
class Profile:
    """One model: what its layers take and hold, embedding and head among them."""

    model: str
    global_batch: int
    layer_s: Mapping[Way, Floats]
    """Forward and backward of one micro-batch, `(n_layers,)`."""
    update_s: Mapping[Way, Floats]
    """Optimizer, as Sailor reads it off the first layer of a stage, `(n_layers,)`."""
    params: Mapping[int, Floats]
    """Parameters on one device by tensor parallelism, `(n_layers,)`."""
    kept: Mapping[int, Floats]
    """Values that one sequence keeps until its backward, likewise."""
    outputs: Floats
    """Values that a layer passes on, one sequence, `(n_layers,)`."""

    @property
    def n_layers(self) -> int:
        """Layers, with embedding and head."""
        return len(self.outputs)

    def tps(self, part: str, mbs: int) -> list[int]:
        """Return the tensor parallelisms that were measured."""
        return sorted(t for p, t, b in self.layer_s if p == part and b == mbs and t in self.params)

    def micro_batches(self, part: str) -> list[int]:
        """Return the micro-batches that were measured."""
        return sorted({b for p, _, b in self.layer_s if p == part})


@dataclass(frozen=True, slots=True)
class Parts:
    """Memory and price of the parts."""

    memory_bytes: Mapping[str, float]
    price_per_s: Mapping[str, float]
    """US dollars a device."""


@dataclass(frozen=True, slots=True)
class Data:
    """All that was read."""

    profiles: Mapping[str, Profile]
    links: Links
    parts: Parts


def _expanded(runs: list[list[float]]) -> Floats:
    return np.concatenate([np.full(int(n), x) for x, n in runs])


def _runs(values: list[float]) -> list[list[float]]:
    runs: list[list[float]] = []
    for x in values:
        if runs and runs[-1][0] == x:
            runs[-1][1] += 1
        else:
            runs.append([x, 1])
    return runs


def data_from(document: Mapping[str, Any]) -> Data:
    """Return the data that `extract` wrote."""
    profiles = {}
    for model, one in document["models"].items():
        ways = {(p, t, b): (s, u) for p, t, b, s, u in one["ways"]}
        profiles[model] = Profile(
            model=model,
            global_batch=one["global_batch"],
            layer_s={k: _expanded(s) for k, (s, _) in ways.items()},
            update_s={k: _expanded(u) for k, (_, u) in ways.items()},
            params={int(t): _expanded(x) for t, x in one["params"].items()},
            kept={int(t): _expanded(x) for t, x in one["kept"].items()},
            outputs=_expanded(one["outputs"]),
        )
    fits = document["fits"]
    links = {((a, b, c), (d, e, f)): tuple(fits[i]) for a, b, c, d, e, f, i in document["links"]}
    egress = {(a, b): x * 1e-9 for a, b, x in document["egress_per_gb"]}
    parts = document["parts"]
    return Data(
        profiles,
        Links(links, egress),
        Parts(
            {k: x["memory_gib"] * 2.0**30 for k, x in parts.items()},
            {k: x["price_per_h"] / 3600 for k, x in parts.items()},
        ),
    )


def extract(
    folder: Path, models: Mapping[str, str], parts: list[str], prices_per_h: Mapping[str, float]
) -> dict[str, Any]:
    """Read the data of some models and parts off a checkout of Sailor.

    `models` are names and their training configurations; memory and prices stand in the code of
    Sailor, and are those that `tools/sailor/in_checkout.py` reports.
    """
    planner = folder / "sailor" / "Planner"
    providers = folder / "sailor" / "providers"
    measured = json.loads((planner / "simulations" / "profiles_tmp.json").read_text())
    memory = json.loads((planner / "llm_info.json").read_text())
    result: dict[str, Any] = {"models": {}}
    for model, config in models.items():
        job = json.loads((planner / "simulations" / "configs" / config).read_text())
        n = job["num_all_layers"]
        ways = []
        for part in parts:
            for mbs, by_tp in measured[model].get(part, {}).items():
                for tp, layers in by_tp.items():
                    rows = [layers[str(i)] for i in range(n)]
                    ways.append(
                        [
                            part,
                            int(tp),
                            int(mbs),
                            _runs([x[0] + x[1] for x in rows]),
                            _runs([x[2] for x in rows]),
                        ]
                    )
        facts = memory[model]

        def of(tp: str, name: str, facts: Any = facts, n: int = n) -> list[list[float]]:
            return _runs([facts[tp][str(i)][name] for i in range(n)])

        result["models"][model] = {
            "global_batch": job["global_batch_size"],
            "ways": sorted(ways, key=lambda x: x[:3]),
            "params": {tp: of(tp, "params_floats") for tp in sorted(facts)},
            "kept": {tp: of(tp, "act_mem_floats") for tp in sorted(facts)},
            "outputs": of("1", "act_output_floats"),
        }
    fits, links = [], []
    bandwidths = json.loads((providers / "multizone_bandwidths_het.json").read_text())
    for zone, by_part in bandwidths.items():
        for part, by_count in by_part.items():
            for count, receivers in by_count.items():
                for zone_2, by_part_2 in receivers.items():
                    for part_2, by_count_2 in by_part_2.items():
                        for count_2, (fit, _) in by_count_2.items():
                            if part not in parts or part_2 not in parts:
                                continue
                            if fit not in fits:
                                fits.append(fit)
                            ends = [zone, part, int(count), zone_2, part_2, int(count_2)]
                            links.append([*ends, fits.index(fit)])
    egress = json.loads((providers / "gcp" / "communication_cost.json").read_text())
    result["fits"], result["links"] = fits, sorted(links, key=lambda x: x[:6])
    result["egress_per_gb"] = [[a, b, x] for a, own in egress.items() for b, x in own.items()]
    memories = _memory_gib()
    result["parts"] = {
        k: {"memory_gib": memories[k], "price_per_h": prices_per_h.get(k, 0.0)} for k in parts
    }
    return result


def _memory_gib() -> dict[str, float]:
    """Return the memory of the parts by their names, which end in it."""
    return {
        "A100-40": 40,
        "A100-80": 80,
        "V100-16": 16,
        "GH-96": 96,
        "Titan-RTX": 24,
        "RTX-2080": 11,
        "RTX-3090": 24,
    }
