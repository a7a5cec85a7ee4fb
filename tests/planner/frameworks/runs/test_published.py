"""Configurations in the shapes of published ones are read and judged without a failure."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from planner.analyze.check.check import check
from planner.analyze.check.report import Report
from planner.frameworks.megatron.flags import parse_flags
from searches.frameworks.megatron import run_flags as megatron_run_flags
from searches.frameworks.registry import framework_rules
from tests.planner.frameworks.runs.published import DATA, H100_X64, entries, scripts
from tests.searches.instances import one_in

CASES = Path(__file__).parents[4] / "tools" / "checkers" / "megatron_cases.jsonl"
REFUSED_BY = {
    "world_div": "MLM101",
    "heads_tp": "MLM102",
    "layers_pp": "MLM210",
    "pp_layout_bad": "MLM219",
    "vpp_pp2_nooverlap": "MLM214",
    "vpp_mb_not_multiple": "MLM203",
    "gbs_not_div": "MLM112",
    "cp_seq": "MLM106",
    "cp_a2a_p2p_missing": "MLM128",
    "moe_ep_div": "MLM303",
    "moe_etp_div": "MLM305",
    "ep_no_moe": "MLM301",
    "overlap_pg_no_dist": "MLM410",
    "overlap_pg_no_gr": "MLM410",
    "tpcomm_no_sp": "MLM320",
    "recomp_full_nomethod": "MLM510",
    "recomp_sel_method": "MLM511",
    "recomp_badmod": "MLM512",
    "unknown_flag": "MLM120",
    "fp8_param_no_dist": "MLM515",
    "mfsdp_ckpt": "MLM413",
    "tp_no_cdmc": "MLM131",
    "distopt_inst_bad": "MLM422",
    "ep_a2a_overlap_pp_novpp": "MLM327",
    "mla_gqa": "MLM126",
    "moe_tp_no_sp": "MLM302",
    "cp_a2a_heads": "MLM107",
}
"""The rule that refuses each of the lines that Megatron-LM itself refuses."""


def cluster(n_devices: int, architecture: int) -> dict[str, Any]:
    per_node = 8 if n_devices % 8 == 0 else 4
    name = "h100-sxm-80gb" if architecture == 9 else "b200-180gb"
    pool = {"accelerator": name, "nodes": n_devices // per_node, "accelerators_per_node": per_node}
    return {"pools": [pool], "fabric": {}}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the search for the best plan, which other tests look at."""
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "case",
    one_in(16, [json.loads(line) for line in CASES.read_text().splitlines()]),
    ids=lambda c: c["id"],
)
def test_lines_that_megatron_itself_was_asked_about(case: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "flags.txt"
    file.write_text(case["flags"])
    devices = cluster(case["world_size"], case["gpu_arch"])
    report = check(file, devices, env=case["env"], version=framework_rules("megatron").release)
    refused, name = case["id"].split(":")
    # Its parser alone was asked; the training loop refuses later.
    codes = [broken.rule.code for broken in report.refusals if broken.rule.code not in LOOP]
    assert bool(codes) == (refused == "want1"), report.refusals
    assert codes[:1] == ([REFUSED_BY[name]] if name in REFUSED_BY else [])


LOOP = {rule.code for rule in megatron_run_flags.RULES}


def judged(
    text: str, suffix: str, tmp_path: Path, model: str | None = None, n_devices: int = 64
) -> Report:
    file = tmp_path / f"run{suffix}"
    file.write_text(text)
    blocks_of_32 = re.search(r"mxfp8|quantize\.linear\.mx", text)
    return check(file, cluster(n_devices, 10 if blocks_of_32 else 9), model=model)


def some_of(name: str) -> list[Any]:
    """Return the entries of a file, by name; nine of ten are slow tests."""
    return [
        pytest.param(x, id=x[0][:40], marks=[pytest.mark.slow] if i % 10 else [])
        for i, x in enumerate(entries(name))
    ]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("path", one_in(6, scripts()), ids=lambda p: p.name)
def test_launch_scripts(path: Path) -> None:
    report = check(path, H100_X64)
    assert report.plan is not None, report.not_priced
    codes = [broken.rule.code for broken in report.refusals]
    # Most are shortened, or older than release 0.16, which took 1000 by itself.
    unsaid = report.run.framework == "megatron" and "--eval-interval" not in path.read_text()
    assert codes == ["MLM143"] * unsaid
    assert report.plan.step_time_s > 0


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("entry", some_of("model_args.txt"))
def test_model_args(entry: tuple[str, str], tmp_path: Path) -> None:
    """As Megatron-LM itself judges them on as many devices."""
    name, text = entry
    n_devices = {"mixtral": 64, "deepseek": 128}.get(name.split()[0], 8)
    report = judged(text, ".yaml", tmp_path, n_devices=n_devices)
    assert report.plan is not None, report.not_priced
    codes = [broken.rule.code for broken in report.refusals]
    # Experts of 8 x 2 ranks do not fit the 8 ranks of a stage.
    assert codes == (["MLM305"] if name.startswith("mixtral") else [])


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("entry", some_of("deepspeed.txt"))
def test_deepspeed(entry: tuple[str, str], tmp_path: Path) -> None:
    name, text = entry
    report = judged(text, ".json", tmp_path, "llama3-8b")
    refused = {"CIFAR tutorial": "DSP123", "GPT-2 1.5B of the tutorial": "DSP125"}
    codes = [broken.rule.code for broken in report.refusals]
    assert codes[:1] == ([refused[name]] if name in refused else [])
    assert (report.plan is None) == (name == "tf32 without mixed precision")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("entry", some_of("torchtitan.txt"))
def test_torchtitan(entry: tuple[str, str], tmp_path: Path) -> None:
    name, text = entry
    report = judged(text, ".toml", tmp_path)
    assert report.plan is not None, report.not_priced
    assert report.release == ("0.1.0" if name == "keys of older releases" else "0.2.2")
    refused = {"deepseek v3 671b": ["TTN303"]}
    codes = [broken.rule.code for broken in report.refusals]
    assert codes == refused.get(name, [])


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("entry", some_of("accelerate.txt"))
def test_accelerate(entry: tuple[str, str], tmp_path: Path) -> None:
    name, text = entry
    report = judged(text, ".yaml", tmp_path, "llama3-8b")
    assert report.plan is not None, report.not_priced
    assert not report.refusals
    plugin = name.startswith("DeepSpeed")
    assert report.run.framework == ("deepspeed" if plugin else "fsdp2")


def test_about_thirty_of_each_framework() -> None:
    assert len(scripts()) + len(entries("model_args.txt")) >= 30
    for name in ("deepspeed.txt", "torchtitan.txt", "accelerate.txt"):
        assert len(entries(name)) >= 25


def test_no_flag_of_the_scripts_is_unknown() -> None:
    from planner.frameworks.runs.launch_script import read_launch

    for path in scripts():
        if "deepspeed" in path.name:
            continue
        found = read_launch(
            path.read_text(), path.name, None, lambda n: (DATA / "megatron" / n).read_text()
        )
        parsed = parse_flags(found.argv)
        assert (parsed.unknown, parsed.faults) == ((), ()), path.name
