"""All tools, and a call of one: arguments read, the answer made, or a refusal to act on."""

import json
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from costmodels.axes import AXES
from planner.errors import PlannerError
from planner.option_names import JOB_FIELDS
from planner.specs.yaml.document import close_names
from service.agents import arguments as args
from service.agents import fact_tools, plan_tools, question_tools
from service.agents import short_answers as short
from service.agents.tool import Data, Desk, Tool
from service.handlers.problems import Fault, Refusal, problem_of, refused
from service.handlers.requests import schema_problem

log = logging.getLogger("planner.agents")
TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "solve",
            "Rank the layouts of a training job",
            args.SolveArguments,
            short.SolveAnswer,
            plan_tools.solve_tool,
            "Finds the fastest way to split an LLM training job over a cluster: does it fit, which"
            " tp, pp, dp, cp, ep, ZeRO, micro-batch and recomputation, step time, memory, days and"
            " cost. Searches every legal layout and proves the best. Start here. What-if:"
            " call it again with `set`. Where nothing fits it says why and what would help.",
        ),
        Tool(
            "evaluate",
            "Price one layout",
            args.EvaluateArguments,
            short.SolveAnswer,
            plan_tools.evaluate_tool,
            "Prices the one layout that `pins` says, whether or not it fits: step time, memory by"
            " term, traffic. Axes that are not pinned are off. A layout that breaks a rule is"
            " refused with the code of the rule.",
        ),
        Tool(
            "explain",
            "Why a plan takes as long as it does",
            args.ExplainArguments,
            short.ExplainAnswer,
            plan_tools.explain_tool,
            "What binds a plan (compute, a link, waiting) and what each change would buy; with"
            " `term` one term of step or memory down to its formula, numbers and source.",
        ),
        Tool(
            "neighbours",
            "What single changes of a plan do",
            args.ChangesArguments,
            short.ChangesAnswer,
            plan_tools.neighbours_tool,
            "Every single change of a plan's layout, priced: faster or slower, fits or not; with"
            " details=full also those that a rule forbids.",
        ),
        Tool(
            "compare",
            "Why one plan beats another",
            args.CompareArguments,
            short.CompareAnswer,
            plan_tools.compare_tool,
            "Two plans term by term: what differs in layout, time, memory and traffic, and what"
            " would turn the order round.",
            "diff",
        ),
        Tool(
            "check",
            "Judge a launch script or configuration",
            args.CheckArguments,
            short.CheckAnswer,
            question_tools.check_tool,
            "Reads an existing launch script or configuration of a training framework: what the"
            " framework refuses and what comes closest, whether it fits, its step time, how far it"
            " is from the best plan, and the most valuable changes with the flags to write.",
        ),
        Tool(
            "recommend",
            "Inverse questions: how many, which card, how long, how large",
            args.RecommendArguments,
            short.RecommendAnswer,
            question_tools.recommend_tool,
            "The fewest devices on which a job fits, which GPU does it for what money, the longest"
            " sequence, largest micro-batch, model or adapter rank, the least bandwidth, or the"
            " layout decision step by step.",
        ),
        Tool(
            "scale",
            "The best plan at each size",
            args.ScaleArguments,
            short.ScaleAnswer,
            question_tools.scale_tool,
            "A full search at each number of devices (or sequence length, or depth): throughput,"
            " efficiency, and from where on more of them stop paying.",
        ),
        Tool(
            "replan",
            "Nodes were lost or gained",
            args.ReplanArguments,
            short.ReplanAnswer,
            plan_tools.replan_tool,
            "What to do with a running plan after nodes were lost or gained: keep or move, the new"
            " plan, what moving costs and from when on it pays.",
        ),
        Tool(
            "emit",
            "Write what runs a plan",
            args.EmitArguments,
            short.EmitAnswer,
            plan_tools.emit_tool,
            "The configuration and launch files of a plan for Megatron-LM, DeepSpeed, torchtitan,"
            " FSDP2 and tools that fine-tune, started by torchrun, Slurm or Kubernetes. Nothing is"
            " written to disk.",
        ),
        Tool(
            "place",
            "Which nodes hold which ranks",
            args.PlaceArguments,
            short.PlaceAnswer,
            plan_tools.place_tool,
            "Ranks of a plan on hosts, by pool where it uses several, and its process groups.",
        ),
        Tool(
            "trace",
            "One step of a plan in time",
            args.TraceArguments,
            short.TraceAnswer,
            plan_tools.trace_tool,
            "The timeline of a step for Perfetto; its text with details=full.",
        ),
        Tool(
            "catalog",
            "Figures of hardware",
            args.CatalogArguments,
            short.CatalogAnswer,
            fact_tools.catalog_tool,
            "Accelerators, links, servers and cloud machines: memory, bandwidth, peaks, each with"
            " its source.",
            "catalog show",
        ),
        Tool(
            "rule",
            "What a rule means and what lifts it",
            args.RuleArguments,
            short.RuleAnswer,
            fact_tools.rule_tool,
            "Explains a code such as TP002 or MLM212 that excluded a layout or a setting: what it"
            " forbids, why, what comes closest, and where the framework says so.",
        ),
        Tool(
            "learn",
            "Calculators",
            args.LearnArguments,
            short.LearnAnswer,
            fact_tools.learn_tool,
            "Closed-form answers to textbook questions without a cluster: bubble of a pipeline,"
            " ZeRO memory, activations of a layer, time of a collective, least bandwidth.",
        ),
        Tool(
            "check_spec",
            "What a model or cluster file describes",
            args.DescribeArguments,
            short.DescribeAnswer,
            fact_tools.check_spec_tool,
            "Parameters, sizes and devices of a model or cluster, and every field with its"
            " default filled in; faults by line.",
            "check-spec",
        ),
    )
}
"""By name, in the order in which an agent meets them."""
NEXT_TRIES: Mapping[str, str] = {
    "bad-specification": "mend the document at the field named, or name an example",
    "unknown-part": "catalog lists all names; or spell the part out in the cluster file",
    "path-or-url": "send what the file holds as text",
    "too-much-work": "pin or bound axes, name fewer devices",
    "bad-layout": "change the axis named; rule explains the code; solve finds what is legal",
    "not-expressible": "another framework: see runs_on of the plan",
}
"""What to do next by the code of a refusal."""


