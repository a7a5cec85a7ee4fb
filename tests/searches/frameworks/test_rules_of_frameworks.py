"""Every framework rule: well-formed, broken by an example, kept by its twin, spoken in numbers."""

import re
from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from searches.frameworks.case import UNKNOWN, Case, NotStatedError
from searches.frameworks.megatron.flags import layout_stages
from searches.frameworks.megatron.layouts import NO_FLAG
from searches.frameworks.registry import framework_names, framework_rules
from searches.frameworks.table import (
    broken_rules,
    refusals,
    rules_by_code,
    rules_of,
    schedule_runs,
)
from tests.searches.frameworks.examples import (
    DENSE,
    EXPERTS,
    JOB,
    OVERLAPPED,
    PLAIN,
    QUEUE,
    SIZES,
    case,
    examples,
)

RULES = rules_by_code()

EXAMPLES = examples()
LETTERS = {
    "megatron": "MLM",
    "deepspeed": "DSP",
    "torchtitan": "TTN",
    "fsdp2": "ACC",
    "bridge": "MBR",
    "primus": "PRM",
    "maxtext": "MXT",
    "mindspeed": "MSL",
    "automodel": "NAM",
}


def codes(framework, given, **more):
    return [one.rule.code for one in broken_rules(framework, given, **more)]


FRAMEWORKS = tuple(dict.fromkeys(rule.framework for rule in RULES.values()))
"""A test of all rules of a framework costs as much as a test of one."""


def of_framework(framework):
    """Return the rules of a framework; none at all would be a mistake."""
    found = [rule for rule in RULES.values() if rule.framework == framework]
    assert found
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_rule_is_well_formed(framework):
    for rule in of_framework(framework):
        check_form(rule)
        assert RULES[rule.code] is rule


def check_form(rule):
    code = rule.code
    own = LETTERS[rule.framework] + r"\d{3}"
    assert re.fullmatch(rf"{own}|(DEVICE|KIND|TUNE|CUT|PREF|PAIR)-{rule.framework.upper()}", code)
    for text in (rule.title, rule.source):
        assert len(text) > 3, code
        assert text == " ".join(text.split()), code
        assert not text.endswith("."), code
    assert rule.when in ("parse", "start", "first step", "ignored", "planner"), code
    assert rule.level in ("layout", "settings"), code
    assert not (rule.level == "settings" and rule.when == "planner"), code
    assert SpecifierSet(rule.versions) is not None, code
    of_layouts = {x.code for x in rules_of(rule.framework, "layout")}
    assert set(rule.covers) <= (of_layouts if rule.level == "settings" else set()), code


@pytest.mark.parametrize(
    ("framework", "fields", "keys", "told", "covered", "closest"),
    [
        (
            "deepspeed",
            {"mbs": 4, "gbs": 96, "dp": 64},
            {
                "train_batch_size": 96,
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": 2,
            },
            "DSP123",
            "DSP115",
            "train_batch_size 512,",
        ),
        (
            "deepspeed",
            {"mbs": 1, "gbs": 96, "dp": 64},
            {"train_batch_size": 96},
            "DSP123",
            "DSP115",
            "train_batch_size 128,",
        ),
        (
            "torchtitan",
            {"mbs": 3, "gbs": 100, "dp": 64},
            {"training.local_batch_size": 3, "training.global_batch_size": 100},
            "TTN123",
            "TTN110",
            "training.global_batch_size 192, or -1",
        ),
        (
            "torchtitan",
            {"tp": 3},
            {"parallelism.tensor_parallel_degree": 3},
            "TTN122",
            "TTN101",
            "data_parallel_shard_degree -1",
        ),
    ],
)
def test_one_cause_is_told_once_in_the_words_of_the_framework(
    framework, fields, keys, told, covered, closest
):
    given = case(fields, keys)
    assert RULES[covered].broken(given)
    found = {one.rule.code: one for one in broken_rules(framework, given)}
    assert told in found
    assert covered not in found
    assert found[told].closest.startswith(closest)
    alone = broken_rules(framework, given, level="layout")
    assert covered in {one.rule.code for one in alone}


