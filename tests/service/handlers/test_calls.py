"""Calls of the service: what the command line and Python answer, from contents alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner
from hardware.catalogue import load_catalogue
from planner.specs.examples import example_content
from service.handlers import calls
from service.handlers.calls import CALLS, call, dumps, read_request
from service.handlers.limits import RequestLimits
from service.handlers.problems import Refusal
from service.handlers.requests import request_id
from service.handlers.running_call import RunningCall
from tests.planner.command import run_here

JOB = {"model": "llama3-8b", "cluster": "h100-x8"}
PINS = {"tp": 2, "recompute": "none", "sp": True}
SCRIPT = """
GPUS_PER_NODE=8
torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \\
  --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm \\
  --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights \\
  --bf16 --use-distributed-optimizer --tensor-model-parallel-size 2 --sequence-parallel \\
  --micro-batch-size 1 --global-batch-size 128 --attention-dropout 0 --hidden-dropout 0 \\
  --vocab-size 128256 --mock-data --tokenizer-type NullTokenizer --train-iters 100 \\
  --eval-interval 100
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calls")


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> dict[str, Any]:
    found = call("evaluate", {**JOB, "pins": PINS})
    (folder / "result.json").write_text(dumps(found))
    return found


def printed(*words: str) -> str:
    done = run_here(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(name: str, body: Any, settings: RequestLimits = RequestLimits()) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call(name, body, RunningCall(settings))
    json.dumps(caught.value.to_json(), allow_nan=False)
    assert caught.value.detail
    return caught.value


def test_solve_is_that_of_the_command_line_and_of_python() -> None:
    body = {
        **JOB,
        "only": {"tp": [2, 4]},
        "max": {"pp": 2},
        "pins": {"zero": 1},
        "top": 2,
        "set": {"training.global_batch": 64},
        "framework": "megatron",
    }
    found = call("solve", json.dumps(body))
    words = ["--only", "tp=2,4", "--max", "pp=2", "--pin", "zero=1", "--top", "2"]
    words += ["--set", "training.global_batch=64", "--framework", "megatron", "--format", "json"]
    assert dumps(found) == printed("solve", *JOB.values(), *words)
    same = planner.solve(
        **JOB,
        only={"tp": [2, 4]},
        at_most={"pp": 2},
        pins={"zero": 1},
        top=2,
        overrides=(("training.global_batch", 64),),
        framework="megatron",
    )
    assert dumps(found) == same.dumps()
    CALLS["solve"].answer.model_validate(found)


def test_evaluate_is_that_of_the_command_line(evaluated: dict[str, Any]) -> None:
    words = ["--pin", "tp=2,recompute=none,sp=true", "--format", "json"]
    assert dumps(evaluated) == printed("evaluate", *JOB.values(), *words)


def test_examples_texts_and_mappings_give_the_same_plan(evaluated: dict[str, Any]) -> None:
    texts = {
        kind: {"text": str(example_content(kind, name).content), "name": f"{name}.yaml"}
        for kind, name in JOB.items()
    }
    inputs = evaluated["inputs"]
    for given in (texts, {"model": inputs["model"], "cluster": inputs["cluster"]}):
        found = call("evaluate", {**given, "pins": PINS})
        assert found["plans"] == evaluated["plans"]
        assert found["result_id"] == evaluated["result_id"]


@pytest.mark.parametrize(
    ("words", "n_nodes", "per_node"),
    [("64xh100", 8, 8), ("gb200:256", 64, 4), ("2 nodes of p5.48xlarge", 2, 8)],
)
def test_a_cluster_may_be_said_in_words(words: str, n_nodes: int, per_node: int) -> None:
    read = call("check-spec", json.dumps({"document": words}).encode())
    pool = read["document"]["pools"][0]
    assert (read["kind"], pool["nodes"], pool["accelerators_per_node"]) == (
        "cluster",
        n_nodes,
        per_node,
    )


def test_a_file_of_the_name_of_an_example_is_not_opened(evaluated: dict[str, Any]) -> None:
    Path("llama3-8b").write_text("model: {}")
    assert call("evaluate", {**JOB, "pins": PINS}) == evaluated
    Path("llama3-8b").unlink()


def test_a_hugging_face_config_is_read_as_the_command_line_reads_it() -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 4096,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "_name_or_path": "small",
    }
    Path("config.json").write_text(json.dumps(config))
    words = ["evaluate", "config.json", "h100-x8", "--pin", "tp=1", "--format", "json"]
    told = json.loads(printed(*words))
    for model in (config, json.dumps(config), {"text": json.dumps(config), "name": "config.json"}):
        found = call("evaluate", {"model": model, "cluster": "h100-x8", "pins": {"tp": 1}})
        assert found["plans"] == told["plans"]
        assert found["result_id"] == told["result_id"]


