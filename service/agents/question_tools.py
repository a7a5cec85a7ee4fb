"""Tools that judge a run, turn the question round, or ask at many sizes."""

from planner.render.document import text_of
from planner.solver.request import SolveRequest
from service.agents import arguments as args
from service.agents import short_answers as short
from service.agents.requests import call_of_command, job_request
from service.agents.tool import Answered, Data, Desk
from service.handlers.documents import content_of
from service.handlers.limits import RequestLimits
from service.handlers.request_contents import limited_inputs, search_of
from service.handlers.schemas import SolveBody

ROW_FIELDS = (
    "scale.size",
    "status",
    "n_devices",
    "seq_len",
    "scale.layers",
    "best.layout",
    "best.tp",
    "best.pp",
    "best.dp",
    "best.cp",
    "best.ep",
    "best.step_time_s",
    "best.tokens_per_s",
    "best.tokens_per_s_per_device",
    "best.mfu",
    "best.peak_bytes",
    "best.run_s",
    "best.cost_usd",
    "best.binding",
    "scale.speedup",
    "scale.efficiency",
)
"""Columns of a curve that a short answer has, with their dots as underscores."""


def check_tool(arguments: args.CheckArguments, desk: Desk) -> Answered:
    """Return the judgement of an existing run."""
    stated = {
        "cluster": desk.document(arguments.cluster, "cluster"),
        **desk.run(arguments.run, arguments.name, arguments.files),
        "with_text": True,
    }
    if arguments.model is not None:
        stated["model"] = desk.document(arguments.model, "model")
    for name in ("framework", "version", "env", "pins", "set", "pool"):
        if getattr(arguments, name):
            stated[name] = getattr(arguments, name)
    data = desk.ask("check", stated)
    text = data.pop("text")
    return Answered(text, _judged(data), data)


def _judged(data: Data) -> short.CheckAnswer:
    standing = data["standing"] or {}
    best = standing.get("best")
    names = ("change", "step_time_s", "gain_frac", "peak_bytes", "fits")
    return short.CheckAnswer(
        framework=data["framework"],
        release=data["release"],
        accepted=data["accepted"],
        fits=data["fits"],
        n_devices=data["n_devices"],
        enough_devices=data.get("enough_devices"),
        layout=data.get("layout") or {},
        refusals=short.picked(data["refusals"], "code", "reason", "closest", "when"),
        not_priced=data.get("not_priced") or "",
        plan=short.short_plan(data["plan"]) if data["plan"] else None,
        times_best=standing.get("ratio"),
        rank=standing.get("rank"),
        n_fit=standing.get("n_fit"),
        best=short.short_plan(best) if best else None,
        changes=[
            {**row, "write": change["words"]}
            for row, change in zip(
                short.picked(data["changes"], *names), data["changes"], strict=True
            )
        ],
        notes=data["notes"],
    )


def recommend_tool(arguments: args.RecommendArguments, desk: Desk) -> Answered:
    """Return the answer to an inverse question."""
    from planner.analyze.recommend.questions import recommend as recommended

    limits = desk.running.settings
    request = job_request(arguments, desk)
    for name in ("question", "most", "by", "step", "tolerance", "days", "price"):
        request.pop(name, None)
    if arguments.question == "hardware":
        request["cluster"] = _cards(arguments, limits)
        body = SolveBody.model_validate(request)
        model, cluster = content_of(body.model, "model", "model", limits), str(body.cluster)
    else:
        body = SolveBody.model_validate(request)
        limited_inputs(body, limits)
        model = content_of(body.model, "model", "model", limits)
        cluster = content_of(body.cluster, "cluster", "cluster", limits)  # type: ignore[assignment]
    search: SolveRequest = search_of(body, limits)
    result = recommended(
        arguments.question,
        model,
        cluster,
        search,
        most=arguments.most,
        by=arguments.by,
        step=arguments.step,
        tolerance_frac=arguments.tolerance,
        days=arguments.days,
        usd_per_device_hour=dict(arguments.price),
    )
    data = result.to_json()
    calls = []
    if data["command"]:
        calls = [call_of_command(data["command"], "the plans of this answer", arguments)]
    answer = short.RecommendAnswer(
        question=arguments.question,
        answer=data["answer"],
        scope=data["scope"],
        plan=short.short_plan(data["plan"]) if data["plan"] else None,
        notes=data["notes"],
        next=calls,
    )
    return Answered(text_of(result), answer, data)


def _cards(arguments: args.RecommendArguments, limits: RequestLimits) -> str:
    """Return the clusters in words, parts and examples that `hardware` compares; never files."""
    from planner.errors import UsageError
    from planner.specs.cluster.words import cluster_words, document_of_words
    from planner.specs.examples import example_names
    from planner.specs.loader import cluster_from_dict

    cards = arguments.cluster
    names = [name.strip() for name in cards.split(",")] if isinstance(cards, str) else []
    examples = ("any", *example_names("cluster"))
    said = {name: cluster_words(name) for name in names if name not in examples}
    for name, words in said.items():
        if words is None:
            continue
        pools = cluster_from_dict(document_of_words(words).data).cluster.pools
        n_devices = sum(pool.n_devices for pool in pools)
        if n_devices > limits.devices:
            message = f"hardware: {name} has {n_devices:,} devices"
            raise UsageError(message, f"at most {limits.devices:,}", "cluster", "too-large")
    if names and None not in said.values():
        return str(cards)
    raise UsageError(
        "hardware: the cluster must be a list of names",
        "4x4090,8xh100, a part alone, or any",
        "cluster",
        "bad-form",
    )


def scale_tool(arguments: args.ScaleArguments, desk: Desk) -> Answered:
    """Return the best plan at each size."""
    from planner.sweeps.scaling.curve import Scaling

    data = desk.ask("scale", job_request(arguments, desk))
    rows = [
        {name.replace(".", "_"): row[name] for name in ROW_FIELDS if name in row}
        for row in data["rows"]
    ]
    answer = short.ScaleAnswer(
        result_id=data["result_id"],
        over=data["over"],
        scaling=data["scaling"],
        marks=data["marks"],
        rows=rows,
        notes=data["notes"],
    )
    return Answered(text_of(Scaling.from_json(data)), answer, data)