def test_every_rule_has_an_example():
    assert set(EXAMPLES) == set(RULES)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_rule_is_broken_by_its_example_and_kept_by_the_twin(framework):
    for rule in of_framework(framework):
        breaks, keeps = EXAMPLES[rule.code]
        assert bool(rule.broken(breaks)) is True, rule.code
        assert not rule.broken(keeps), rule.code


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_broken_rule_is_reported_with_its_numbers(framework):
    for rule in of_framework(framework):
        check_report(rule)


def check_report(rule):
    code = rule.code
    bound = re.search(r"[<>=!]=?([\d.]+\w*)", rule.versions)
    of_rule = (bound[1],) if bound else ()
    # A rule of older releases, or of one to come, has none of those that plans are written for.
    releases = (framework_rules(rule.framework).release, *of_rule, "0.1")
    version = next(
        (x for x in releases if rule in rules_of(rule.framework, rule.level, x)), releases[0]
    )
    told = broken_rules(rule.framework, EXAMPLES[code][0], level=rule.level, version=version)
    found = {x.rule.code: x for x in told}
    assert code in found
    for text in (found[code].reason, found[code].closest):
        assert text, code
        assert text == " ".join(text.split()), code
        assert "UNKNOWN" not in text, code
        assert "None" not in text, code
    assert found[code].text == f"{found[code].reason}; closest: {found[code].closest}"


def test_every_framework_has_a_title_a_release_and_rules():
    assert framework_names() == tuple(LETTERS)
    for framework in framework_names():
        assert Version(framework_rules(framework).release)
        assert rules_of(framework, "layout")
    assert {rule.framework for rule in RULES.values()} == set(framework_names())


OF_OTHER_RELEASES = (
    *("MLM104", "MLM525", "MLM711", "MLM715"),
    *(f"MLM{n}" for n in range(429, 432)),
)
"""Of megatron-core before 0.16 and 0.18, or after 0.19: no release of Megatron-Bridge has it."""


def test_megatron_bridge_has_megatrons_layout_rules():
    mirrored = [
        rule.code.replace("MBR", "MLM").replace("BRIDGE", "MEGATRON")
        for rule in RULES.values()
        if rule.framework == "bridge"
        and rule.code
        not in ("MBR432", "MBR720", "MBR721", *(f"MBR{n}" for n in range(730, 735)))  # its own
    ]
    assert mirrored == [
        rule.code
        for rule in RULES.values()
        if rule.framework == "megatron"
        and rule.level == "layout"
        and rule.code not in (NO_FLAG, *OF_OTHER_RELEASES)
    ]


FSDP = {"use_megatron_fsdp": True, "ckpt_format": "fsdp_dtensor"}


