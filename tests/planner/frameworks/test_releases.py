"""What a release of a framework can be told, and what another changed."""

import json
import sys

import pytest

from planner.errors import UsageError
from planner.frameworks.megatron.flags import flag_table
from planner.frameworks.releases import (
    changes,
    compared_tables,
    installed_options,
    known_releases,
    option_tables,
    release_changes_text,
    slim,
)
from searches.frameworks.registry import framework_names, framework_rules
from tests.planner.command import run_here


@pytest.mark.parametrize("framework", framework_names())
def test_there_is_a_table_of_the_release_that_is_written_and_of_an_older_one(framework):
    tables, written = option_tables(framework)
    assert framework_rules(framework).release == known_releases(framework)[-1]
    assert len(known_releases(framework)) >= 2
    assert all(len(options) > 50 for options in tables.values())
    assert written
    assert set(written) <= tables[framework_rules(framework).release].keys()


def test_the_table_of_megatron_is_that_of_its_parser():
    release, by_name, _ = flag_table()
    assert option_tables("megatron")[0][release].keys() - {"-h", "--help"} == by_name.keys()


def test_known_options_of_two_releases_of_megatron():
    # Read in megatron/training/arguments.py of both releases.
    found = compared_tables("megatron", "0.17.0", "0.19.2")
    assert "--eval-global-batch-size" in found.added
    assert "--tensor-model-parallel-size" not in (*found.added, *found.dropped)
    assert found.missing == ()


def test_what_differs_is_added_dropped_renamed_or_changed():
    old = {
        "--size": {"default": "1"},
        "--moe-enable-deepep": {"default": "False"},
        "--gone": {"default": "7"},
        "--kept": {"choices": ["a"]},
    }
    new = {
        "--size": {"default": "2"},
        "--moe-enable-deepep-v2": {"default": "False"},
        "--fresh": {"required": True},
        "--kept": {"choices": ["a", "b"]},
    }
    found = changes("megatron", ("1", old), ("2", new))
    assert found.added == ("--fresh",)
    assert found.dropped == ("--gone",)
    assert found.renamed == (("--moe-enable-deepep", "--moe-enable-deepep-v2"),)
    assert found.changed == (
        ("--kept", "choices", "['a']", "['a', 'b']"),
        ("--size", "default", "1", "2"),
    )
    # Nothing of what planner writes is in such a release.
    assert found.missing == option_tables("megatron")[1]
    assert "--tensor-model-parallel-size" in release_changes_text(found)
    assert json.loads(json.dumps(found.to_json()))["written_and_missing"] == list(found.missing)


def test_facts_that_say_nothing_are_left_out():
    told = {
        "--a": {"default": "None", "choices": None, "required": False},
        "--b": {"default": "0"},
    }
    assert slim(told) == {"--a": {}, "--b": {"default": "0"}}


def test_the_command_compares_two_releases():
    done = run_here("check-flags", "megatron", "--between", "0.17.0,0.19.2", "--format", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["new"] == "0.19.2"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nemo"], "unknown framework"),
        (["megatron", "--between", "0.1,0.19.2"], "no table of Megatron-LM 0.1"),
        (["megatron", "--between", "0.17.0"], "two releases"),
        (["megatron", "--python", "/none/python"], "no such program"),
        (["megatron", "--format", "csv"], "unknown"),
    ],
)
def test_bad_calls_are_one_message(words, part):
    done = run_here("check-flags", *words)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interpreter_without_the_framework_is_named():
    with pytest.raises(UsageError, match="cannot import DeepSpeed"):
        installed_options("deepspeed", sys.executable)