def call_tool(name: str, arguments: Mapping[str, Any], desk: Desk) -> tuple[str, Data]:
    """Return text and structured answer of a call; `Refusal` for all that is refused."""
    tool = TOOLS.get(name)
    if tool is None:
        near = close_names(name, list(TOOLS)) or list(TOOLS)
        message = f"no tool called {name[:80]!r}"
        raise refused("unknown-call", message, 404, [Fault(message, f"one of {', '.join(near)}")])
    try:
        read = tool.arguments.model_validate(dict(arguments))
    except ValidationError as error:
        problem = schema_problem(name, tool.arguments, error, arguments)  # type: ignore[arg-type]  # reads its fields alone
        raise _with_near_names(problem, tool, arguments) from None
    try:
        answered = tool.function(read, desk)
    except (Refusal, KeyboardInterrupt):
        raise
    except PlannerError as error:
        raise problem_of(error) from None
    except Exception as error:
        log.exception("a defect in a tool")
        fault = Fault(type(error).__name__, "please report it with the call")
        raise refused("defect", "planner could not answer this", 500, [fault]) from error
    return answered.text, answered.to_json(read)  # type: ignore[arg-type]  # every tool has details


def _with_near_names(problem: Refusal, tool: Tool, arguments: Mapping[str, Any]) -> Refusal:
    """Return a refusal of arguments with what is probably meant by those that are unknown."""
    named = {field.alias or key for key, field in tool.arguments.model_fields.items()}
    faults = []
    for fault in problem.errors:
        meant = ""
        if fault.field in arguments and fault.field not in named:
            meant = _meant(fault.field, arguments[fault.field], named)
        fix = f"{meant}; {fault.fix}" if meant else fault.fix
        faults.append(_with_choices(replace(fault, fix=fix), arguments))
    return Refusal(problem.status, problem.code, problem.title, problem.detail, errors=faults)