@pytest.mark.parametrize(
    ("flags", "fields", "fault"),
    [
        (FSDP, {"pp": 2, "vpp": 2}, "with Megatron-FSDP it excludes interleaving"),
        (
            FSDP | {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn"]},
            {},
            "with Megatron-FSDP it excludes graphs of modules",
        ),
        (FSDP | {"cuda_graph_impl": "full_iteration"}, {}, ""),
        (
            {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn", "mlp"]},
            {},
            "it excludes mlp and moe in CUDA graphs",
        ),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn"]}, {}, ""),
    ],
)
def test_what_the_overlapped_exchange_of_experts_excludes(flags, fields, fault):
    given = case({"ep": 8, **fields}, OVERLAPPED | flags, EXPERTS)
    told = [x.reason for x in broken_rules("megatron", given) if x.rule.code == "MLM327"]
    assert told == ([fault] if fault else [])


# Versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "changes", "version", "code", "wanted"),
    [
        ("megatron", {"tp": 16}, "0.14.0", "MLM104", True),
        ("megatron", {"tp": 16}, "0.15.3", "MLM104", True),
        ("megatron", {"tp": 16}, "0.16.0", "MLM104", False),
        ("megatron", {"tp": 16}, "", "MLM104", False),
        ("megatron", {"tp": 4, "model": {"kv_heads": 6}}, "0.19.2", "MLM103", True),
        ("megatron", {"tp": 4, "model": {"kv_heads": 6}}, "0.14.0", "MLM103", False),
        ("megatron", {"tp": 2, "generation": "blackwell", "env": {}}, "0.12.0", "MLM132", True),
        ("megatron", {"tp": 2, "generation": "blackwell", "env": {}}, "0.19.2", "MLM131", False),
        ("torchtitan", {"tp": 2, "sp": False}, "0.2.2", "TTN108", True),
        ("torchtitan", {"tp": 2, "sp": False}, "0.3.0", "TTN108", False),
        ("torchtitan", {"cp": 2, "dp": 32, "cp_comm": "p2p"}, "0.2.2", "TTN107", False),
        ("torchtitan", {"cp": 2, "dp": 32, "cp_comm": "p2p"}, "", "TTN107", True),
    ],
)
def test_rules_belong_to_releases(framework, changes, version, code, wanted):
    assert (code in codes(framework, case(changes), version=version)) == wanted


def test_a_release_that_is_not_out_yet_has_its_rules():
    given = case(
        {},
        {"use_megatron_fsdp": True, "megatron_fsdp_version": 2, "use_distributed_optimizer": True},
    )
    assert "MLM414" in codes("megatron", given, version="0.20.0.dev0")
    assert "MLM414" not in codes("megatron", given)


def test_levels_are_told_apart():
    given = case({"tp": 3}, {"bf16": True, "fp16": True})
    assert "MLM517" not in codes("megatron", given, level="layout")
    assert codes("megatron", given, level="settings") == ["MLM122", "MLM131", "MLM517"]
    assert {"MLM102", "MLM517"} <= set(codes("megatron", given))


# What is not stated ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: 1 % x,
        lambda x: x > 1,
        lambda x: x == 1,
        lambda x: not x,
        lambda x: x.heads,
        lambda x: x[0],
        lambda x: list(x),
        lambda x: 2 in x,
        lambda x: -x,
        lambda x: len(x),
        lambda x: x | True,
        lambda x: True & x,
        lambda x: int(x),
    ],
)
def test_whatever_is_done_with_what_is_not_stated_is_undecided(use):
    with pytest.raises(NotStatedError):
        use(UNKNOWN)
    assert repr(UNKNOWN) == "UNKNOWN"


def test_degrees_that_make_no_layout_can_be_judged():
    given = Case.of_run({}, layout={"n_devices": 64, "tp": 3, "pp": 2, "cp": 1, "ep": 1})
    found = broken_rules("megatron", given)
    assert [one.rule.code for one in found] == ["MLM101", "MLM122"]
    assert found[0].text == (
        "degrees: tp 3 x pp 2 x cp 1 do not divide 64 devices;"
        " closest: degrees whose product divides the devices"
    )
    assert codes("megatron", Case.of_run(SIZES, layout={"tp": 0, "pp": 1, "cp": 1, "ep": 1})) == [
        "MLM100"
    ]


def test_a_run_without_a_model_is_judged_as_far_as_it_goes():
    layout = {
        "n_devices": 64,
        "tp": 1,
        "pp": 4,
        "cp": 1,
        "ep": 1,
        "etp": 1,
        "vpp": 1,
        "zero": 2,
        "schedule": "1f1b",
    }
    assert "DSP401" in codes("deepspeed", Case.of_run({}, layout=layout))
    whole = Case.of_run({}, layout=layout | {"tp": 16, "sp": False}, model=DENSE)
    assert "DSP105" in codes("deepspeed", whole)


def test_values_that_are_filled_in_later_or_of_an_odd_type_are_left_out():
    keys = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization.stage": "auto",
    }
    assert codes("deepspeed", case({}, keys)) == []
    assert codes("deepspeed", case({}, {"train_batch_size": [1]}), level="settings") == []
    assert "MLM125" not in codes("megatron", case({}, {**SIZES, "seq_length": UNKNOWN}))


def test_a_rule_whose_numbers_are_not_stated_keeps_its_title():
    found = broken_rules("megatron", Case.of_run(SIZES, layout={"schedule": "zb-h1"}))
    assert [(one.rule.code, one.text) for one in found] == [("MLM202", "zero-bubble schedule")]


