"""Builders that the tests of the cost models share: pools, problems, layouts with defaults."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from costmodels.examples import toy_accelerator
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.schedule.stages import stage_layers
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import STACKS, StackProfile
from hardware.catalogue import Catalogue, load_catalogue
from hardware.parts import Accelerator, Fabric, Link, Pool

DATA = Path(__file__).parent.parent / "data"
INF = float("inf")

TOY_MODEL = ModelShape(
    "toy",
    layers=24,
    hidden=2048,
    heads=16,
    kv_heads=8,
    head_dim=128,
    ffn=8192,
    gated=True,
    vocab=32000,
    tied=False,
)


def _link(name: str, kind: str, **changes: object) -> Link:
    """A wire with one set of figures for all three protocols: base 10 us, hop 2 us."""
    base: dict[str, object] = {
        "name": name,
        "kind": kind,
        "bytes_per_s": 50e9 if kind == "scale-out" else 0.0,
        "efficiency": 1.0,
        "ring_base_s": (10e-6,) * 3,
        "ring_hop_s": (2e-6,) * 3 if kind == "scale-up" else (5e-6,) * 3,
        "tree_base_s": (10e-6,) * 3,
        "tree_hop_s": (2e-6,) * 3 if kind == "scale-up" else (5e-6,) * 3,
        "protocol_bytes_per_s": (INF,) * 3,
        "protocol_frac": (1.0,) * 3,
        "p2p_latency_s": 4e-6 if kind == "scale-up" else 20e-6,
    }
    return Link(**{**base, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def toy_link() -> Callable[..., Link]:
    return _link


@pytest.fixture(scope="session")
def toy_pool() -> Callable[..., Pool]:
    """Nodes of 8 toy accelerators: 250 GB/s ring inside, 8 NICs of 50 GB/s."""

    def build(n_nodes: int = 1, **changes: object) -> Pool:
        base: dict[str, object] = {
            "name": "toy",
            "accelerator": toy_accelerator(),
            "n_nodes": n_nodes,
            "devices_per_node": 8,
            "scale_up_domain": 8,
            "scale_up": _link("toy-link", "scale-up"),
            "nics_per_node": 8,
            "nic": _link("toy-nic", "scale-out"),
            "memory_margin_bytes": 0.0,
        }
        return Pool(**{**base, **changes})  # type: ignore[arg-type]

    return build


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.fixture(scope="session")
def real_pool(catalogue: Catalogue) -> Callable[..., Pool]:
    """Nodes of a catalogue accelerator, one NIC per device unless said."""

    def build(accelerator: str, n_nodes: int = 1, nic: str = "ib-ndr-400", size: int = 8) -> Pool:
        part: Accelerator = catalogue.accelerator(accelerator)
        return Pool(
            "real",
            part,
            n_nodes,
            size,
            size,
            catalogue.link(part.scale_up_link),
            size,
            catalogue.link(nic),
            0.0,
        )

    return build


@pytest.fixture(scope="session")
def toy_problem(toy_pool: Callable[..., Pool]) -> Callable[..., Problem]:
    """The toy model on toy nodes: 24 layers, 4096 tokens, 128 sequences a step."""

    def build(
        shape: ModelShape = TOY_MODEL,
        pool: Pool | None = None,
        stack: StackProfile | str = "fused",
        fabric: Fabric | None = None,
        seq_len: int = 4096,
        gbs: int = 128,
        precision: str = "bf16",
    ) -> Problem:
        profile = STACKS[stack] if isinstance(stack, str) else stack
        job = TrainingJob(seq_len, gbs, precision)
        return Problem(shape, job, pool or toy_pool(8), fabric or Fabric(), profile)

    return build


@pytest.fixture(scope="session")
def plain_layout() -> Callable[..., Layout]:
    """A layout from the degrees that matter; the rest follows or is off."""

    def build(
        problem: Problem,
        tp: int = 1,
        pp: int = 1,
        dp: int = 1,
        vpp: int = 1,
        mbs: int = 1,
        zero: int = 0,
        sp: bool = False,
        recompute: str = "none",
        split: str = "even",
        schedule: str = "",
        recompute_layers: int | None = None,
    ) -> Layout:
        held = stage_layers(problem.shape.layers, pp, vpp, split)
        if recompute_layers is None:
            recompute_layers = max(held) if recompute == "full" else 0
        plain = "none" if pp == 1 else "1f1b" if vpp == 1 else "interleaved"
        return Layout(
            n_devices=tp * pp * dp,
            tp=tp,
            pp=pp,
            dp=dp,
            vpp=vpp,
            split=split,
            mbs=mbs,
            gbs=problem.job.global_batch,
            zero=zero,
            sp=sp,
            schedule=schedule or plain,
            recompute=recompute,
            recompute_layers=recompute_layers,
            stage_layers=held,
        )

    return build


@pytest.fixture(scope="session")
def read_rows() -> Callable[[str], list[dict[str, str]]]:
    """Rows of a CSV file in tests/data; lines that begin with # name the source."""

    def read(name: str) -> list[dict[str, str]]:
        lines = (DATA / name).read_text(encoding="utf-8").splitlines()
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))

    return read
