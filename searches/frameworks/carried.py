"""Rules that every framework has by its record: what its files cannot carry is not its own.

Axes without a field of `Layout`, kinds of layers, and adapters. They hold for frameworks of other
packages as for ours.
"""

from collections.abc import Iterable

from costmodels.axes import AXES, Axis, switch_axes
from costmodels.layers.kinds import LAYER_KINDS, kind_of
from costmodels.problem import Problem
from costmodels.shapes import ModelShape
from costmodels.tuning.records import BASES
from searches.frameworks.case import Case
from searches.frameworks.registry import (
    ANY,
    HEAD_LAYER,
    OWN_VALUES,
    RESIDUAL_STREAMS,
    VISION_TOWER,
    FrameworkRules,
    framework_names,
    framework_rules,
)
from searches.frameworks.rule import FrameworkRule


def carried_rules(framework: str) -> tuple[FrameworkRule, ...]:
    """Return the rules on what a framework has not: devices, axes, kinds of layers, adapters."""
    record = framework_rules(framework)
    axes = (_axis_rule(record, x) for x in switch_axes() if x.name not in record.switches)
    return (
        device_rule(record),
        *axes,
        *_kernel_rules(record),
        layer_kind_rule(record),
        *tuning_rules(record),
    )


def device_rule(record: FrameworkRules) -> FrameworkRule:
    """Return the rule on accelerators that a framework does not run on."""
    able = " or ".join(record.vendors)
    return FrameworkRule(
        f"DEVICE-{record.name}".upper(),
        record.name,
        "an accelerator that it does not run on",
        "start",
        "searches/frameworks/registry.py, FrameworkRules.vendors",
        lambda case: case.vendor not in record.vendors,
        lambda case: f"accelerator of {case.vendor}: {record.title} runs on {able}",
        lambda case: _vendor_frameworks(case.vendor, able),
        is_of_job=True,
    )


def _vendor_frameworks(vendor: str, able: str) -> str:
    """Return which frameworks run on the accelerators of a vendor, in words."""
    names = [name for name in framework_names() if vendor in framework_rules(name).vendors]
    return f"framework {' or '.join(names)}" if names else f"an accelerator of {able}"


def _axis_rule(record: FrameworkRules, axis: Axis) -> FrameworkRule:
    at_rest = axis.code(axis.off)
    return FrameworkRule(
        f"SWITCH-{axis.name}",
        record.name,
        f"files for it carry no {axis.name}",
        "planner",
        "planner.frameworks",
        lambda case: case.switch(axis.name) != at_rest,
        f"{axis.name}: {record.title} files do not carry it",
        f"{axis.name} {axis.text(axis.off)}",
    )


def _kernel_rules(record: FrameworkRules) -> tuple[FrameworkRule, ...]:
    """Return the rule on DeepEP where a framework has its kernels for some devices alone."""
    lacking = tuple(x for x in record.vendors if x not in record.deepep_vendors)
    if "dispatcher" not in record.switches or not lacking:
        return ()
    code = AXES["dispatcher"].code("deepep")
    rule = FrameworkRule(
        f"DEEPEP-{record.name}".upper(),
        record.name,
        "DeepEP on devices that its kernels do not run on",
        "start",
        "DeepEP setup.py: CUDA sources; for AMD Primus-Turbo has a port",
        lambda case: (case.switch("dispatcher") == code) & (case.vendor in lacking),
        f"dispatcher deepep: {record.title} calls DeepEP's CUDA kernels",
        "dispatcher alltoall, or framework primus",
    )
    return (rule,)


def layer_kind_rule(record: FrameworkRules) -> FrameworkRule:
    """Return the rule on kinds of layers that a framework has not."""
    return FrameworkRule(
        f"KIND-{record.name}".upper(),
        record.name,
        "a kind of layer that it does not have",
        "start",
        "costmodels/layers/layer_kind.py, LayerKind.frameworks",
        lambda case: bool(foreign_kinds(record, case.model)),
        lambda case: f"layers: {_lacking(record, case.model)}",
        lambda case: _able_frameworks(case.model),
    )