# Some rules by hand ----------------------------------------------------------------------------


def test_refusals_of_one_plan():
    assert refusals("megatron", PLAIN, DENSE, JOB) == ()
    assert refusals("megatron", replace(PLAIN, tp=2, dp=32), EXPERTS, JOB) == (
        "experts with tp 2: Megatron-LM trains them with sequence parallelism only;"
        " closest: sp on",
    )


@pytest.mark.parametrize(
    ("framework", "schedule", "wanted"),
    [
        ("default", "1f1b", True),
        ("default", "gpipe", False),
        ("default", "zb-v", False),
        ("torchtitan", "zb-v", True),
        ("torchtitan", "dualpipe-v", True),
        ("torchtitan", "zb-h1", False),
        ("torchtitan", "gpipe", True),
        ("bridge", "interleaved", True),
        ("bridge", "dualpipe", False),
        ("fsdp2", "none", True),
        ("fsdp2", "1f1b", False),
        ("deepspeed", "1f1b", True),
    ],
)
def test_which_schedules_a_framework_has(framework, schedule, wanted):
    assert schedule_runs(framework, schedule) == wanted


def test_a_group_of_micro_batches_of_its_own_is_heard():
    # 13 micro-batches in groups of 8 leave 5, enough for 4 stages; without groups 13 % 4 = 1.
    given = {"pp": 4, "dp": 16, "vpp": 2, "n_micro": 13}
    assert "MLM203" in codes("megatron", case(given))
    assert "MLM203" not in codes(
        "megatron", case(given, {"microbatch_group_size_per_vp_stage": 8})
    )


@pytest.mark.parametrize("latent", [False, True])
def test_the_parser_divides_the_hidden_size_by_the_heads_of_latent_attention_too(latent):
    given = case({}, {**SIZES, "num_attention_heads": 34, "multi_latent_attention": latent})
    assert "MLM124" in codes("megatron", given)


@pytest.mark.parametrize(
    ("every", "fault"),
    [
        (8, ""),
        (5, "5 does not divide 32 layers"),
        ([0, 0, 0, 1] * 8, ""),
        ([0, 0, 0, 1] * 7, "a pattern of 28 layers, the model has 32"),
    ],
)
def test_layers_without_rotary_positions(every, fault):
    given = case({"env": QUEUE}, {**SIZES, "no_rope_freq": every})
    found = [x.reason for x in broken_rules("megatron", given) if x.rule.code == "MLM142"]
    assert fault in found[0] if fault else not found


@pytest.mark.parametrize(
    ("flags", "fault", "closest"),
    [
        ({"squared_relu": True}, "with --squared-relu", "--no-bias-gelu-fusion"),
        ({"squared_relu": True, "add_bias_linear": False}, "", ""),
        ({"quick_geglu": True, "glu_linear_offset": 1.0}, "", ""),
        (
            {"swiglu": True, "glu_linear_offset": 1.0, "add_bias_linear": False},
            "with --glu-linear-offset",
            "--no-bias-swiglu-fusion",
        ),
        ({"swiglu": True, "bias_gelu_fusion": False}, "", ""),
        ({"swiglu": True, "squared_relu": True}, "excludes --squared-relu", "one of the two"),
        ({"swiglu": True, "quick_geglu": True}, "excludes --quick-geglu", "one of the two"),
        ({"use_te_activation_func": True}, "--use-te-activation-func", "--no-bias-gelu-fusion"),
    ],
)
def test_activations_and_the_bias_fused_with_them(flags, fault, closest):
    given = case({"env": QUEUE}, {**SIZES, **flags})
    found = [x for x in broken_rules("megatron", given) if x.rule.code == "MLM141"]
    assert len(found) == bool(fault)
    if fault:
        assert fault in found[0].reason
        assert found[0].closest == closest


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Et*3|(t*2|)*2,tL", ["Ettt", "tt", "tt", "tL"]),
        ("E|(t|t)*2|L", ["E", "t", "tt", "t", "L"]),
        ("Ett|t*3|mL", ["Ett", "ttt", "mL"]),
    ],
)
def test_layout_strings(text, stages):
    assert layout_stages(text) == stages


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Et*16|t*16", "end with its one L"),
        ("t*16|Et*16L", "begin with its one E"),
        ("Et*16|t*15L", "31 layers, not 32"),
        ("Et*16|t*8|t*8L", "3 stages do not divide by pp 2"),
        ("Et*16|x*16L", "unknown letters x"),
        ("Et*16|t*16mL", "1 layers of multi-token prediction, not 0"),
    ],
)
def test_faults_of_layout_strings(text, fault):
    given = case(
        {"pp": 2, "dp": 32, "env": QUEUE}, {**SIZES, "pipeline_model_parallel_layout": text}
    )
    (found,) = [x for x in broken_rules("megatron", given) if x.rule.code == "MLM219"]
    assert fault in found.reason


