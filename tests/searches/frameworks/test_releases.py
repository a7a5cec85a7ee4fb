"""Releases of frameworks: how they are named, which rules and which flags each has."""

import json
from importlib.resources import files

import pytest

from searches.frameworks.case import Case
from searches.frameworks.megatron.axis_flags import AXIS_FLAGS
from searches.frameworks.megatron.switch_flags import SWITCH_FLAGS
from searches.frameworks.registry import (
    BUILT_IN,
    framework_key,
    framework_rules,
    framework_space,
    keys_of,
)
from searches.frameworks.releases import SwitchFlags, UnknownReleaseError
from searches.frameworks.rule import FrameworkRule
from searches.frameworks.switches import flag_of, switch_rule, switch_words
from searches.frameworks.table import broken_rules, rules_of

TABLES = {
    name: json.loads((files("planner") / "data" / "flags" / f"{name}.json").read_text())[
        "releases"
    ]
    for name in BUILT_IN
}


@pytest.mark.parametrize(
    ("text", "key", "release"),
    [
        ("megatron", "megatron", "0.19.2"),
        ("megatron@0.17", "megatron@0.17.0", "0.17.0"),
        ("megatron@0.19", "megatron@0.19.2", "0.19.2"),
        ("bridge@26.06", "bridge@0.5.1", "0.5.1"),
        ("bridge@26.08", "bridge@0.6.2", "0.6.2"),
        ("bridge@0.5", "bridge@0.5.1", "0.5.1"),
        ("torchtitan@0.2.2", "torchtitan@0.2.2", "0.2.2"),
        ("deepspeed @ 0.19", "deepspeed@0.19.8", "0.19.8"),
        ("fsdp2@1.12", "fsdp2@1.12.0", "1.12.0"),
    ],
)
def test_a_release_is_named_by_its_version_the_start_of_it_or_its_container(text, key, release):
    assert framework_key(text) == framework_space(text) == key
    assert framework_rules(key).release == release
    assert framework_rules(key).key == key


def test_spaces_of_no_single_framework_have_no_release():
    assert (framework_space("any"), framework_space("default")) == ("any", "default")
    for text in ("any@1", "default@0.17", "nemo@1"):
        with pytest.raises(KeyError):
            framework_space(text)


@pytest.mark.parametrize("text", ["megatron@0.1", "megatron@", "megatron@0.20", "megatron@x"])
def test_an_unknown_release_is_refused_with_the_known_ones(text):
    with pytest.raises(UnknownReleaseError) as caught:
        framework_key(text)
    assert caught.value.hint == "one of 0.19.2, 0.18.2, 0.17.0"
    with pytest.raises(UnknownReleaseError) as caught:
        framework_key("bridge@25.11")
    assert caught.value.hint == "one of 0.6.2 = 26.08, 0.5.1 = 26.06"


@pytest.mark.parametrize("name", BUILT_IN)
def test_releases_stand_in_order_and_the_newest_is_written_for(name):
    record = BUILT_IN[name]
    assert record.releases[-1].version == record.release
    assert [one.version for one in record.releases] == list(TABLES[name])


def test_a_key_takes_the_place_of_its_framework():
    assert keys_of("bridge@0.5.1")[-2:] == ("bridge@0.5.1", "maxtext")
    assert keys_of("any") == keys_of("default") == tuple(BUILT_IN)


# Rules by release ----------------------------------------------------------------------------


def codes(framework, **more):
    return {rule.code for rule in rules_of(framework, **more)}


def test_rules_are_those_of_the_release():
    assert "TTN108" in codes("torchtitan@0.2.2")
    assert "TTN108" not in codes("torchtitan")
    assert "TTN304" not in codes("torchtitan@0.2.2")
    assert "TTN304" in codes("torchtitan@0.3.0")
    assert codes("megatron@0.19.2") == codes("megatron") == codes("megatron", version="0.19.2")