def adapter_rule(record: FrameworkRules) -> FrameworkRule:
    """Return the rule on adapters beside frozen weights (LoRA, QLoRA)."""
    return FrameworkRule(
        f"TUNE-{record.name}".upper(),
        record.name,
        "adapters beside frozen weights that it does not train",
        "planner",
        "peft tuners/lora; accelerate utils/fsdp_utils.py (fsdp2_prepare_model, Params4bit);"
        " megatron/bridge/peft/lora.py",
        lambda case: case.job.tuning is not None and not _trains(record, _base(case)),
        lambda case: _untrained(record, _base(case)),
        lambda case: _tuning_frameworks(_base(case)),
        is_of_job=True,
    )


def preference_rule(record: FrameworkRules) -> FrameworkRule:
    """Return the rule on answers that are compared beside a reference (DPO)."""
    able = [name for name in framework_names() if framework_rules(name).has_preferences]
    return FrameworkRule(
        f"PREF-{record.name}".upper(),
        record.name,
        "a reference beside the model",
        "planner",
        "trl trainer/dpo_trainer.py",
        lambda case: case.job.compares_answers,
        f"preferences: {record.title} has no loss that compares with a reference",
        f"framework {' or '.join(able)}",
        is_of_job=True,
    )


def pair_rule(record: FrameworkRules) -> FrameworkRule:
    """Return the rule on micro-batches that would part the two answers of a pair (DPO)."""
    return FrameworkRule(
        f"PAIR-{record.name}".upper(),
        record.name,
        "a micro-batch that parts the answers of a pair",
        "planner",
        "trl trainer/dpo_trainer.py, DataCollatorForPreference",
        lambda case: case.job.compares_answers & (case.mbs % 2 == 1),
        lambda case: f"mbs {case.mbs}: both answers of a pair are in one micro-batch",
        "an even mbs",
        batches=True,
    )


def answers_rule(record: FrameworkRules) -> FrameworkRule:
    """Return the rule that a framework has on jobs that compare answers (DPO)."""
    return pair_rule(record) if record.has_preferences else preference_rule(record)


def foreign_rules(
    names: Iterable[str], problem: Problem, mbs: int = 2
) -> tuple[FrameworkRule, ...]:
    """Return why none of some frameworks runs a job, whatever the layout: a rule of each, or ().

    Devices, kinds of layers, adapters, or answers that are compared; the first that each lacks.
    `mbs` is a micro-batch that the search has, an even one where it has one.
    """
    vendor = problem.pool.accelerator.vendor
    case = Case.of_run(
        {}, layout={"mbs": mbs}, model=problem.shape, job=problem.job, vendor=vendor
    )
    lacks = []
    for record in (framework_rules(name) for name in names if name != ANY):
        rules = (
            device_rule(record),
            layer_kind_rule(record),
            adapter_rule(record),
            answers_rule(record),
        )
        lacks.append(next((rule for rule in rules if rule.broken(case)), None))
    return () if None in lacks else tuple(rule for rule in lacks if rule is not None)


def quantized_rule(record: FrameworkRules) -> FrameworkRule:
    """Return the rule on quantized weights that are cut over tensor-parallel ranks or stages."""
    return FrameworkRule(
        f"CUT-{record.name}".upper(),
        record.name,
        "quantized frozen weights that are cut",
        "planner",
        "bitsandbytes nn/modules.py (Params4bit, Int8Params): whole matrices of one rank",
        lambda case: (
            _is_quantized(case)
            & (
                (case.tp > 1)
                | (case.pp > 1)
                | (case.cp > 1)
                | ((case.zero > 0) & (_base(case) == "int8"))
            )
        ),
        lambda case: (
            f"base {_base(case)} with zero {case.zero}, tp {case.tp}, pp {case.pp}, cp {case.cp}:"
            " quantized weights lie whole on every rank, those of NF4 in shards of ZeRO too"
        ),
        "tp 1, pp 1 and cp 1, of int8 also zero 0",
    )