SPELLED = "parallelism.module_fqns_per_model_part"
PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"


@pytest.mark.parametrize(
    ("schedule", "fields", "fault"),
    [
        ("Interleaved1F1B", {}, ""),  # two a rank by default
        ("Interleaved1F1B", {PER_STAGE: 9}, "1 stages a rank, interleaved1f1b has 2 at least"),
        ("Interleaved1F1B", {SPELLED: [["layers.0"]] * 4}, ""),
        ("Interleaved1F1B", {SPELLED: [["layers.0"]] * 4, PER_STAGE: 9}, "has 2 at least"),
        ("Interleaved1F1B", {SPELLED: [["layers.0"]] * 6}, "6 stages do not divide by pp 4"),
        ("LoopedBFS", {SPELLED: [["layers.0"]] * 4}, ""),
        ("1F1B", {SPELLED: [["layers.0"]] * 8}, "2 stages a rank, 1f1b has one"),
        ("ZBVZeroBubble", {SPELLED: [["layers.0"]] * 4}, "zbvzerobubble has exactly two"),
        ("DualPipeV", {SPELLED: [["layers.0"]] * 8}, ""),
        ("1F1B", {PER_STAGE: 5}, "7 stages do not divide by pp 4"),
        (
            "1F1B",
            {"parallelism.pipeline_parallel_first_stage_less_layers": 12},
            "embedding or head weigh more than the 11 layers of a stage",
        ),
    ],
)
def test_stages_of_torchtitan(schedule, fields, fault):
    settings = {"parallelism.pipeline_parallel_schedule": schedule, **fields}
    given = case({"pp": 4, "dp": 16}, settings)  # 34 layers with embedding and head
    found = [x.reason for x in broken_rules("torchtitan", given) if x.rule.code == "TTN220"]
    assert fault in found[0] if fault else not found, found


@pytest.mark.parametrize(
    ("batch", "fault"),
    [
        ({"local": 2, "global": 128}, ""),
        ({"local": 2, "global": -1}, ""),
        ({"local": 2, "global": 100}, "global_batch_size 100 is no multiple of 2 x 64"),
        ({"local": 0}, "training.local_batch_size 0"),
        ({"local": 2, "global": 0}, "training.global_batch_size 0"),
    ],
)
def test_batches_of_torchtitan(batch, fault):
    settings = {f"training.{name}_batch_size": n for name, n in batch.items()}
    found = [
        x.reason for x in broken_rules("torchtitan", case({}, settings)) if x.rule.code == "TTN123"
    ]
    assert fault in found[0] if fault else not found, found


@pytest.mark.parametrize(
    ("name", "flavor", "refused"),
    [
        ("llama3", "8B_flex", False),
        ("llama3", "8B_varlen", True),
        ("llama3_ft", "8B", False),
        ("llama4", "17bx16e", False),
        ("llama4", "17bx16e_irope", True),
        ("deepseek_v3", "debugmodel", False),
        ("deepseek_v3", "debugmodel_flex_attn", True),
        ("deepseek_v3", "671B", True),
        ("gpt_oss", "20b", True),
        ("qwen3", "8B", False),
    ],
)
def test_which_models_of_torchtitan_0_2_split_the_context(name, flavor, refused):
    given = case({"cp": 2}, {"model.name": name, "model.flavor": flavor})
    assert ("TTN125" in codes("torchtitan", given, version="0.2.2")) is refused
    assert "TTN125" not in codes("torchtitan", given)


