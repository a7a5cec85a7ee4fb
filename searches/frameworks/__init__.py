"""Which framework can run which layout, and which settings it refuses: one table of rules.

Every rule answers with a sentence that names the part in the way and what comes closest, so that a
plan without a configuration still says what to change. The same predicates, written once, restrict
the search (over arrays), keep the emitters from writing what a framework refuses, and check
existing runs.
"""

from searches.frameworks.case import UNKNOWN, Case, NotStatedError
from searches.frameworks.deepspeed.layouts import partition_of, pipeline_partition
from searches.frameworks.megatron.layouts import megatron_vocab, vocab_divisor
from searches.frameworks.rule import Broken, FrameworkRule
from searches.frameworks.table import (
    RELEASES,
    RULES,
    TITLES,
    TOML_RELEASE,
    broken_rules,
    framework_batches,
    framework_mask,
    order_runs,
    refusals,
    rules_of,
    runnable,
    runnable_batches,
    runnable_kinds,
    runnable_layouts,
    schedule_runs,
    searched_frameworks,
)
from searches.options import FRAMEWORKS

__all__ = [
    "FRAMEWORKS",
    "RELEASES",
    "RULES",
    "TITLES",
    "TOML_RELEASE",
    "UNKNOWN",
    "Broken",
    "Case",
    "FrameworkRule",
    "NotStatedError",
    "broken_rules",
    "framework_batches",
    "framework_mask",
    "megatron_vocab",
    "order_runs",
    "partition_of",
    "pipeline_partition",
    "refusals",
    "rules_of",
    "runnable",
    "runnable_batches",
    "runnable_kinds",
    "runnable_layouts",
    "schedule_runs",
    "searched_frameworks",
    "vocab_divisor",
]