def test_an_inventory_is_read_as_the_command_line_reads_it() -> None:
    text = "NODELIST GRES CPUS MEMORY STATE\nn[1-2] gpu:h100:8 96 2000000 idle\n"
    Path("sinfo.txt").write_text(text)
    words = ["evaluate", "llama3-8b", "sinfo.txt", "--pin", "tp=2", "--format", "json"]
    given = {"text": text, "name": "sinfo.txt"}
    found = call("evaluate", {"model": "llama3-8b", "cluster": given, "pins": {"tp": 2}})
    assert dumps(found) == printed(*words)


@pytest.mark.parametrize("term", ["", "bubble"])
def test_explain_is_that_of_the_command_line(evaluated: dict[str, Any], term: str) -> None:
    found = call("explain", {"result": evaluated, "plan": 1, "term": term})
    words = ["--term", term] if term else []
    assert found["text"] == printed("explain", "result.json#1", *words)
    assert found["plan"] == evaluated["plans"][0]
    CALLS["explain"].answer.model_validate(found)


@pytest.mark.slow
def test_a_plan_of_a_request_is_that_of_its_result(evaluated: dict[str, Any]) -> None:
    asked = {"evaluate": {**JOB, "pins": PINS}, "plan": evaluated["plans"][0]["plan_id"][:6]}
    assert call("explain", asked) == call("explain", {"result": evaluated})


def test_emit_gives_the_files_of_the_command_line(evaluated: dict[str, Any]) -> None:
    targets = ["megatron", "fsdp2"]
    found = call(
        "emit",
        {"result": evaluated, "for": targets, "launcher": ["slurm"], "hosts": "n[1-4]"},
    )
    words = ["--for", ",".join(targets), "--launcher", "slurm", "--hosts", "n[1-4]"]
    printed("emit", "result.json#1", *words, "--out", "plans")
    written = {p.name: p.read_text() for p in Path("plans").glob("*/*")}
    assert found["files"] == written
    assert set(found["refused"]) == {"fsdp2"} & {n.removesuffix(".txt") for n in written}


@pytest.mark.slow
def test_place_and_diff_are_those_of_the_command_line(evaluated: dict[str, Any]) -> None:
    found = call("place", {"result": evaluated, "hosts": "n7"})
    told = printed("place", "result.json#1", "--hosts", "n7", "--format", "json")
    assert dumps(found, "place") == told
    other = call("evaluate", {**JOB, "pins": {"tp": 4}})
    Path("other.json").write_text(dumps(other))
    found = call("diff", {"a": {"result": evaluated}, "b": {"result": other}})
    told = printed("diff", "result.json#1", "other.json#1", "--format", "json")
    assert dumps(found) == told
    CALLS["diff"].answer.model_validate(found)


def test_replan_is_that_of_the_command_line() -> None:
    cluster = {"text": "pools: [{accelerator: h100, nodes: 2, hosts: 'n[1-2]'}]\n"}
    asked = {"model": "llama3-8b", "cluster": cluster, "pins": {"tp": 2, "recompute": "full"}}
    running = call("evaluate", asked)
    Path("two.json").write_text(dumps(running))
    found = call("replan", {"result": running, "lost": ["n2"]})
    told = printed("replan", "two.json#1", "--lost", "n2", "--format", "json", "--no-cache")
    assert dumps(found) == told
    CALLS["replan"].answer.model_validate(found)


def test_check_is_that_of_the_command_line() -> None:
    Path("run.sh").write_text(SCRIPT)
    body = {"run": {"text": SCRIPT, "name": "run.sh"}, "cluster": "h100-x8"}
    found = call("check", body)
    done = run_here("check", "run.sh", "h100-x8", "--format", "json")
    assert dumps(found) == done.stdout
    CALLS["check"].answer.model_validate(found)


def test_a_run_finds_only_the_files_that_the_request_holds() -> None:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
    }
    Path("ds.json").write_text(json.dumps(config))
    script = "deepspeed --num_gpus 8 train.py --deepspeed_config ds.json\n"
    body = {"run": script, "cluster": "h100-x8", "model": "llama3-8b"}
    assert "ds.json, which cannot be read" in refused("check", body).detail
    found = call("check", {**body, "files": {"ds.json": json.dumps(config)}})
    assert found["framework"] == "deepspeed"


