"""Slices of TPUs whose shape a cluster file states: `slice: 4x4x8`."""

from math import prod

from hardware.parts import Accelerator, Pool
from hardware.torus import is_slice, slice_examples, slice_shape
from planner.specs.schema import PoolSpec, SpecFault
from planner.specs.yaml.document import KeyPath


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as people write it.

    >>> shape_text((4, 4, 8))
    '4x4x8'
    """
    return "x".join(map(str, shape))


def slice_devices(spec: PoolSpec, part: Accelerator) -> int:
    """Return the devices of the slice that a pool states; 0 where it states none."""
    if spec.slice is None or part.torus is None:
        return 0
    return prod(spec.slice) * part.torus.devices_per_chip


def slice_fault(
    spec: PoolSpec, part: Accelerator, n_devices: int, pool_path: KeyPath
) -> SpecFault | None:
    """Return what is wrong with a stated slice of a pool of `n_devices`; None where nothing is."""
    if spec.slice is None:
        return None
    path, shape = (*pool_path, "slice"), shape_text(spec.slice)
    torus = part.torus
    if torus is None:
        message = f"{part.name} comes in no slices: those are of TPUs"
        return SpecFault(path, message, "leave it out")
    if not is_slice(torus, spec.slice):
        few = ", ".join(map(shape_text, slice_examples(torus)))
        more = "" if torus.n_axes == 2 else f", and multiples of 4 up to {torus.largest:,} chips"
        return SpecFault(path, f"no slice of {part.name} is {shape}", f"there are {few}{more}")
    devices = slice_devices(spec, part)
    words = f"{devices} devices" + (
        f", {torus.devices_per_chip} a chip" * (devices > prod(spec.slice))
    )
    if spec.scale_up_domain not in (None, devices):
        message = f"{shape} is {words}, and scale_up_domain says {spec.scale_up_domain}"
        return SpecFault(path, message, "leave scale_up_domain out")
    if n_devices % devices:
        message = f"{n_devices} devices are no whole slices of {shape} ({words})"
        nodes = devices // (n_devices // spec.nodes) or 1
        return SpecFault(path, message, f"give nodes as a multiple of {nodes}, or another slice")
    return None


def slice_keys(pool: Pool) -> tuple[tuple[str, str], ...]:
    """Return what a cluster document says of a stated slice: nothing of the usual shape."""
    torus = pool.accelerator.torus
    if torus is None or not pool.slice or pool.slice_shape != pool.slice:
        return ()
    usual = slice_shape(torus, pool.scale_up_domain)
    return () if usual == pool.slice else (("slice", shape_text(pool.slice)),)
