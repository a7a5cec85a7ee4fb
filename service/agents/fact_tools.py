"""Tools that look something up: the catalogue, rules, calculators, what a file describes."""

from typing import Any

from planner.errors import UsageError
from planner.learn.fields import Input
from planner.specs.yaml.document import close_names
from service.agents import arguments as args
from service.agents import short_answers as short
from service.agents.tool import Answered, Data, Desk


def catalog_tool(arguments: args.CatalogArguments, desk: Desk) -> Answered:
    """Return the names of all parts, or the figures of one."""
    from planner.render.catalog import catalog_document, sheet_document, sheet_of
    from planner.render.terminal import terminal_text

    data = desk.ask("catalogue", {"name": arguments.name})
    kinds = ("accelerators", "links", "platforms")
    names = {kind: [part["name"] for part in data[kind]] for kind in kinds}
    part, sources = None, {}
    if arguments.name:
        part = dict(next(part for kind in kinds for part in data[kind]))
        sources = {figure: x["source"] for figure, x in part.pop("provenance", {}).items()}
        parts = sheet_document(sheet_of(arguments.name))
    else:
        parts = catalog_document()
    answer = short.CatalogAnswer(names=names, part=part, sources=sources)
    text = terminal_text(parts)
    if arguments.details == "short":
        text = text.partition("\n  sources:")[0].rstrip() + "\n"
    return Answered(text, answer, data)


def rule_tool(arguments: args.RuleArguments, desk: Desk) -> Answered:
    """Return one rule in full, or codes and titles."""
    from planner.cli.commands.plans import rule_text, rules_list

    data = desk.ask("rules", {"code": arguments.code})
    rules = data["rules"]
    if arguments.code:
        return Answered(rule_text(rules[0]), short.RuleAnswer(rules=rules), data)
    word = arguments.find.lower()
    rules = [x for x in rules if word in x["title"].lower()]
    if not rules:
        raise UsageError(f"no rule has {arguments.find!r} in its title", "another word", "find")
    named = short.picked(rules, "code", "title", "framework")
    return Answered(rules_list(rules), short.RuleAnswer(rules=named), data)


def learn_tool(arguments: args.LearnArguments, desk: Desk) -> Answered:
    """Return what a calculator says, or which there are."""
    from planner.learn import calculators
    from planner.learn.text import calculator_list, result_text

    by_name = calculators()
    if not arguments.name:
        listed = [
            {"name": x.name, "question": x.question, "inputs": list(x.specs)}
            for x in by_name.values()
        ]
        return Answered(
            calculator_list(by_name), _learnt({"calculators": listed}), {"calculators": listed}
        )
    if arguments.name not in by_name:
        near = close_names(arguments.name, list(by_name))
        fix = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(by_name)}"
        message = f"no calculator called {arguments.name!r}"
        raise UsageError(message, fix, "name", "unknown-name")
    one = by_name[arguments.name]
    texts = {name: _text(value, one.specs.get(name)) for name, value in arguments.inputs.items()}
    data = one.to_json(texts)
    text = result_text(one, texts) if arguments.details == "full" else _headline(data)
    return Answered(text, _learnt(data), data)


def _headline(data: Data) -> str:
    """Return a calculator's answer without its formulas: the headline, and a line a number."""
    numbers = "".join(f"  {x['title']}: {x['text']}\n" for x in data["numbers"])
    return f"{data['title']}: {data['headline']}\n{numbers}"


def _text(value: Any, spec: Input | None) -> str:
    """Return an input as the command line writes it; a number is in base units."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and spec is not None and spec.kind != "choice":
        return f"{value / spec.factor:.17g}"
    return str(value)


def _learnt(data: Data) -> short.LearnAnswer:
    numbers = data.get("numbers", [])
    return short.LearnAnswer(
        calculators=data.get("calculators", []),
        name=data.get("calculator", ""),
        headline=data.get("headline", ""),
        inputs={name: x["value"] for name, x in data.get("inputs", {}).items()},
        numbers={x["key"]: x["value"] for x in numbers},
        formulas={x["key"]: x["formula"] for x in numbers},
    )


def check_spec_tool(arguments: args.DescribeArguments, desk: Desk) -> Answered:
    """Return what a model or a cluster file describes."""
    data = desk.ask("check-spec", {"document": desk.document(arguments.document, "model")})
    total, active = _parameters(data)
    answer = short.DescribeAnswer(
        kind=data["kind"],
        summary=data["summary"],
        parameters=total,
        active_parameters=active,
        document=data["document"],
        notes=data["notes"],
    )
    return Answered(data["summary"].rstrip("\n") + "\n", answer, data)


def _parameters(data: Data) -> tuple[int | None, int | None]:
    """Return all parameters of a model, and those that a token meets; None for a cluster."""
    from planner.specs.loader import model_from_dict
    from planner.specs.summary import parameter_counts

    if data["kind"] != "model":
        return None, None
    return parameter_counts(model_from_dict(data["document"]))