def test_facts_have_their_sources_and_rules_their_reasons() -> None:
    every = call("catalogue", {})
    names = [part["name"] for part in every["accelerators"]]
    assert "h100-sxm-80gb" in names
    one = call("catalogue", {"name": "h100"})
    (part,) = one["accelerators"]
    assert part["memory_bytes"] == load_catalogue().accelerator("h100").memory_bytes
    assert part["provenance"]["memory_bytes"]["source"]
    rule = call("rules", {"code": "tp002"})["rules"][0]
    assert rule["title"] in printed("rule", "TP002")
    for name, answer in (("catalogue", every), ("rules", call("rules", {}))):
        CALLS[name].answer.model_validate(json.loads(dumps(answer)))


def test_check_spec_says_what_the_command_line_says() -> None:
    text = str(example_content("cluster", "h100-x8").content)
    Path("mine.yaml").write_text(text)
    found = call("check-spec", {"document": {"text": text, "name": "mine.yaml"}})
    assert found["kind"] == "cluster"
    assert found["summary"] == printed("check-spec", "mine.yaml").rstrip("\n")


@pytest.mark.slow
def test_a_sweep_has_the_rows_of_the_command_line() -> None:
    vary = {"training.global_batch": [64, 128]}
    search = {"pin": {"tp": 2}, "max": {"pp": 1, "cp": 1}}
    told: list[Any] = []
    found = call(
        "sweep",
        {"spec": {**JOB, "vary": vary, "search": search}},
        RunningCall(progress=told.append),
    )
    words = ["--vary", "training.global_batch=64,128", "--pin", "tp=2", "--max", "pp=1,cp=1"]
    printed(
        "sweep", *JOB.values(), *words, "--out", "out.jsonl", "--quiet", "--executor", "serial"
    )
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    rows = [line for line in lines if "point_id" in line]
    assert [row["best.plan_id"] for row in found["rows"]] == [r["best.plan_id"] for r in rows]
    assert found["complete"]
    assert [t["done"] for t in told] == [1, 2]
    assert told[-1]["best_step_time_s"] == min(row["best.step_time_s"] for row in rows)


@pytest.mark.slow
def test_scale_is_that_of_the_command_line() -> None:
    found = call("scale", {**JOB, "to": 16, "points": 2})
    words = ["--to", "16", "--points", "2", "--format", "json"]
    assert dumps(found) == printed("scale", *JOB.values(), *words)
    CALLS["scale"].answer.model_validate(found)


@pytest.mark.slow
def test_nothing_fits_is_an_answer() -> None:
    body = {
        **JOB,
        "pins": {"zero": 0, "tp": 1, "pp": 1, "cp": 1, "recompute": "none", "mbs": 8},
        "max": {"mbs": 8},
    }
    found = call("solve", body)
    assert not found["plans"]
    assert found["rejected"]
    CALLS["solve"].answer.model_validate(found)


def test_the_time_limit_gives_the_best_so_far_and_says_so() -> None:
    asked = iter([False] * 1)
    found = call("solve", JOB, RunningCall(stop=lambda: next(asked, True)))
    assert (found["complete"], found["stopped"]) == (False, "time limit")
    assert not calls.is_complete(found)


def test_the_id_is_that_of_the_content() -> None:
    def of(body: dict[str, Any], name: str = "solve") -> str:
        return read_request(name, body).request_id

    plain = of(dict(JOB))
    assert plain == of({"cluster": "h100-x8", "model": "llama3-8b", "top": None, "pins": {}})
    assert plain == of({**JOB, "time_limit_s": 5.0})
    assert plain != of({**JOB, "top": 3})
    assert plain != of({**JOB, "model": "llama3-70b"})
    assert plain != request_id("evaluate", read_request("solve", JOB).request)
    inner = {"solve": JOB}
    assert of(inner, "explain") == of({"solve": {**JOB, "time_limit_s": 1.0}}, "explain")


def test_the_size_is_known_before_the_work() -> None:
    small = calls.request_size(read_request("solve", JOB))
    large = calls.request_size(
        read_request("solve", {"model": "deepseek-v3", "cluster": "h800-x2048"})
    )
    assert (small.n_devices, small.large, large.n_devices) == (8, False, 2048)
    assert large.space > 50 * small.space
    pinned = {**JOB, "pins": {"tp": 2, "pp": 1, "cp": 1, "mbs": 1}}
    assert calls.request_size(read_request("solve", pinned)).space < small.space


