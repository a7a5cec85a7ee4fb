"""What answers call the devices of their cluster: GPUs, TPU chips, NPUs; devices where unlike."""

from collections.abc import Mapping
from typing import Any

from hardware.catalogue import UnknownPartError, load_catalogue
from hardware.nouns import DEVICE, DeviceNoun, common_noun, vendor_noun
from planner.solver.answer.result import Plan, Result
from searches.frameworks.registry import framework_names, framework_rules


def noun_of_pool(pool: Mapping[str, Any]) -> DeviceNoun:
    """Return what a device of a pool of a cluster document is called."""
    accelerator = pool["accelerator"]
    if isinstance(accelerator, Mapping):
        accelerator = accelerator.get("like") or accelerator.get("name") or ""
    try:
        return load_catalogue().accelerator(str(accelerator)).noun
    except UnknownPartError:
        return DEVICE


def noun_of_inputs(inputs: Mapping[str, Any]) -> DeviceNoun:
    """Return what the devices of all pools of the inputs of an answer are called."""
    return common_noun(noun_of_pool(pool) for pool in inputs["cluster"]["pools"])


def noun_of(result: Result) -> DeviceNoun:
    """Return what the devices of all pools of an answer are called."""
    return noun_of_inputs(result.inputs)


def noun_of_plan(plan: Plan) -> DeviceNoun:
    """Return what the devices of a plan are called.

    One of another process does not hold its part: then by who makes what its frameworks run on.
    """
    if plan.breakdown.rows is not None:
        return plan.breakdown.rows.problem.pool.accelerator.noun
    named = {text.partition("@")[0] for text in plan.runs_on} & set(framework_names())
    vendors = [vendor for name in named for vendor in framework_rules(name).vendors]
    return common_noun(vendor_noun(vendor) for vendor in vendors)