def _base(case: Case) -> str:
    return case.job.tuning.base if case.job.tuning else ""


def _is_quantized(case: Case) -> bool:
    return case.job.tuning is not None and case.job.tuning.storage.is_quantized


def tuning_rules(record: FrameworkRules) -> tuple[FrameworkRule, ...]:
    """Return the rules on adapters and references that it lacks, and on what lies beside some."""
    lacks: tuple[FrameworkRule, ...] = (
        (adapter_rule(record),) if set(BASES) - set(record.adapter_bases) else ()
    )
    lacks += (answers_rule(record),)
    quantized = any(BASES[base].is_quantized for base in record.adapter_bases)
    return (*lacks, quantized_rule(record)) if quantized else lacks


def _trains(record: FrameworkRules, base: str) -> bool:
    return base in record.adapter_bases


def _untrained(record: FrameworkRules, base: str) -> str:
    """Return why a framework does not train adapters beside weights held so, in words."""
    if not record.adapter_bases:
        return f"adapters: {record.title} trains all weights, it has no LoRA"
    return f"adapters: {record.title} has no base in {base} beside them"


def _tuning_frameworks(base: str) -> str:
    able = [name for name in framework_names() if _trains(framework_rules(name), base)]
    return f"framework {' or '.join(able)}" if able else "base bf16, or framework any"


def foreign_kinds(record: FrameworkRules, shape: ModelShape) -> tuple[str, ...]:
    """Return the kinds of a model's layers that files of a framework cannot say, by name."""
    return tuple(name for name in _kind_names(shape) if not _carries(record, name))


def _lacking(record: FrameworkRules, shape: ModelShape) -> str:
    """Return what files of a framework cannot say of a model, in words."""
    names = foreign_kinds(record, shape)
    # torchtitan and Megatron-Bridge train Flux, whose files are not written.
    beside = (VISION_TOWER, HEAD_LAYER, RESIDUAL_STREAMS)
    unstated = [name for name in names if name in beside or shape.diffusion]
    layers = [name for name in names if name not in unstated]
    parts = [f"{record.title} has no {', '.join(layers)}"] * bool(layers)
    parts += [f"files for {record.title} state no {', '.join(unstated)}"] * bool(unstated)
    return "; ".join(parts)


def _kind_names(shape: ModelShape) -> list[str]:
    names = [name for name, n in zip(shape.kinds, shape.kind_counts, strict=True) if n]
    # Encoders, which all have one, are known by their layers.
    own = [name for name in names if name.partition("@")[0] in LAYER_KINDS]
    mixers = {kind_of(name).mixer for name in own}
    head = shape.head_transform and not any(mixer.startswith("bidirectional") for mixer in mixers)
    names += [OWN_VALUES] * bool(shape.v_head and not shape.latent)
    # The class with compressed attention has several streams; no other class has them.
    streams = shape.residual_streams is not None and shape.compressed is None
    names += [VISION_TOWER] * (shape.vision is not None) + [HEAD_LAYER] * head
    return names + [RESIDUAL_STREAMS] * streams


def _carries(record: FrameworkRules, kind: str) -> bool:
    """Tell whether the record of a kind names the framework, or that of the framework the kind."""
    layer_kind = kind_of(kind) if kind.partition("@")[0] in LAYER_KINDS else None
    return kind in record.layer_kinds or (
        layer_kind is not None and record.name in layer_kind.frameworks
    )


def able_frameworks(shape: ModelShape) -> tuple[str, ...]:
    """Return the frameworks that have every kind of a model's layers, by name."""
    names = framework_names()
    return tuple(name for name in names if not foreign_kinds(framework_rules(name), shape))


def _able_frameworks(shape: ModelShape) -> str:
    """Return which frameworks have every kind of a model's layers, in words."""
    able = able_frameworks(shape)
    return f"framework {' or '.join(able)}" if able else "layers of other kinds, or framework any"
