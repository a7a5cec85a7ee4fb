"""What plans are asked for: the scenarios of Sailor's artifact whose profiles are public."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tools.sailor.problem import Asked, Pool, pools_of

CONFIGS = {
    "OPT-350": "training_config_opt_350.json",
    "GPT-Neo-2.7": "training_config_gpt_neo27.json",
}
"""Models with a job in Sailor's repository; LLAMA-3-8 and OPT-30 have profiles alone."""
PARTS = ["A100-40", "V100-16"]
PRICES_PER_H = {"A100-40": 3.673385, "V100-16": 2.859998}
"""US dollars, of `simulations/constants.py`: its driver takes those of europe-west4-a."""


@dataclass(frozen=True)
class Scenario:
    """One model on some devices."""

    name: str
    model: str
    devices: Mapping[tuple[str, str], int]
    """By part and zone."""
    asked: Asked = field(default_factory=Asked)

    @property
    def config(self) -> str:
        """The job's file in Sailor's repository."""
        return CONFIGS[self.model]

    @property
    def key(self) -> str:
        """Model and name."""
        return f"{self.model}/{self.name}"

    def pools(self) -> tuple[Pool, ...]:
        """Return the devices as the search takes them."""
        return pools_of(self.devices)

    def trace(self) -> str:
        """Return it as a trace of one point, as Sailor's driver reads it."""
        names = ",".join(f"{part}_{zone}" for part, zone in self.devices)
        return f",Timestamp,{names}\n0,0.0,{','.join(map(str, self.devices.values()))}\n"


def _scenarios() -> list[Scenario]:
    central, found = "us-central1-", []
    zones = [*(central + x for x in "abcf"), "us-west1-b"]
    for model in CONFIGS:
        for n in (32, 80, 128):
            one = {("A100-40", central + "a"): n}
            found.append(Scenario(f"homogeneous-{n}", model, one))
        for n in (32, 80, 128):
            both = {("A100-40", central + "a"): n, ("V100-16", central + "a"): 3 * n}
            found.append(Scenario(f"heterogeneous-{n}", model, both))
        for n in (32, 80, 128):
            found.append(Scenario(f"geo-{n}", model, {("A100-40", z): n for z in zones}))
        if model == "OPT-350":  # the limits are made for this one
            four = {(p, central + z): 128 for p in PARTS for z in "ab"}
            found.append(Scenario("least-cost", model, four, Asked("cost", most_s=5.0)))
            found.append(Scenario("budget", model, four, Asked(most_cost=1.2)))
    return found


SCENARIOS = _scenarios()
