"""What the product knows of each tool that fine-tunes, in one record.

A tool is no framework of its own: it starts the Trainer of Hugging Face on Accelerate (FSDP2, or
plain replicas) or on DeepSpeed, or shards by FSDP2 itself. Plans are searched and priced for one
of those, its engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from costmodels.data.lengths import ALONE, MASKED, UNMASKED
from searches.frameworks.registry import framework_rules

ENGINES = ("fsdp2", "deepspeed")
"""Frameworks that the tools start, in the order in which they are tried for a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuner:
    """One tool that fine-tunes."""

    name: str
    """As `--for` takes it; its files are named after it."""
    title: str
    """Its name as its users write it."""
    release: str
    """The release that files are written for and checked against."""
    emitter: str
    """What writes its files, `module:attribute`: takes a `TunedPlan`, returns texts by name."""
    packings: tuple[str, ...] = (MASKED, UNMASKED, ALONE)
    """What its files can say of packs (`costmodels.data.lengths.PACKINGS`)."""
    has_expert_adapters: bool = True
    """Whether its files can name the tensors of routed experts."""

    has_precomputed_reference: bool = True
    """Whether the answers of a reference can be computed before the run."""
    has_shard_groups: bool = True
    """Whether FSDP2 can shard over fewer ranks than all (HSDP)."""
    takes_fractional_alpha: bool = False
    """Whether alpha can be another than a whole number."""
    adapts_experts_alone: bool = True
    """Whether tensors of experts can be named without a linear layer beside them."""
    has_own_loop: bool = False
    """Whether it trains by itself on PyTorch's FSDP2, without Trainer and Accelerate."""
    keeps_dropout_of_pairs: bool = False
    """Whether the dropout of adapters can stay on where answers are compared."""
    fsdp2_stages: str = ""
    """ZeRO stages that its files can say of several devices on FSDP2, as `--only` takes them;
    empty: all."""

    def layout_values(self, engine: str, n_devices: int) -> dict[str, str]:
        """Return the values of axes that its files can say, as `--only` takes them.

        `n_devices` are those of the one pool that plans are for; 0 where it is not known.
        """
        values = dict.fromkeys(("tp", "pp", "cp", "ep"), "1")
        if engine != ENGINES[0] or n_devices < 2:
            return values
        if self.fsdp2_stages:
            values["zero"] = self.fsdp2_stages
        return values if self.has_shard_groups else values | {"dp_shard": str(n_devices)}

    @property
    def config_file(self) -> str:
        """Name of the configuration that it reads."""
        return f"{self.name}.yaml"

    @property
    def launcher_file(self) -> str:
        """Name of the script that starts it."""
        return f"{self.name}.sh"

    @property
    def accelerate_file(self) -> str:
        """Name of the launch configuration of Accelerate beside it."""
        return f"{self.name}-accelerate.yaml"

    @property
    def deepspeed_file(self) -> str:
        """Name of DeepSpeed's JSON beside it."""
        return f"{self.name}-deepspeed.json"


_HERE = "planner.frameworks.finetuning"
TUNERS: Mapping[str, Tuner] = {
    record.name: record
    for record in (
        Tuner(
            name="trl",
            title="TRL",
            release="1.16.0",
            emitter=f"{_HERE}.trl:trl_files",
            keeps_dropout_of_pairs=True,
        ),
        Tuner(
            name="axolotl",
            title="axolotl",
            release="0.19.0",
            emitter=f"{_HERE}.axolotl:axolotl_files",
            packings=(MASKED, ALONE),
            fsdp2_stages="0,3",
        ),
        Tuner(
            name="llama-factory",
            title="LLaMA-Factory",
            release="0.9.5",
            emitter=f"{_HERE}.llama_factory:llama_factory_files",
            has_expert_adapters=False,
            has_precomputed_reference=False,
        ),
        Tuner(
            name="swift",
            title="ms-swift",
            release="4.6.0",
            emitter=f"{_HERE}.swift:swift_files",
            packings=(MASKED, ALONE),
            has_precomputed_reference=False,
            has_shard_groups=False,
            takes_fractional_alpha=True,
            adapts_experts_alone=False,
        ),
        Tuner(
            name="torchtune",
            title="torchtune",
            release="0.6.1",
            emitter=f"{_HERE}.torchtune.emitter:torchtune_files",
            packings=(MASKED, ALONE),
            has_expert_adapters=False,
            has_precomputed_reference=False,
            has_shard_groups=False,
            takes_fractional_alpha=True,
            has_own_loop=True,
            fsdp2_stages="2,3",
        ),
    )
}
"""By name."""


def target_title(target: str) -> str:
    """Return the title of what files are written for: a framework by its key, or a tool."""
    return TUNERS[target].title if target in TUNERS else framework_rules(target).title


def target_name(target: str) -> str:
    """Return the name of what files are written for, without its release."""
    return target if target in TUNERS else framework_rules(target).name
