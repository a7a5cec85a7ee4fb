"""Priced = emitted = read: random plans, written for a framework and read back with `check`."""

import ast
from collections.abc import Iterator, Mapping
from itertools import islice

import pytest

from costmodels.axes import AXES
from costmodels.breakdown import break_down
from planner.analyze.check.check import check
from planner.analyze.check.report import Report
from planner.analyze.plan_files import as_dispatched
from planner.errors import SpecError
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.megatron.flags import parse_flags
from planner.frameworks.registry import framework
from planner.specs.inputs import Content
from searches.frameworks.registry import GPU_VENDORS, framework_names, framework_rules
from searches.mode_rules import AXES_OF_MODES
from tests.planner.frameworks.random_plans import RandomPlan, random_plans


def counts(few: int, many: int, thousands: int) -> tuple[object, ...]:
    """Return numbers of plans: by default, in slow tests, and before a release."""
    return (
        pytest.param(few, id="few"),
        pytest.param(many, id="many", marks=pytest.mark.slow),
        pytest.param(thousands, id="thousands", marks=pytest.mark.fit),
    )


SAY_THEIR_MODEL = ("megatron", "bridge", "primus", "mindspeed")
"""Frameworks whose files hold every size of the model; others are read with its file."""
VENDORS = {*GPU_VENDORS, "Huawei"}
OF_TORCH = tuple(x for x in framework_names() if VENDORS & set(framework_rules(x).vendors))
TOLERANCE = 1e-9


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    monkeypatch.setattr("planner.analyze.check.check.best_changes", lambda *_: ())


def written(name: str, plan: RandomPlan) -> dict[str, str]:
    """Return the files of a plan for a framework that runs it."""
    pool = plan.cluster.cluster.pools[0]
    request = EmitRequest(plan.layout, plan.model.shape, plan.model.job, pool)
    files = emit_plan(name, request)
    assert f"{name}.txt" not in files, files[f"{name}.txt"]
    return files


def read_back(name: str, plan: RandomPlan) -> Report:
    """Return what `check` says of the files of a plan."""
    files, start = written(name, plan), framework(name).start_command.split()[0]
    model = None if name in SAY_THEIR_MODEL else plan.model.document
    return check(
        Content(files[start], name=start), plan.cluster.document, model=model, files=files
    )


def reports(name: str, n: int) -> Iterator[tuple[RandomPlan, Report]]:
    """Yield plans of a framework and what is read of their files; skip one that is not read."""
    own = framework(name)
    if not own.start_command or not (own.run_formats or own.script_formats):
        pytest.skip(f"files of {name} are not read")
    for i, plan in enumerate(random_plans(name, n)):
        try:
            report = read_back(name, plan)
        except SpecError as error:
            if i == 0 and "is not read" in str(error):
                pytest.skip(f"files of {name} are not read")
            raise
        yield plan, report


def differences(plan: RandomPlan, report: Report) -> list[str]:
    """Return what is read otherwise than it was priced: axes, then prices."""
    if report.plan is None:
        return [f"not priced: {report.not_priced}"]
    priced, found = break_down(plan.problem, plan.layout), report.plan.breakdown
    shape, own = plan.model.shape, plan.problem.stack.dispatcher
    priced_as, read_as = (as_dispatched(x, shape, own) for x in (plan.layout, report.plan.layout))
    pairs = {name: (priced_as.value(name), read_as.value(name)) for name in AXES} | {
        name: (getattr(plan.layout, name), getattr(report.plan.layout, name))
        for name in ("n_devices", "gbs", "n_micro", "stage_layers")
    }
    result = [f"{name} {a!r}, read {b!r}" for name, (a, b) in pairs.items() if a != b]
    result += [f"refused: {one.text}" for one in report.refusals]
    result += [f"repaired: {text}" for text in report.repairs]
    for what, a, b in (
        ("step", priced.step_s, found.step_s),
        ("memory", priced.peak_bytes, found.peak_bytes),
    ):
        if abs(a - b) > TOLERANCE * a:
            result.append(f"{what} {a!r}, read {b!r}")
    return result