LOCAL = {"training.local_batch_size": 10, "parallelism.pipeline_parallel_microbatch_size": 2}


@pytest.mark.parametrize(
    ("fields", "settings", "code"),
    [
        # A step has 20 micro-batches, of which the pipeline runs 5 at a time.
        ({"pp": 2, "dp": 32, "schedule": "interleaved"}, LOCAL, "TTN204"),
        ({"pp": 2, "dp": 32, "schedule": "interleaved"}, {}, ""),
        ({"pp": 8, "dp": 8, "schedule": "1f1b"}, LOCAL, "TTN203"),
        ({"pp": 8, "dp": 8, "schedule": "1f1b"}, {}, ""),
        ({"pp": 4, "dp": 16, "schedule": "dualpipe-v"}, LOCAL, "TTN205"),
        ({"pp": 4, "dp": 16, "schedule": "dualpipe-v"}, {}, ""),
        (
            {"pp": 2, "dp": 32, "schedule": "interleaved"},
            LOCAL | {"parallelism.pipeline_parallel_schedule": "LoopedBFS"},
            "",
        ),
    ],
)
def test_accumulation_repeats_the_pipeline_over_a_local_batch(fields, settings, code):
    given = case({**fields, "n_micro": 20, "n_devices": 64}, settings)
    found = set(codes("torchtitan", given)) & {"TTN203", "TTN204", "TTN205"}
    assert found == ({code} if code else set())


@pytest.mark.parametrize(
    ("ep", "settings", "wanted"),
    [
        (1, {}, True),
        (2, {}, True),  # plans of experts have AutoEP, whatever their ep
        (1, {"expert_parallel.enabled": True}, True),
        (1, {"zero_optimization.stage": 3}, False),  # a run that leaves the experts as they are
    ],
)
def test_auto_ep_in_zero_3_has_no_ulysses(ep, settings, wanted):
    fields = {"cp": 2, "dp": 32, "cp_comm": "a2a", "zero": 3, "ep": ep, "model": EXPERTS}
    assert ("DSP307" in codes("deepspeed", case(fields, settings))) is wanted


@pytest.mark.parametrize(
    ("keys", "fields", "fault"),
    [
        (
            {
                "train_batch_size": 128,
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": 2,
            },
            {},
            "",
        ),
        (
            {
                "train_batch_size": 128,
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": 2,
            },
            {"tp": 2},
            "",
        ),  # 1 x 2 x 64: DeepSpeed counts the ranks of a tensor-parallel group too
        (
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": 2,
            },
            {"tp": 2},
            "not the 32 replicas",
        ),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, {"pp": 4}, ""),
        ({"train_batch_size": 96, "train_micro_batch_size_per_gpu": 1}, {}, "rounded down"),
        ({"train_batch_size": 96}, {}, "rounded down"),
        ({"train_batch_size": 128, "gradient_accumulation_steps": 2}, {}, ""),
        ({"train_micro_batch_size_per_gpu": 3}, {}, ""),
        ({"gradient_accumulation_steps": 2}, {}, "is needed"),
        (
            {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 0},
            {},
            "gradient_accumulation_steps 0",
        ),
        ({"train_micro_batch_size_per_gpu": 0}, {}, "train_micro_batch_size_per_gpu 0"),
        ({"train_batch_size": 0, "gradient_accumulation_steps": 1}, {}, "train_batch_size 0"),
        (
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": -1,
                "gradient_accumulation_steps": -1,
            },
            {},
            "_gpu -1; gradient_accumulation_steps -1",
        ),
        ({"train_batch_size": 32}, {}, "0 x 1 x 64 ranks"),  # rounded down to nothing
    ],
)
def test_batch_sizes_of_deepspeed(keys, fields, fault):
    found = [x.reason for x in broken_rules("deepspeed", case(fields, keys), level="settings")]
    assert fault in found[0] if fault else not found, found
