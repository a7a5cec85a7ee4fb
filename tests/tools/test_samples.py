"""Plans and variations drawn for the frameworks: the same every time, legal, on target."""

from collections import Counter
from random import Random

import pytest

from planner.frameworks.emit import why_not
from searches.frameworks.table import rules_by_code
from tools.samples.draw import draw_plans, shares
from tools.samples.megatron_line import MegatronLine
from tools.samples.vary import KINDS, vary
from tools.samples.vary_megatron import stages_of
from tools.samples.verdict import misread, verdict
from tools.samples.write import CHECKER_OF, files_of

RULES = rules_by_code()

DRAWN = dict.fromkeys(("megatron", "deepspeed", "torchtitan", "fsdp2", "bridge"), 40)
SEEDS = dict.fromkeys(DRAWN, 7) | {"torchtitan": 17}
"""Torchtitan's draws models of which it has job files."""


@pytest.fixture(scope="module")
def plans():
    return {
        name: [(drawn, files_of(drawn)) for drawn in draw_plans(name, n, seed=SEEDS[name])]
        for name, n in DRAWN.items()
    }


def of(checker, plans):
    """Return the plans that a checker has files of."""
    return [(d, f) for d, f in plans[CHECKER_OF[checker]] if KINDS[checker].has in f]


@pytest.mark.slow
@pytest.mark.parametrize("framework", DRAWN)
def test_the_same_seed_draws_the_same_plans(framework, plans):
    again = list(draw_plans(framework, 8, seed=SEEDS[framework]))
    assert [drawn.layout for drawn in again] == [d.layout for d, _ in plans[framework][:8]]
    assert [drawn.shape for drawn in again] == [d.shape for d, _ in plans[framework][:8]]
    other = [drawn.layout for drawn in draw_plans(framework, 8, seed=8)]
    assert other != [drawn.layout for drawn in again]


@pytest.mark.slow
@pytest.mark.parametrize("framework", DRAWN)
def test_drawn_plans_are_legal_and_as_many_as_asked_for(framework, plans):
    assert len(plans[framework]) == DRAWN[framework]
    for drawn, _ in plans[framework]:
        assert why_not(framework, drawn.layout, drawn.shape, drawn.job) is None


@pytest.mark.slow
def test_rare_kinds_of_plans_come_up():
    found = Counter(x for drawn in draw_plans("megatron", 160, seed=0) for x in drawn.features)
    wanted = (
        "tp",
        "sp",
        "pp",
        "vpp",
        "ep",
        "etp",
        "cp p2p",
        "cp all-gather",
        "cp a2a",
        "zero 0",
        "zero 1",
        "zero 2",
        "zero 3",
        "uneven",
        "recompute full",
        "recompute selective",
        "moe",
        "mla",
        "mtp",
        "gqa",
        "tied",
        "kv replicated",
        "fp16",
        "bf16-grads",
        "order tp-cp-ep-pp-dp",
        "hsdp",
        "offload",
        "overlap off",
        "1-8 devices",
        "9-64 devices",
        "65-1024 devices",
        "1025-16384 devices",
    )
    assert [name for name in wanted if not found[name]] == []


def test_shares_sum_to_what_is_asked_for():
    for n in (1, 7, 300, 10_000):
        assert sum(shares(n).values()) == n


@pytest.mark.slow
@pytest.mark.parametrize("checker", KINDS)
def test_check_reads_legal_files_as_the_plan_and_refuses_nothing(checker, plans):
    seen = 0
    for drawn, files in of(checker, plans):
        found = verdict(checker, files, drawn)
        assert (found.refused, found.error) == ((), ""), drawn.name
        assert misread(found, drawn) == [], drawn.name
        seen += 1
    assert seen > 0


SELDOM = {
    "megatron": {
        "MLM111|MLM422",
        "MLM216",
        "MLM214",
        "MLM107",
        "MLM522",
        "MLM204",
        "MLM425",
        "MLM326",
        "MLM516",
    },
    "deepspeed": {"DSP412", "DSP413", "DSP401"},
    "torchtitan": {"TTN125", "TTN302"},
    "torchtitan-toml": {
        "TTN102",
        "TTN103",
        "TTN104",
        "TTN122",
        "TTN202",
        "TTN222",
        "TTN302",
        "TTN303",
        "TTN124",
        "TTN204",
        "TTN105",
        "TTN123",
        "TTN203",
        "TTN220",
        "TTN221",
        "TTN125",
    },
    "accelerate": set(),
}
"""Rules that none of a few plans may be able to break."""


@pytest.mark.slow
def test_a_job_file_is_asked_about_on_the_devices_that_its_degrees_make(plans):
    kind = KINDS["torchtitan-toml"]
    drawn, files = of("torchtitan-toml", plans)[0]
    changed = kind.read(files, drawn)
    n_devices = drawn.layout.n_devices
    assert kind.devices(changed, drawn) == n_devices
    changed.put("tensor_parallel_degree", 2 * changed.tp)
    assert kind.devices(changed, drawn) == 2 * n_devices
    found = verdict("torchtitan-toml", kind.write(changed), drawn, n_devices)
    assert found.layout["n_devices"] == 2 * n_devices
    changed.put("data_parallel_shard_degree", -1)
    assert kind.devices(changed, drawn) == n_devices


