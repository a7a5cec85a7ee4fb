"""What a release of a framework can be told, and what another changed."""

import json
import sys

import pytest

from planner.errors import UsageError
from planner.frameworks.megatron.flags import flag_table
from planner.frameworks.releases import (
    Lacking,
    changes,
    compared_tables,
    installed_options,
    known_releases,
    lacking_options,
    lacking_words,
    option_tables,
    release_changes_text,
    slim,
    tabled,
)
from searches.frameworks.registry import framework_rules
from tests.planner.command import run_here


@pytest.mark.parametrize("framework", tabled())
def test_there_is_a_table_of_the_release_that_is_written_and_of_an_older_one(framework):
    tables, written = option_tables(framework)
    assert framework_rules(framework).release == known_releases(framework)[-1]
    assert len(known_releases(framework)) >= (1 if framework == "maxtext" else 2)
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
        (["megatron@0.3"], "no release 0.3 of Megatron-LM is known"),
        (["megatron", "--source", "/none"], "no such folder"),
        (["megatron", "--source", "/", "--between", "0.17.0,0.19.2"], "without --source"),
        (["megatron", "--python", "/none/python"], "no such program"),
        (["megatron", "--format", "csv"], "unknown"),
    ],
)
def test_bad_calls_are_one_message(words, part):
    done = run_here("check-flags", *words)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def fake_torchtitan(folder, change):
    """Write a package like torchtitan 9.9: the options of the newest release, changed."""
    options = dict(option_tables("torchtitan")[0][framework_rules("torchtitan").release])
    change(options)
    classes = {}
    for name, facts in options.items():
        owner, _, field = name.partition(".")
        classes.setdefault(owner, []).append((field, facts.get("default")))
    lines = ["from dataclasses import dataclass", "class Text(str):", "    pass"]
    for owner, fields in classes.items():
        lines += ["@dataclass(kw_only=True)", f"class {owner}:"]
        lines += [f"    {field}: object = {default!r}" for field, default in fields]
    package, info = folder / "torchtitan", folder / "torchtitan-9.9.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "config.py").write_text("\n".join(lines) + "\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchtitan\nVersion: 9.9\n")
    return str(folder)


def test_the_command_asks_an_unpacked_package(tmp_path):
    def change(options):
        options["TrainingConfig.step_count"] = options.pop("TrainingConfig.steps")
        del options["TrainingConfig.gc_debug"]
        options["TrainingConfig.brand_new"] = {"default": "7"}

    folder = fake_torchtitan(tmp_path / "new", change)
    words = ("check-flags", "torchtitan", "--python", sys.executable, "--source", folder)
    done = run_here(*words, "--format", "json")
    told = json.loads(done.stdout)
    assert done.returncode == 1  # planner writes TrainingConfig.steps
    assert (told["old"], told["new"]) == ("0.3.0", "9.9")
    assert told["added"] == ["TrainingConfig.brand_new"]
    assert told["dropped"] == ["TrainingConfig.gc_debug"]
    assert told["renamed"] == [["TrainingConfig.steps", "TrainingConfig.step_count"]]
    assert told["written_and_missing"] == ["TrainingConfig.steps"]


def test_the_command_is_content_with_a_release_that_only_adds(tmp_path):
    folder = fake_torchtitan(tmp_path, lambda options: options.update({"JobX.fresh": {}}))
    done = run_here("check-flags", "torchtitan", "--python", sys.executable, "--source", folder)
    assert done.returncode == 0
    assert "added: 1\n  JobX.fresh" in done.stdout


def test_what_a_release_lacks_is_said_with_what_to_write():
    graph = ["--cuda-graph-impl", "full_iteration", "--cuda-graph-modules", "attn"]
    words = ["--bf16", *graph, "--nowhere"]
    assert lacking_words("megatron@0.17.0", words) == (
        Lacking("--cuda-graph-impl full_iteration", "framework megatron@0.18.2"),
        Lacking("--cuda-graph-modules", "--cuda-graph-scope, or framework megatron@0.18.2"),
        Lacking("--nowhere", ""),
    )
    assert lacking_words("megatron", words) == (Lacking("--nowhere", ""),)
    assert lacking_words("megatron", ["--attention-backend", "flash"]) == ()
    assert lacking_words("megatron", ["--use-legacy-models"]) == (
        Lacking("--use-legacy-models", "framework megatron@0.17.0"),
    )


def test_fields_that_another_release_has_are_named():
    field = "MLAModelProvider.moe_flex_dispatcher_num_sms"  # megatron-core 0.19
    assert lacking_options("bridge@0.5.1", [field, "MLAModelProvider.nowhere"]) == (
        Lacking(field, "framework bridge@0.6.2"),
    )
    assert lacking_options("bridge", [field]) == ()


def test_an_interpreter_without_the_framework_is_named():
    with pytest.raises(UsageError, match="cannot import DeepSpeed"):
        installed_options("deepspeed", sys.executable)
