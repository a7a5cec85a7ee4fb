"""Fields of a pool that are set through others: figures of its accelerator, a number of devices.

`--set`, `--vary` and sweep files write `pools.0.accelerator.memory` where the file has the name of
a part, and `pools.0.devices`, which no file has.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.specs.yaml.document import Document

DEVICES = "devices"
"""`pools.N.devices`: a number of accelerators, set through the number of nodes."""


def settable(document: Document, path: str, text: str, origin: str) -> tuple[Document, str, str]:
    """Return document, path and value whose plain replacement sets such a field.

    All else comes back as it is given. `origin` names the option in messages; `SpecError` for a
    number of devices that makes no whole nodes.
    """
    head, _, below = path.partition(".")
    index, _, names = below.partition(".")
    pools = document.data.get("pools")
    is_pool = head == "pools" and names and isinstance(pools, list) and index.isdecimal()
    if not is_pool or int(index) >= len(pools) or not isinstance(pools[int(index)], Mapping):
        return document, path, text
    pool, (name, *inside) = dict(pools[int(index)]), names.split(".")
    if name == "accelerator" and inside:
        pool[name] = spelled_out(pool, pool.get(name))
    elif name == DEVICES and not inside:
        if not text.strip().isdecimal():
            message = f"{text!r} is no whole number of devices"
            raise SpecError(InputProblem(message, "such as 64", origin))
        path, nodes = nodes_of(document.data, path, int(text), origin)
        text = str(nodes)
    elif not inside:
        drop_rival(pool, name)
    changed = [*pools[: int(index)], pool, *pools[int(index) + 1 :]]
    return replace(document, data={**document.data, "pools": changed}), path, text


def drop_rival(pool: dict[str, Any], key: str | int) -> None:
    """Take away what cannot stand beside a new accelerator or instance of a pool."""
    rivals = {"accelerator": "instance", "instance": "accelerator"}
    if key in rivals and "nodes" in pool:
        pool.pop(rivals[str(key)], None)


def spelled_out(pool: dict[str, Any], value: object) -> object:
    """Return an accelerator as a mapping whose figures can be replaced.

    Where the pool names an instance, what the instance says of the node is written out beside it.
    """
    if isinstance(value, str):
        return {"like": value}
    if value is not None or not isinstance(pool.get("instance"), str):
        return value
    from hardware.catalogue import UnknownPartError, load_catalogue

    try:
        platform = load_catalogue().platform(pool["instance"])
    except UnknownPartError:
        return value  # the reader says so, with the place in the file
    del pool["instance"]
    pool.setdefault("accelerators_per_node", platform.devices_per_node)
    pool.setdefault("nic", platform.nic)
    pool.setdefault("nics_per_node", platform.nics_per_node)
    return {"like": platform.accelerator}


def nodes_of(
    data: Mapping[str, Any], path: str, n_devices: object, origin: str
) -> tuple[str, object]:
    """Return the field and the number of nodes that make so many devices of a pool."""
    head, index, _ = path.split(".")
    pools = data.get(head)
    result = pools[int(index)] if isinstance(pools, list) and int(index) < len(pools) else None
    per_node = devices_per_node(result) if isinstance(result, Mapping) else 0
    if per_node and isinstance(n_devices, int) and n_devices % per_node:
        message = f"{n_devices} devices are no whole nodes of {per_node}"
        raise SpecError(InputProblem(message, f"give a multiple of {per_node}", origin, path=path))
    return f"{head}.{index}.nodes", int(str(n_devices)) // (per_node or 1)


def devices_per_node(pool: Mapping[str, Any]) -> int:
    """Return the devices in a node of a pool as its document says; 0 where it does not."""
    from hardware.catalogue import UnknownPartError, load_catalogue

    n_devices = pool.get("accelerators_per_node")
    if isinstance(n_devices, int):
        return n_devices
    part = pool.get("accelerator")
    name = part.get("like") if isinstance(part, Mapping) else part
    catalogue = load_catalogue()
    try:
        if isinstance(pool.get("instance"), str):
            return catalogue.platform(pool["instance"]).devices_per_node
        return catalogue.accelerator(str(name)).devices_per_node
    except UnknownPartError:
        return 0