def _with_choices(fault: Fault, arguments: Mapping[str, Any]) -> Fault:
    """Return a fault that names what may stand in a field with that as what to change."""
    before, named, choices = fault.message.partition("Input should be ")
    if before or not named:
        return fault
    given: Any = arguments
    for key in fault.field.split("."):
        if isinstance(given, Mapping):
            given = given.get(key, "")
        elif isinstance(given, list) and key.isdecimal() and int(key) < len(given):
            given = given[int(key)]
    return replace(fault, message=f"{given!r:.80} cannot stand here", fix=choices)


def _meant(name: str, value: Any, named: Collection[str]) -> str:
    """Return the argument that an unknown one probably is; empty where none is near.

    >>> _meant("tp", 8, ["pins"]), _meant("seq_len", 4096, ["seq"])
    ('did you mean pins={"tp": 8}?', 'did you mean seq=4096?')
    """
    axis = name.lower()
    if axis in AXES and "pins" in named:
        return f"did you mean pins={json.dumps({axis: value}, default=str)}?"
    aliases = {path.rpartition(".")[2]: short_name for short_name, path in JOB_FIELDS.items()}
    near = [aliases[name]] if name in aliases else close_names(name, list(named), 1)
    if not near or near[0] not in named:
        return ""
    shown = f"={value}" if isinstance(value, int | float) else ""
    return f"did you mean {near[0]}{shown}?"


def refusal_json(refusal: Refusal, name: str, arguments: Mapping[str, Any]) -> Data:
    """Return a refusal as an agent acts on it: what was asked, what is wrong, what to change."""
    faults = refusal.errors or [Fault(refusal.detail)]
    problems = [
        {
            "field": fault.field,
            "wrong": _as_tools(fault.message.removeprefix(f"{fault.field}: ")),
            "change": _as_tools(fault.fix) or NEXT_TRIES.get(refusal.code, ""),
            "rule": fault.rule,
            "line": fault.line,
            "code": fault.code,
        }
        for fault in faults
    ]
    return {
        "refused": refusal.code,
        "asked": {"tool": name, "arguments": _shortened(dict(arguments))},
        "wrong": _as_tools(refusal.detail),
        "problems": [{k: v for k, v in x.items() if v or k == "wrong"} for x in problems],
        "next": _rule_calls(problems),
    }


def _as_tools(text: str) -> str:
    """Return a text with tools in the place of calls of the service.

    >>> _as_tools("GET /v1/catalogue; GET /v1/rules?code=TP002")
    'catalog without a name lists all; rule(code="TP002")'
    """
    text = re.sub(r"GET /v1/rules\?code=(\w+)", r'rule(code="\1")', text)
    text = text.replace("GET /v1/rules", "rule without a code lists all")
    text = text.replace("`planner catalog list` shows all", "catalog without a name lists all")
    return text.replace("GET /v1/catalogue", "catalog without a name lists all")


def _rule_calls(problems: list[Data]) -> list[Data]:
    """Return calls that explain the rules which a refusal names."""
    codes = dict.fromkeys(x["rule"] for x in problems if x["rule"])
    return [
        {"purpose": f"what {code} means", "tool": "rule", "arguments": {"code": code}}
        for code in codes
    ]


def refusal_text(data: Data) -> str:
    """Return a refusal in words."""
    lines = [f"Refused ({data['refused']}): {data['asked']['tool']}"]
    for problem in data["problems"]:
        field = f"{problem['field']}: " if problem.get("field") else ""
        lines.append(f"  wrong: {field}{problem['wrong']}")
        if problem.get("change"):
            lines.append(f"  change: {problem['change']}")
    return "\n".join(lines) + "\n"


MOST_ECHO_CHARS = 200


def _shortened(value: Any) -> Any:
    """Return arguments as a refusal repeats them: long texts cut."""
    if isinstance(value, str) and len(value) > MOST_ECHO_CHARS:
        return f"{value[:MOST_ECHO_CHARS]}... ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: _shortened(x) for key, x in list(value.items())[:40]}
    return [_shortened(x) for x in value[:40]] if isinstance(value, list) else value