@pytest.mark.slow
@pytest.mark.parametrize("checker", KINDS)
def test_a_change_breaks_the_rule_that_it_names(checker, plans):
    kind = KINDS[checker]
    missed = []
    for code, title, apply in kind.breaks:
        if not code:
            continue
        for drawn, files in of(checker, plans):
            changed = kind.read(files, drawn)
            if not apply(changed, Random(title)):
                continue
            found = verdict(checker, kind.write(changed), drawn, kind.devices(changed, drawn))
            named = {rule for rule, _ in found.refused}
            assert named & set(code.split("|")), (title, drawn.name, named, found.error)
            break
        else:
            missed.append(code)
    assert set(missed) <= SELDOM[checker]


def test_every_rule_of_megatron_that_its_code_enforces_is_broken_by_some_change():
    # What the checker cannot see, or no change of one thing reaches.
    unseen = {
        "MLM100": "a degree of 0 or less: nudges reach it",
        "MLM143": "the training loop refuses, not the parser",
        "MLM144": "the tokenizer refuses",
        "MLM145": "the writer of wandb refuses",
        "MLM104": "releases before 0.16",
        "MLM118": "values that an older release lacks",
        "MLM505": "the same condition by the plan's numbers",
        "MLM506": "the same condition by the plan's numbers",
        "MLM507": "the same condition by the plan's numbers",
        "MLM508": "the same condition by the plan's numbers",
        "MLM427": "a choice of plans alone, which no release has",
        "MLM428": "a flag that no release has yet",
        "MLM429": "releases before 0.18",
        "MLM430": "releases before 0.18",
        "MLM431": "releases before 0.18",
        "MLM132": "releases before 0.13",
        "MLM307": "the same conditions by the model's sizes",
        "MLM502": "words of --fp8-recipe",
        "MLM504": "the same condition by the plan's precision, MLM512 by the flags",
        "MLM310": "no model with biases and experts is drawn",
        "MLM311": "the same condition by the plan's precision, MLM327 by the flags",
        "MLM409": "no graphs of a model with dropout are drawn",
        "MLM503": "Transformer Engine's kernels",
        "MLM329": "no such accelerator is drawn",
        "MLM133": "its schedule has a format of its own",
        "MLM414": "release 0.20",
        "MLM423": "in the adapter of Megatron-FSDP",
        "MLM424": "in the adapter of Megatron-FSDP",
        "MLM420": "legacy checkpoints are not written",
        "MLM119": "values of another kind",
        "MLM702": "releases before 0.19",
        "MLM711": "releases before 0.18",
        "MLM712": "releases before 0.19",
        "MLM713": "no plan of a hybrid model recomputes it, and drawn lines are of plans",
        "MLM708": "the first step refuses, not the parser",
        "KIND-MEGATRON": "no flags say such a model",
        "DEVICE-MEGATRON": "no such accelerator is drawn",
    }
    broken = {code for codes, _, _ in KINDS["megatron"].breaks for code in codes.split("|")}
    enforced = {
        rule.code
        for rule in RULES.values()
        if rule.framework == "megatron" and rule.when != "planner"
    }
    assert enforced - broken - set(unseen) == set()
    assert broken <= enforced


@pytest.mark.slow
@pytest.mark.parametrize("checker", KINDS)
def test_variations_are_the_same_every_time(checker, plans):
    some = of(checker, plans)[:6]
    first = [vary(checker, d, f, i, Random(i)) for i, (d, f) in enumerate(some)]
    again = [vary(checker, d, f, i, Random(i)) for i, (d, f) in enumerate(some)]
    assert first == again
    assert all(
        one.files != {k: files[k] for k in one.files}
        for one, (_, files) in zip(first, some, strict=True)
    )


@pytest.mark.slow
def test_a_megatron_line_is_written_back_as_it_was_read(plans):
    for _, files in plans["megatron"]:
        line = MegatronLine(files["megatron.sh"])
        again = MegatronLine(str(line))
        assert again.options == line.options
        assert (again.world, again.queue) == (line.world, line.queue)


@pytest.mark.slow
def test_a_megatron_line_is_changed_in_one_place(plans):
    line = MegatronLine(plans["megatron"][0][1]["megatron.sh"])
    before = list(line.options)
    line.put("--micro-batch-size", 77)
    assert [x for x in line.options if x not in before] == [["--micro-batch-size", "77"]]
    line.drop("--micro-batch-size")
    assert not line.has("--micro-batch-size")
    assert len(line.options) == len(before) - 1
    line.put_launcher("nnodes", 3)
    assert line.world == 3 * line.launcher("nproc-per-node")
    line.put_queue("8")
    assert MegatronLine(str(line)).queue == "8"


def test_stages_of_a_layout_string():
    assert stages_of("Et*7|(t*8|)*3t*7L") == 5
    assert stages_of("EtL") == 1
    assert stages_of("Et|(t|)*14tmL") == 16