def test_every_packaged_example_is_answered_at_once() -> None:
    from planner.specs.examples import example_names
    from service.handlers.calls import read_request, request_size
    from service.handlers.problems import Refusal

    n = 0
    for model in example_names("model"):
        for cluster in example_names("cluster"):
            try:
                size = request_size(read_request("solve", {"model": model, "cluster": cluster}))
            except Refusal:
                continue  # no such precision there
            assert not size.large, (model, cluster, size)
            n += 1
    assert n > 150


@pytest.mark.slow
def test_a_time_limit_reaches_the_search_of_a_check() -> None:
    from dataclasses import replace

    from service.handlers.calls import call
    from service.handlers.limits import DEFAULTS
    from service.handlers.running_call import RunningCall

    script = (
        "torchrun --nproc_per_node 8 --nnodes 64 pretrain_gpt.py --num-layers 80"
        " --hidden-size 8192"
        " --num-attention-heads 64 --seq-length 4096 --max-position-embeddings 4096"
        " --micro-batch-size 1 --global-batch-size 512 --tensor-model-parallel-size 8"
        " --pipeline-model-parallel-size 4 --bf16 --train-iters 10 --vocab-size 32000"
    )
    body = {"run": {"text": script, "name": "run.sh"}, "cluster": "h100-x512"}
    whole = call("check", body)
    assert whole["standing"]["rank"]
    assert "complete" not in whole
    cut = call("check", body, RunningCall(replace(DEFAULTS, solve_s=1e-6)))
    assert (cut["complete"], cut["stopped"]) == (False, "time limit")
    assert cut["standing"]["rank"] is None
    assert cut["plan"] == whole["plan"]


def test_searches_after_the_first_end_in_time_as_well() -> None:
    from planner.solver.infeasible.causes import closest_miss
    from planner.solver.infeasible.relaxations import Attempt, _relaxation
    from planner.solver.options import SolveCommand
    from planner.solver.problem import make_problem
    from planner.solver.request import SolveRequest
    from planner.solver.sources import read_inputs
    from searches.feasibility import StoppedError
    from searches.rules import Context
    from service.handlers.running_call import RunningCall, stop_of

    model, cluster = read_inputs("llama3-8b", "h100-x8", ())
    options = SolveRequest.of(top=1).options()
    problem = make_problem(model, cluster, options)
    context = Context(problem, options.search_options(), problem.pool.n_devices)
    assert closest_miss(context, lambda: False) == closest_miss(context)
    with pytest.raises(StoppedError):
        closest_miss(context, lambda: True)
    attempt = Attempt("", model, cluster, options, stop=lambda: True)
    with pytest.raises(StoppedError):
        _relaxation(attempt, SolveCommand("llama3-8b", "h100-x8"))
    over = RunningCall(end_s=0.0)
    assert stop_of(over)()  # of whichever search of the call, and whatever it asks for itself
    assert stop_of(over, 100.0)()


def test_a_sweep_is_priced_with_the_calibration_that_is_sent() -> None:
    from service.handlers.calls import call

    spec = {
        "model": "llama3-8b",
        "cluster": "h100-x8",
        "vary": {"training.global_batch": [64]},
        "search": {"pin": {"tp": 8, "pp": 1}},
    }
    slow = {"name": "slow", "values": {"generation.hopper.gemm_frac": 0.4}}
    usual, other = (call("sweep", {"spec": spec, **more}) for more in ({}, {"calibration": slow}))
    assert other["rows"][0]["best.step_time_s"] > usual["rows"][0]["best.step_time_s"]
    assert other["sweep"]["calibration"]["name"] == "slow"


@pytest.mark.parametrize(
    ("wrong", "detail", "fix"),
    [
        ({"model": 3}, "model: is neither a text nor a mapping", "the name of an example"),
        ({"cluster": ["h100"]}, "cluster: is neither a text nor a mapping", '"name": "FILE'),
        ({"top": "x"}, "top: is no whole number", "without quotes"),
        ({"only": {"tp": 3}}, "only.tp: is no list", "[1, 2]"),
        ({"pins": {"tp": [8]}}, "pins.tp: is no single value", "a number, a text"),
        ({"set": 3}, "set: is no mapping", "in braces"),
    ],
)
def test_a_field_of_a_wrong_type_says_what_to_write(
    wrong: dict[str, Any], detail: str, fix: str
) -> None:
    with pytest.raises(Refusal) as caught:
        read_request("solve", {"model": "llama3-8b", "cluster": "h100-x8", **wrong})
    assert (caught.value.status, caught.value.detail) == (422, detail)
    (fault,) = caught.value.errors
    assert fix in fault.fix


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(Refusal, match="cluster: is missing"):
        read_request("solve", {"model": "llama3-8b"})