@pytest.mark.parametrize("n", counts(3, 30, 2000))
@pytest.mark.parametrize("name", OF_TORCH)
def test_a_plan_is_read_as_it_was_priced(name: str, n: int) -> None:
    for plan, report in reports(name, n):
        found = differences(plan, report)
        assert not found, f"{plan.text}: {found}"


FLEX = {"moe_token_dispatcher_type": "flex"}
SETTINGS: dict[tuple[str, str], dict[str, object]] = {
    ("dispatcher", "alltoall"): {"moe_token_dispatcher_type": "alltoall"},
    ("dispatcher", "allgather"): {"moe_token_dispatcher_type": "allgather"},
    ("dispatcher", "deepep"): FLEX | {"moe_flex_dispatcher_backend": "deepep"},
    ("dispatcher", "hybridep"): FLEX | {"moe_flex_dispatcher_backend": "hybridep"},
    ("ep_overlap", "off"): {"overlap_moe_expert_parallel_comm": None, "delay_wgrad_compute": None},
    ("ep_overlap", "1f1b"): {
        "overlap_moe_expert_parallel_comm": True,
        "delay_wgrad_compute": True,
    },
    ("cuda_graph", "none"): {"cuda_graph_impl": None, "cuda_graph_modules": None},
    ("cuda_graph", "layer"): {
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_modules": None,
    },
    ("cuda_graph", "full_iteration"): {
        "cuda_graph_impl": "full_iteration",
        "cuda_graph_modules": None,
    },
    ("offload_modules", "none"): {
        "fine_grained_activation_offloading": None,
        "offload_modules": None,
    },
}
"""What files say of each value, None: nothing; graphs of modules name them."""


def expected(plan: RandomPlan) -> dict[str, object]:
    """Return the settings that the files of a plan have to hold."""
    result: dict[str, object] = {}
    for name in AXES_OF_MODES:
        if name == "dispatcher" and not plan.model.shape.n_experts:
            continue
        value = str(plan.layout.value(name))
        modules: dict[str, object] = {
            "cuda_graph_impl": "transformer_engine",
            "cuda_graph_modules": value.split("+"),
        }
        if name == "offload_modules":
            modules = {
                "fine_grained_activation_offloading": True,
                "offload_modules": value.split("+"),
                "fine_grained_offloading_max_inflight_offloads": 1
                if plan.layout.value("cuda_graph") == "full_iteration"
                else None,
            }
        result |= SETTINGS.get((name, value), modules)
    return result


def said(name: str, files: Mapping[str, str]) -> Mapping[str, object]:
    """Return the settings that the files of a framework hold."""
    if name == "megatron":
        words = files["megatron.sh"].split("pretrain_gpt.py", 1)[1].replace("\\\n", " ").split()
        return parse_flags([word.strip("'\"") for word in words[1:]]).settings
    calls = [x for x in ast.walk(ast.parse(files["bridge_recipe.py"])) if isinstance(x, ast.Call)]
    words_of = (word for call in calls for word in call.keywords if word.arg)
    return {
        str(word.arg): ast.literal_eval(word.value)
        for word in words_of
        if isinstance(word.value, ast.Constant | ast.List)
        and all(isinstance(x, ast.Constant) for x in getattr(word.value, "elts", ()))
    }


@pytest.mark.parametrize("n", counts(4, 100, 1000))
@pytest.mark.parametrize("name", ["megatron", "bridge"])
def test_no_file_lacks_a_priced_switch(name: str, n: int) -> None:
    switched = (plan for plan in random_plans(name, 10 * n, 1) if plan.layout.switches)
    for plan in islice(switched, n):
        found = said(name, written(name, plan))
        lacking = {k: v for k, v in expected(plan).items() if (found.get(k) or None) != v}
        assert not lacking, f"{plan.text}: {lacking}"


def test_every_framework_with_switches_is_looked_at() -> None:
    assert {x for x in framework_names() if framework_rules(x).switches} == {
        "megatron",
        "bridge",
        "primus",
        "mindspeed",
        "automodel",  # its dispatcher: tests/planner/frameworks/automodel
    }
