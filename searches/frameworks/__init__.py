"""Which framework can run which layout, and which settings it refuses: one table of rules.

Every rule answers with a sentence that names the part in the way and what comes closest, so that a
plan without a configuration still says what to change. The same predicates, written once, restrict
the search (over arrays), keep the emitters from writing what a framework refuses, and check
existing runs.
"""