def test_rules_of_megatron_bridge_go_by_its_megatron_core():
    # 0.6.2 is no release before 0.16 of megatron-core: KV heads may be replicated.
    assert "MBR103" in codes("bridge")
    assert "MBR104" not in codes("bridge")
    assert "MBR306" in codes("bridge@0.5.1")
    assert framework_rules("bridge").rules_version("0.6.1") == "0.18.2"
    assert framework_rules("bridge").rules_version("0.1") == "0.18.2"


def test_what_a_release_lacks_names_the_one_that_has_it():
    case = Case.of_run({}, layout={"tp": 2, "sp": False})
    (old,) = (x for x in broken_rules("torchtitan@0.2.2", case) if x.rule.code == "TTN108")
    assert old.closest == "sp on, or framework torchtitan@0.3.0"
    ring = Case.of_run({}, layout={"cp": 2, "cp_comm": "p2p"})
    (new,) = (x for x in broken_rules("torchtitan@0.3.0", ring) if x.rule.code == "TTN107")
    assert new.closest == "cp_comm all-gather, or framework torchtitan@0.2.2"
    (newest,) = (x for x in broken_rules("torchtitan", ring) if x.rule.code == "TTN107")
    assert newest.closest == "cp_comm all-gather"  # no release was asked for


# Switches by release -------------------------------------------------------------------------


def is_known(options, words):
    """Tell whether a parser has the flags among some words, and takes the values given."""
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag = word
            if flag not in options:
                return False
        elif word and (choices := options[flag].get("choices")) and word not in choices:
            return False
    return True


@pytest.mark.parametrize("name", SWITCH_FLAGS)
def test_a_switch_is_spelled_as_the_parser_of_each_release_has_it(name):
    every = {words for _, words in SWITCH_FLAGS[name].spelled if words}
    for release, options in TABLES["megatron"].items():
        words = switch_words(f"megatron@{release}", name)
        assert is_known(options, words)
        if not words:
            assert not any(is_known(options, text.replace("{}", "").split()) for text in every)


def test_flags_of_switches_that_were_renamed():
    # docs/framework_switches.md, 1.1 and 3.1, read in the tags of three releases.
    assert [flag_of(f"megatron@{r}", "cuda_graph=modules") for r in ("0.17", "0.18", "0.19")] == [
        "--cuda-graph-scope",
        "--cuda-graph-modules",
        "--cuda-graph-modules",
    ]
    assert switch_words("megatron@0.17", "cuda_graph=full_iteration") == (
        "--cuda-graph-impl",
        "local",
        "--cuda-graph-scope",
        "full_iteration",
    )
    assert switch_words("megatron", "dispatcher_sms=hybridep", 16) == (
        "--moe-flex-dispatcher-num-sms",
        "16",
    )
    assert flag_of("bridge@26.06", "dispatcher_sms=hybridep") == "--moe-hybridep-num-sms"
    assert flag_of("megatron@0.17", "fp8_output_layer") == ""


def test_a_flag_of_an_axis_is_in_every_release_or_has_a_switch():
    rows = {words.split()[0] for one in SWITCH_FLAGS.values() for _, words in one.spelled}
    for flag in AXIS_FLAGS.values():
        assert flag in rows or all(flag in options for options in TABLES["megatron"].values())


def test_a_rule_is_made_of_a_switch():
    rule = switch_rule("MLM999", SWITCH_FLAGS["paged_stash"], "a paged stash", lambda c: c.mbs > 0)
    assert isinstance(rule, FrameworkRule)
    assert rule.versions == "<0.18"
    assert rule.reason == "a paged stash: megatron-core has no flag for it before 0.18"
    gone = SwitchFlags("x", (("0.1", "--x"), ("0.18", "")))
    assert (gone.since, gone.until, gone.versions_without()) == ("0.1", "0.18", ">=0.18")
    assert gone.words("0.17.0") == ("--x",)
    assert gone.words("0.18.0") == ()