HIDEN = {"model": {"hiden": 4}, "training": {}}
UNKNOWN_WIDTH = "model: {hiden: 4}\ntraining: {}\n"


def batch(job, cluster="h100-x8"):
    return {"jobs": {"good": "llama3-8b", "x": job}, "clusters": {"y": cluster}, "counts": [8]}


SWEEP = {**JOB, "vary": {"pools.0.nodes": [1, 2]}}


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("sweep", {"spec": {}}, ""),
        ("sweep", {"spec": {**SWEEP, "axes": 1}}, "axes"),
        ("sweep", {"spec": {**SWEEP, "model": "nope"}}, "model"),
        ("sweep", {"spec": {**SWEEP, "vary": {"pools.0.nodez": [1]}}}, "vary.pools.0.nodez"),
        ("sweep", {"spec": {**SWEEP, "where": "x <"}}, "where.0"),
        ("scale", {**JOB, "model": "nope"}, "model"),
        ("scale", {**JOB, "from": 100, "to": 1}, "from"),
        ("scale", {**JOB, "pins": {"tx": 1}}, "pins"),
        ("scale", {**JOB, "points": 9999}, "points"),
        ("batch-solve", batch("nope"), "jobs.x"),
        ("batch-solve", batch(HIDEN), "jobs.x.model.hiden"),
        (
            "batch-solve",
            batch({"text": UNKNOWN_WIDTH, "name": "m.yaml"}),
            "jobs.x.model.hiden",
        ),
        ("batch-solve", batch("llama3-70b", "8xh1000"), "clusters.y"),
        ("batch-solve", batch("llama3-70b", "mixed-h100-a100"), "clusters.y"),
        ("batch-solve", batch("llama3-70b", "9000000xh100"), "clusters.y.pools.0.nodes"),
    ],
)
def test_a_large_question_is_checked_before_it_is_accepted(name, body, field):
    asked = read_request(name, body)
    assert asked.large
    with pytest.raises(Refusal) as caught:
        calls.request_size(asked)
    assert caught.value.status == 422
    assert caught.value.errors[0].field == field


@pytest.mark.parametrize(
    ("name", "more", "field"),
    [
        ("solve", {"time_limit_s": -1.0}, "time_limit_s"),
        ("solve", {"step_limit_s": -1.0}, "step_limit_s"),
        ("solve", {"only": {"tp": []}}, "only"),
        ("solve", {"pins": {"tp": True}}, "pins"),
        ("solve", {"deadline": 0}, "deadline"),
        ("solve", {"deadline": -3}, "deadline"),
        ("solve", {"top": 0}, "top"),
        ("scale", {"from": -1}, "from"),
    ],
)
def test_what_the_command_line_refuses_is_refused(name, more, field):
    found = refused(name, {**JOB, **more})
    assert (found.status, found.errors[0].field) == (422, field)


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"lost": 1.5}, "lost", "is not a whole number, a text or a list"),
        ({"lost": ["a", 3]}, "lost.1", "is no text"),
        ({"solve": {**JOB, "model": 5}}, "solve.model", "is neither a text nor a mapping"),
        ({"solve": {**JOB, "pins": {"tp": [8]}}}, "solve.pins.tp", "is no single value"),
        ({"solve": JOB, "plan": {}}, "plan", "is not a text or a whole number"),
    ],
)
def test_a_fault_of_a_value_that_may_be_several_things_is_one(body, field, said):
    found = refused("replan", {"solve": JOB, **body})
    assert [(fault.field, fault.message) for fault in found.errors] == [(field, said)]


@pytest.mark.slow
def test_lost_hosts_are_a_list_or_a_text():
    cluster = yaml.safe_load(example_content("cluster", "h100-x512").content)
    cluster["pools"] = [{**cluster["pools"][0], "nodes": 4, "hosts": "n[001-004]"}]
    asked = {"solve": {"model": "llama3-8b", "cluster": cluster}}
    texts = [call("replan", {**asked, "lost": lost}) for lost in ("n[003,004]", ["n003", "n004"])]
    assert texts[0] == texts[1]
