"""What a release of a framework calls a switch, and the rule for plans that it has no flag for.

The tables stand beside the rules of each framework (`FrameworkRules.switch_flags`). A framework is
named by its key (`megatron`, `megatron@0.17.0`).
"""

from collections.abc import Callable, Mapping
from functools import cache

from searches.frameworks.case import Bools, Case
from searches.frameworks.registry import framework_rules, load
from searches.frameworks.releases import SwitchFlags
from searches.frameworks.rule import FrameworkRule


@cache
def _table(path: str) -> Mapping[str, SwitchFlags]:
    table: Mapping[str, SwitchFlags] = load(path) if path else {}
    return table


def switch_flags(framework: str, switch: str) -> SwitchFlags:
    """Return the record of a switch; `KeyError` where no release of the framework has it."""
    return _table(framework_rules(framework).switch_flags)[switch]


def switch_words(framework: str, switch: str, value: object = "") -> tuple[str, ...]:
    """Return the words that the release takes for a switch; none where it does not have it.

    >>> switch_words("megatron@0.17.0", "cuda_graph=modules", ("attn", "moe_router"))
    ('--cuda-graph-impl', 'transformer_engine', '--cuda-graph-scope', 'attn', 'moe_router')
    >>> switch_words("megatron@0.17.0", "paged_stash")
    ()
    """
    record = framework_rules(framework)
    return switch_flags(framework, switch).words(record.rules_version(), value)


def flag_of(framework: str, switch: str) -> str:
    """Return the last flag of a switch, the one that takes its value; "" where there is none.

    >>> flag_of("megatron", "cuda_graph=modules"), flag_of("megatron@0.17.0", "cuda_graph=modules")
    ('--cuda-graph-modules', '--cuda-graph-scope')
    >>> flag_of("megatron@0.18.2", "dispatcher_sms=deepep"), flag_of("bridge", "op_fuser")
    ('--moe-deepep-num-sms', '--use-transformer-engine-op-fuser')
    """
    flags = [word for word in switch_words(framework, switch) if word.startswith("--")]
    return flags[-1] if flags else ""


def other_spellings(framework: str, flag: str) -> tuple[str, ...]:
    """Return how a release spells the switches that another one has this flag for.

    >>> other_spellings("megatron@0.17.0", "--cuda-graph-modules")
    ('--cuda-graph-scope',)
    >>> other_spellings("megatron@0.18.2", "--moe-flex-dispatcher-num-sms")
    ('--moe-deepep-num-sms', '--moe-hybridep-num-sms')
    """
    table = _table(framework_rules(framework).switch_flags)
    named = (
        name
        for name, one in table.items()
        if any(flag in words.split() for _, words in one.spelled)
    )
    flags = (flag_of(framework, name) for name in named)
    return tuple(dict.fromkeys(other for other in flags if other and other != flag))


def releases_with(framework: str, switch: str) -> tuple[str, ...]:
    """Return the keys of the known releases that have a switch, the oldest first.

    >>> releases_with("megatron", "paged_stash"), releases_with("bridge", "offload_fraction")
    (('megatron@0.18.2', 'megatron@0.19.2'), ('bridge@0.6.2',))
    """
    record = framework_rules(framework)
    keys = (record.at(one.version).key for one in record.known_releases)
    return tuple(key for key in keys if switch_words(key, switch))


def switch_rule(
    code: str, switch: SwitchFlags, title: str, uses: Callable[[Case], Bools]
) -> FrameworkRule:
    """Return the rule of Megatron-LM that a release without a switch runs no plan that uses it.

    `uses` is elementwise over plans: where the switch is on. What comes closest names the release
    that has it (`searches.frameworks.table`).
    """
    when = f"before {switch.since}" if not switch.until else f"from {switch.until} on"
    return FrameworkRule(
        code,
        "megatron",
        title,
        "parse",
        switch.source or "megatron/training/arguments.py, parse_args",
        uses,
        f"{title}: megatron-core has no flag for it {when}",
        "leave it off",
        versions=switch.versions_without(),
    )
