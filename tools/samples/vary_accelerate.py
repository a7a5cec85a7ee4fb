"""Changes to an Accelerate launch configuration or the Trainer's arguments beside it."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import yaml


class AccelerateRun:
    """The keys of the launch configuration and of the Trainer's arguments."""

    def __init__(self, files: dict[str, str]) -> None:
        text = files["accelerate.yaml"]
        self.head = "".join(x + "\n" for x in text.splitlines() if x.startswith("#"))
        self.keys: dict[str, Any] = yaml.safe_load(text)
        self.trainer: dict[str, Any] = json.loads(files["trainer_args.json"])
        self.launcher = files["accelerate.sh"]

    def files(self) -> dict[str, str]:
        """Return the files."""
        return {
            "accelerate.yaml": self.head + yaml.safe_dump(self.keys, sort_keys=False),
            "trainer_args.json": json.dumps(self.trainer, indent=2) + "\n",
            "accelerate.sh": self.launcher,
        }

    @property
    def sizes(self) -> dict[str, Any]:
        """The degrees."""
        block: dict[str, Any] = self.keys["parallelism_config"]
        return block

    @property
    def fsdp(self) -> dict[str, Any]:
        """The block of FSDP."""
        block: dict[str, Any] = self.keys["fsdp_config"]
        return block


Change = Callable[[AccelerateRun, Random], bool]
SIZE = "parallelism_config_{}_size"


def _world(run: AccelerateRun, random: Random) -> bool:
    run.keys["num_processes"] += run.keys["num_machines"] * random.choice((1, 2, 8))
    return True


def _machines(run: AccelerateRun, random: Random) -> bool:
    world = run.keys["num_processes"]
    odd = [n for n in range(2, 12) if world % n]
    if not odd:
        return False
    run.keys["num_machines"] = random.choice(odd)
    return True


def _nothing_sharded(run: AccelerateRun, random: Random) -> bool:
    sizes = run.sizes
    if sizes.get(SIZE.format("cp"), 1) > 1:
        return False
    sizes[SIZE.format("dp_replicate")] *= sizes[SIZE.format("dp_shard")]
    sizes[SIZE.format("dp_shard")] = 1
    return True


def _both_ways(run: AccelerateRun, random: Random) -> bool:
    sizes = run.sizes
    if sizes.get(SIZE.format("cp"), 1) == 1:
        return False
    sizes[SIZE.format("sp")] = 2
    run.keys["num_processes"] *= 2
    return True


def _unknown_top(run: AccelerateRun, random: Random) -> bool:
    run.keys[random.choice(("use_parallelism_config", "tensor_parallel", "fsdp_version"))] = 2
    return True


def _unknown_inside(run: AccelerateRun, random: Random) -> bool:
    if random.random() < 0.5:
        run.fsdp["fsdp_reshard_after_backward"] = True
    else:
        run.sizes["parallelism_config_pp_size"] = 2
    return True


def _put(block: str, key: str, value: object) -> Change:
    def change(run: AccelerateRun, random: Random) -> bool:
        target = run.keys[block] if block else run.keys
        if target.get(key) == value:
            return False
        target[key] = value
        return True

    return change


def _drop(key: str) -> Change:
    def change(run: AccelerateRun, random: Random) -> bool:
        return run.keys.pop(key, None) is not None

    return change


BREAKS: tuple[tuple[str, str, Change], ...] = (
    ("ACC124", "processes that the sizes do not make", _world),
    ("ACC126", "machines that do not divide the processes", _machines),
    ("ACC402|ACC124", "nothing to shard over", _nothing_sharded),
    ("ACC124", "context beside sequence parallelism", _both_ways),
    ("ACC120", "unknown key at the top", _unknown_top),
    ("ACC121", "unknown key in a block", _unknown_inside),
    ("ACC125", "FSDP1 with a mesh", _put("fsdp_config", "fsdp_version", 1)),
    ("ACC125", "a mesh without FSDP", _put("", "distributed_type", "MULTI_GPU")),
    ("ACC122", "no kind of distribution", _drop("distributed_type")),
    ("ACC123", "unknown kind of distribution", _put("", "distributed_type", "FSDP2")),
    ("ACC420", "local state", _put("fsdp_config", "fsdp_state_dict_type", "LOCAL_STATE_DICT")),
    ("ACC123", "unknown wrapping", _put("fsdp_config", "fsdp_auto_wrap_policy", "LAYERS")),
    ("ACC124", "a size of 0", _put("parallelism_config", SIZE.format("tp"), 0)),
)
"""Rule, what is changed, and the change."""


def nudge(run: AccelerateRun, random: Random) -> str:
    """Change one number at random; return what was done."""
    places: list[tuple[dict[str, Any], str]] = [
        (run.sizes, key) for key, value in run.sizes.items() if isinstance(value, int)
    ]
    places += [(run.keys, "num_processes"), (run.keys, "num_machines")]
    block, key = random.choice(places)
    old = int(block[key])
    new = random.choice(sorted({old * 2, old + 1, max(1, old - 1), max(1, old // 2)} - {old}))
    block[key] = new
    return f"{key} {old} to {new}"
