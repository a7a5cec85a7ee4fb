"""Cards of what a plan is summed up with: step, rates, utilization, batch, devices, run."""

from dataclasses import dataclass

import numpy as np

from costmodels.documentation.terms import NETWORK_TERMS
from costmodels.layers.flops import model_flops_per_step, model_flops_per_token
from costmodels.layers.hardware_flops import hardware_flops_per_step, recomputed_parts
from costmodels.layers.kinds import added_kinds, kinds_of, present_kinds
from costmodels.layers.params import latent_params
from costmodels.layers.streams.connections import collapse_macs
from costmodels.parameters import active_params, total_params
from costmodels.problem import Problem
from costmodels.towers.latents import end_flops
from costmodels.towers.vision import vision_flops
from costmodels.tuning.model import model_adapter_params
from hardware.parts import Operations
from planner.render.plan_view.cards import Amount, Deck, Derivation, Label, Words
from planner.render.plan_view.opened.time import added_rows, kinds_text, with_records
from planner.render.plan_view.quantities import exact, quantity_text, total
from planner.render.plan_view.sources import calibration_words, compute_figures
from planner.solver.answer.result import Plan
from planner.solver.answer.utilization import hfu
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.intervals import interval_of, regime_words

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a list of facts."""

    name: str
    sentence: Words


def add_headline(
    deck: Deck,
    problem: Problem,
    plan: Plan,
    operations: Operations,
    calibration: Calibration,
) -> tuple[tuple[str, tuple[Fact, ...]], ...]:
    """Add the cards of the head of the view; its lists of facts, each with a title.

    The cards of time and memory terms are in the deck already.
    """
    return (
        ("Speed", _speed(deck, problem, plan, calibration)),
        ("Batch and work", _work(deck, problem, plan)),
        ("Memory", _memory(deck, problem, plan)),
        ("Run", _run(deck, problem, plan, operations)),
        ("Layout", _layout(deck, problem, plan)),
    )


def _speed(deck: Deck, problem: Problem, plan: Plan, calibration: Calibration) -> tuple[Fact, ...]:
    result, x, job = plan.breakdown, plan.layout, problem.job
    noun = problem.pool.accelerator.noun
    terms = [(name, value) for name, value in result.time_s.items() if value > 0.0]
    step = deck.add(
        "step-time",
        "step time",
        Amount(plan.step_time_s, "s"),
        Derivation(
            " + ".join(name for name, _ in terms),
            total(exact(value, "s") for _, value in terms),
            "costmodels.breakdown.break_down: the exact pipeline and the terms of its slowest"
            f" rank; constants of {calibration_words(calibration)}",
            inputs=(
                ("pipeline rank of the terms", str(result.critical_stage)),
                ("closed form, which ranks all plans", exact(result.closed_form_step_s, "s")),
            ),
        ),
    )
    low, high = interval_of(plan.interval_regime, calibration)
    regime = regime_words(plan.interval_regime, noun)
    source = (
        "planner.solver.calibration.intervals: quantiles of measured over predicted steps of"
        f" {regime}; {calibration_words(calibration)}"
    )
    p10, p90 = (
        deck.add(
            f"step-{name}",
            f"{percent} percentile of the step time",
            Amount(value, "s"),
            Derivation(
                f"step time × {name} of measured over predicted",
                f"{exact(plan.step_time_s, 's')} × {factor:g}",
                source,
            ),
        )
        for name, percent, value, factor in (
            ("p10", "10th", plan.step_time_p10_s, low),
            ("p90", "90th", plan.step_time_p90_s, high),
        )
    )
    batch = f"{job.global_batch:,} × {job.seq_len:,}"
    rate = deck.add(
        "tokens-per-s",
        "tokens per second",
        Amount(plan.tokens_per_s, "tokens/s", digits=5),
        Derivation(
            "sequences × their length / step time",
            f"{batch} / {exact(plan.step_time_s, 's')}",
            "planner.solver.solve.make_plan",
        ),
    )
    each = deck.add(
        "tokens-per-s-per-device",
        "tokens per second and device",
        Amount(plan.tokens_per_s_per_device, "tokens/s", digits=5),
        Derivation(
            "sequences × their length / (step time × devices)",
            f"{batch} / ({exact(plan.step_time_s, 's')} × {x.n_devices:,})",
            "planner.solver.solve.make_plan",
        ),
    )
    peak = problem.pool.accelerator.peak_flops_per_s[job.recipe.linear]
    flops = model_flops_per_step(problem.shape, job)
    mfu = deck.add(
        "mfu",
        "model FLOPs utilization (MFU)",
        Amount(plan.mfu, "%", text=f"{plan.mfu * 100:.1f} %"),
        Derivation(
            "F / (T N P): model FLOPs of a step over step time, devices and the dense peak of the"
            " matrix products",
            f"{exact(flops, 'FLOP')} / ({exact(plan.step_time_s, 's')} × {x.n_devices:,} ×"
            f" {exact(peak, 'FLOP/s')})",
            "Chowdhery et al. 2022 (PaLM), appendix B; F as Megatron-LM counts it, without"
            " recomputed work",
            inputs=compute_figures(problem),
        ),
    )
    utilization: Words = (mfu,)
    if plan.mfu_over_bf16 is not None:
        bf16 = problem.pool.accelerator.peak_flops_per_s["bf16"]
        over_bf16 = deck.add(
            "mfu-bf16",
            "MFU over the bf16 peak",
            Amount(plan.mfu_over_bf16, "%", text=f"{plan.mfu_over_bf16 * 100:.1f} %"),
            Derivation(
                "F / (T N P): as MFU, over the dense bf16 peak, which papers print whatever the"
                " precision",
                f"{exact(flops, 'FLOP')} / ({exact(plan.step_time_s, 's')} × {x.n_devices:,} ×"
                f" {exact(bf16, 'FLOP/s')})",
                "planner.solver.answer.result.Plan.mfu_bf16",
                inputs=compute_figures(problem),
            ),
        )
        utilization = (mfu, ", ", over_bf16, " of the ", Label("bf16"), " peak")
    hardware = _hfu(deck, problem, plan)
    idle = deck.add(
        "bubble-share",
        "idle share of the step",
        Amount(result.bubble_frac, "%", text=f"{result.bubble_frac * 100:.1f} %"),
        Derivation(
            "bubble / step time",
            f"{exact(result.time_s['bubble'], 's')} / {exact(result.step_s, 's')}",
            "costmodels.breakdown.Breakdown.bubble_frac",
        ),
    )
    waited = [result.time_s[name] for name in NETWORK_TERMS if result.time_s[name] > 0.0]
    waits = deck.add(
        "network-share",
        "share of the step that waits for the network",
        Amount(result.exposed_comm_frac, "%", text=f"{result.exposed_comm_frac * 100:.1f} %"),
        Derivation(
            " + ".join(NETWORK_TERMS) + ", over the step time",
            f"({total(exact(wait, 's') for wait in waited)}) / {exact(result.step_s, 's')}",
            "costmodels.breakdown.Breakdown.exposed_comm_frac",
        ),
    )
    return (
        Fact("Step time", (step, ", ", Label("80 %"), " interval ", p10, " to ", p90)),
        Fact("Interval", (Label("80 %"), f" prediction interval, from measured plans {regime}")),
        Fact("Throughput", (rate, ", ", each, f" per {noun.one}")),
        Fact("Model FLOPs utilization", utilization),
        Fact("Hardware FLOPs utilization", hardware),
        Fact("Waiting", (idle, " idle in the pipeline, ", waits, " for the network")),
    )


def _hfu(deck: Deck, problem: Problem, plan: Plan) -> Words:
    """Return the utilization that counts recomputed work, and what that is."""
    x, job, shape = plan.layout, problem.job, problem.shape
    model = model_flops_per_step(shape, job)
    all_flops = hardware_flops_per_step(shape, job, x)
    peak = problem.pool.accelerator.peak_flops_per_s[job.recipe.linear]
    remark: Words = (", nothing is recomputed",)
    if all_flops > model:
        parts = recomputed_parts(shape, job.core_tokens, x)
        sums = (f"{p.n_layers} × {exact(p.flops_per_token, 'FLOP')}" for p in parts)
        recomputed = deck.add(
            "recomputed-flops",
            "FLOPs of a step that are computed again",
            Amount(all_flops - model, "FLOP"),
            Derivation(
                "tokens of a step × layers × forward FLOPs of a token in what runs again ("
                + ", ".join(p.name.replace("_", " ") for p in parts)
                + ")",
                f"{round(job.tokens_per_step):,} × ({total(sums)})",
                "costmodels.layers.hardware_flops.recomputed_parts: forwards as Megatron-LM "
                "counts them;"
                " Korthikanti et al. 2022, appendix A",
                inputs=_sizes(problem),
            ),
        )
        remark = (", ", recomputed, " of a step are recomputed")
    value = hfu(plan)
    number = deck.add(
        "hfu",
        "hardware FLOPs utilization (HFU), recomputed work included",
        Amount(value, "%", text=f"{value * 100:.1f} %"),
        Derivation(
            "(F + F_again) / (T N P): model FLOPs and recomputed FLOPs of a step over step time,"
            " devices and the dense peak of the matrix products",
            f"({exact(model, 'FLOP')} + {exact(all_flops - model, 'FLOP')}) /"
            f" ({exact(plan.step_time_s, 's')} × {x.n_devices:,} × {exact(peak, 'FLOP/s')})",
            "Korthikanti et al. 2022, appendix A; Chowdhery et al. 2022 (PaLM), appendix B: what"
            " the hardware computes, what it computes twice counted twice. Left out: scores that a"
            " flash kernel forms again",
            inputs=compute_figures(problem),
        ),
    )
    return (number, *remark)


def _work(deck: Deck, problem: Problem, plan: Plan) -> tuple[Fact, ...]:
    shape, job, x = problem.shape, problem.job, plan.layout
    batch = deck.add(
        "global-batch",
        "sequences of a step",
        Amount(job.global_batch, "", text=f"{job.global_batch:,}"),
        Derivation(
            "micro-batches × sequences of one × dp",
            f"{x.n_micro} × {x.mbs} × {x.dp}",
            "given in the model file (training.global_batch)",
        ),
    )
    length = deck.add(
        "sequence-length",
        "tokens of a sequence",
        Amount(job.seq_len, "", text=f"{job.seq_len:,}"),
        Derivation("s", f"{job.seq_len:,}", "given in the model file (training.seq_len)"),
    )
    tokens = deck.add(
        "tokens-per-step",
        "tokens of a step",
        Amount(job.tokens_per_step, "tokens", text=f"{round(job.tokens_per_step):,}"),
        Derivation(
            "sequences × their length",
            f"{job.global_batch:,} × {job.seq_len:,}",
            "costmodels.shapes.TrainingJob",
        ),
    )
    micro = deck.add(
        "micro-batches",
        "micro-batches of a step and pipeline",
        Amount(x.n_micro, "", text=f"{x.n_micro:,}"),
        Derivation(
            "global batch / (sequences of a micro-batch × dp)",
            f"{x.gbs:,} / ({x.mbs} × {x.dp})",
            "costmodels.plans.Layout.n_micro",
        ),
    )
    formula, text = _flops_formula(problem)
    of_token = deck.add(
        "flops-per-token",
        "model FLOPs of a token",
        Amount(model_flops_per_token(shape, job.core_tokens, job.tuning), "FLOP"),
        Derivation(
            formula,
            text,
            with_records(
                "costmodels.layers.flops.model_flops_per_token: Megatron-LM training/training.py,"
                " num_floating_point_operations",
                shape,
            ),
            inputs=added_rows(shape),
        ),
    )
    flops = deck.add(
        "flops-per-step",
        "model FLOPs of a step",
        Amount(model_flops_per_step(shape, job), "FLOP"),
        Derivation(
            "model FLOPs of a token × tokens of a step",
            f"{exact(model_flops_per_token(shape, job.core_tokens, job.tuning), 'FLOP')} ×"
            f" {job.global_batch:,} × {job.seq_len:,}",
            "costmodels.layers.flops.model_flops_per_step",
        ),
    )
    params = total_params(shape, job.seq_len)
    params_number = deck.add(
        "parameters",
        "parameters of the model",
        Amount(params, "", text=f"{params / 1e9:.4g} billion"),
        Derivation(
            "layers, embedding, head and final norm with the true vocabulary",
            f"{round(params):,}",
            "costmodels.parameters.total_params",
            inputs=_sizes(problem),
        ),
    )
    sentence: Words = (params_number, " parameters")
    if shape.n_experts:
        active = active_params(shape, job.seq_len)
        sentence += (
            ", of which a token meets ",
            deck.add(
                "active-parameters",
                "parameters that a token meets",
                Amount(active, "", text=f"{active / 1e9:.4g} billion"),
                Derivation(
                    "as above, with the experts of one token in place of all",
                    f"{round(active):,}",
                    "costmodels.parameters.active_params",
                    inputs=_sizes(problem),
                ),
            ),
        )
    return (
        Fact("Global batch", (batch, " sequences of ", length, ", ", tokens, " tokens")),
        Fact("Micro-batches", (micro, " a pipeline")),
        Fact("Model FLOPs", (of_token, " a token, ", flops, " a step")),
        Fact("Model", sentence),
    )


def _sizes(problem: Problem) -> tuple[tuple[str, str], ...]:
    shape = problem.shape
    more = []
    if shape.n_experts:
        sizes = f"{shape.n_experts}, {shape.top_k}, {shape.expert_ffn:,}"
        more.append(("experts, of one token, width of one", sizes))
    return (
        ("layers, hidden", f"{shape.layers}, {shape.hidden:,}"),
        ("heads, of keys, width", f"{shape.heads}, {shape.kv_heads}, {shape.head_dim}"),
        ("MLP width, vocabulary", f"{shape.ffn:,}, {shape.vocab:,}"),
        *more,
        *added_rows(shape),
    )


def _flops_formula(problem: Problem) -> tuple[str, str]:
    """Return the model FLOPs of a token in symbols and with the sizes put in."""
    if added_kinds(problem.shape):
        return _flops_by_kind(problem)
    shape, s = problem.shape, problem.job.core_tokens
    h, q, kv = shape.hidden, shape.q_width, shape.kv_heads * shape.head_dim
    vocab = shape.padded_vocab or -(-shape.vocab // shape.vocab_multiple) * shape.vocab_multiple
    c = 3 if shape.gated else 2
    projections, core = f"({h:,} × ({q:,} + 2 × {kv:,}) + {q:,} × {h:,})", f"{q:,}"
    symbols = "h (h_q + 2 h_kv) + h_q h"
    if shape.attention_gate:
        projections = f"({h:,} × (2 × {q:,} + 2 × {kv:,}) + {q:,} × {h:,})"
        symbols = "h (2 h_q + 2 h_kv) + h_q h"
    if shape.latent:
        value = round(latent_params(shape, np.ones(1, dtype=np.int32)).item())
        projections, core = f"{value:,}", f"{(q + shape.v_width) // 2:,}"
        symbols = "projections of latent attention"
    modules, layers = shape.mtp_layers, shape.layers + shape.mtp_layers
    routed = shape.n_expert_layers
    if modules and shape.expert_layers[-1]:
        routed += modules
    width = shape.top_k * shape.expert_ffn + shape.shared_ffn
    sums = [f"{layers} × {projections}"]
    if layers - routed:
        sums.append(f"{layers - routed} × {c} × {h:,} × {shape.ffn:,}")
    if routed:
        sums.append(f"{routed} × {c} × {h:,} × {width:,}")
    if modules:
        sums.append(f"{modules} × (2 × {h:,} × {h:,} + 3 × {h:,})")
    sums += [f"{h:,} × {h:,}"] * shape.head_transform
    sums.append(f"{1 + modules} × {h:,} × {vocab:,}")
    passes, more = _passes(problem)
    formula = f"{passes} (L ({symbols}) + L c h f + h V) + 6 L h_q s" + " + 6 A" * bool(more)
    if routed:
        formula += ", f = k f_e + f_s in layers with experts"
    if modules:
        formula += ", and the modules of multi-token prediction"
    formula, vision = _with_tower(problem, formula)
    return formula, f"{passes} × ({total(sums)}) + 6 × {layers} × {core} × {s:,}{more}{vision}"


def _passes(problem: Problem) -> tuple[int, str]:
    """Return the FLOPs of a weight, and what adapters of A parameters that a token meets add."""
    tuning, shape = problem.job.tuning, problem.shape
    if tuning is None:
        return 6, ""
    met = model_adapter_params(shape, tuning, shape.top_k / max(1, shape.n_experts))
    return 4, f" + 6 × {exact(met)}"


def _with_tower(problem: Problem, formula: str) -> tuple[str, str]:
    """Return the symbols with those of a vision tower, and what it adds with the numbers in."""
    if not problem.shape.vision:
        return formula, ""
    flops = vision_flops(problem.shape)
    return f"{formula} + F_vision / s", f" + {flops:,.0f} / {problem.job.seq_len:,}"


def _flops_by_kind(problem: Problem) -> tuple[str, str]:
    """Return the model FLOPs of a token where multiply-adds are those of each kind's record."""
    shape, s, modules = problem.shape, problem.job.core_tokens, problem.shape.mtp_layers
    vocab = shape.padded_vocab or -(-shape.vocab // shape.vocab_multiple) * shape.vocab_multiple
    h, last, layers, cores = shape.hidden, shape.layer_sequence[-1], [], []
    for i, (kind, count) in enumerate(zip(kinds_of(shape), shape.kind_counts, strict=True)):
        macs, n = kind.macs(shape), count + modules * (i == last)
        if n:
            layers.append(f"{n} × ({macs.projections:,} + {round(macs.mlp):,})")
            of_core = f"{n} × {macs.core:,} × {s:,}"
            cores.append(f"{n} × {macs.core_at(round(s)):,.0f}" if macs.core_at else of_core)
    if modules:
        layers.append(f"{modules} × (2 × {h:,} × {h:,} + 3 × {h:,})")
    layers += [f"{h:,} × {h:,}"] * shape.head_transform
    if streams := shape.residual_streams:
        layers.append(f"{1 + modules} × {collapse_macs(shape):,}")
        layers += [f"{modules} × {streams.count - 1} × {h:,} × {h:,}"] * bool(modules)
    if not shape.diffusion:
        layers.append(f"{1 + modules} × {h:,} × {vocab:,}")
    titles = kinds_text(kind for kind, _ in present_kinds(shape))
    passes, more = _passes(problem)
    formula = f"{passes} (sum of L (projections + MLP) + h V) + 6 sum of L core s"
    formula += " + 6 A" * bool(more)
    formula += f", multiply-adds by the records of {titles}"
    if shape.diffusion:
        formula = formula.replace(" + h V)", ")") + ", + F_ends / s"
        ends = f" + {end_flops(shape):,.0f} / {s:,}"
        return formula, f"6 × ({total(layers)}) + 6 × ({total(cores)}){ends}"
    formula, vision = _with_tower(problem, formula)
    return formula, f"{passes} × ({total(layers)}) + 6 × ({total(cores)}){more}{vision}"


def _memory(deck: Deck, problem: Problem, plan: Plan) -> tuple[Fact, ...]:
    pool, peak_stage = problem.pool, plan.breakdown.peak_stage
    usable = deck.add(
        "usable-memory",
        "usable memory of a device",
        Amount(plan.usable_bytes, "B"),
        Derivation(
            "memory of the device − reserve of the pool",
            f"{round(pool.accelerator.memory_bytes):,} B − {round(pool.memory_margin_bytes):,} B",
            "catalogue, memory_bytes of the accelerator; memory_margin of the pool in the cluster"
            " file",
        ),
    )
    peak = plan.breakdown.peak_bytes
    free = deck.add(
        "headroom-share",
        "share of the usable memory that is free",
        Amount(
            plan.headroom_frac, "%", text=f"{plan.headroom_frac * 100:.1f} %".replace("-", "−")
        ),
        Derivation(
            "1 − peak / usable",
            f"1 − {round(peak):,} B / {round(plan.usable_bytes):,} B",
            "planner.solver.answer.result.Plan.headroom_frac",
        ),
    )
    return (
        Fact(
            "Peak", (deck.see(f"memory-{peak_stage}-peak"), " on ", Label(f"stage {peak_stage}"))
        ),
        Fact("Usable", (usable, " a device, of which ", free, " stays free")),
    )


def _run(deck: Deck, problem: Problem, plan: Plan, operations: Operations) -> tuple[Fact, ...]:
    x, job, run = plan.layout, problem.job, plan.run
    devices = deck.add(
        "devices",
        "devices in use",
        Amount(x.n_devices, "", text=f"{x.n_devices:,}"),
        Derivation(
            "tp × pp × cp × dp", f"{x.tp} × {x.pp} × {x.cp} × {x.dp}", "costmodels.plans.Layout"
        ),
    )
    sentence: Words = (devices, " ", Label(problem.pool.accelerator.name))
    if plan.n_idle:
        idle = deck.add(
            "idle-devices",
            "devices of the pool that the plan leaves idle",
            Amount(plan.n_idle, "", text=f"{plan.n_idle:,}"),
            Derivation(
                "devices of the pool − devices in use",
                f"{x.n_devices + plan.n_idle:,} − {x.n_devices:,}",
                "planner.solver.solve.make_plan",
            ),
        )
        sentence += (", ", idle, " idle")
    facts = [Fact("Devices", sentence)]
    hours_of = plan.training_s
    if plan.training_s is not None:
        length = deck.add(
            "training-time",
            "time of the run without failures",
            Amount(plan.training_s, "s"),
            Derivation(
                "tokens of the run / tokens per second",
                f"{exact(job.tokens)} / {exact(plan.tokens_per_s, 'tokens/s')}",
                "planner.solver.solve.make_plan; tokens of the run from the model file",
            ),
        )
        facts.append(Fact("Run without failures", (length,)))
    if run is not None:
        facts += _run_with_failures(deck, problem, plan, operations)
        hours_of = run.expected_s if run.expected_s is not None else hours_of
    if hours_of is not None:
        noun = problem.pool.accelerator.noun.one
        hours = deck.add(
            "gpu-hours",
            f"{noun}-hours of the run",
            Amount(
                x.n_devices * hours_of / SECONDS_PER_HOUR,
                "",
                text=f"{x.n_devices * hours_of / SECONDS_PER_HOUR:,.0f}",
            ),
            Derivation(
                "devices × time of the run"
                + (", failures included" if run else "")
                + " / one hour",
                f"{x.n_devices:,} × {exact(hours_of, 's')} / 3,600 s",
                "devices times hours",
            ),
        )
        facts.append(Fact(f"{noun}-hours", (hours,)))
    return tuple(facts)


def _run_with_failures(
    deck: Deck, problem: Problem, plan: Plan, operations: Operations
) -> list[Fact]:
    run, x, job = plan.run, plan.layout, problem.job
    assert run is not None  # asked by `_run`
    g = run.goodput
    mtbf = deck.add(
        "mtbf",
        "mean time between failures of the job",
        Amount(g.mtbf_s, "s"),
        Derivation(
            "that of one device / devices",
            f"{exact(operations.device_mtbf_s, 's')} / {x.n_devices:,}",
            "costmodels.run.goodput.job_mtbf_s: Llama 3 (arXiv 2407.21783), section 3.3.4, unless"
            " the cluster file states it",
            method="goodput",
        ),
    )
    m, r = exact(g.mtbf_s, "s"), exact(g.restart_s, "s")
    tau, delta = exact(g.interval_s, "s"), exact(g.checkpoint_s, "s")
    text = f"{tau} / ({m} × exp({r} / {m}) × expm1(({tau} + {delta}) / {m}))"
    share = deck.add(
        "goodput",
        "share of the time that trains",
        Amount(g.goodput_frac, "%", text=f"{g.goodput_frac * 100:.2f} %"),
        Derivation(
            "tau / (M exp(R / M) (exp((tau + delta) / M) − 1))",
            text if g.interval_s > 0.0 else f"exp(−{r} / {m})",
            "costmodels.run.goodput.goodput_frac: Daly 2006, equation 20",
            inputs=(
                ("tau, between checkpoints", quantity_text(g.interval_s, "s")),
                ("delta, one stops training", quantity_text(g.checkpoint_s, "s")),
                ("R, failure to next step", quantity_text(g.restart_s, "s")),
            ),
            method="goodput",
        ),
    )
    facts = [Fact("Failures", ("one every ", mtbf, "; ", share, " of time is productive"))]
    if run.expected_s is not None and plan.training_s is not None:
        length = deck.add(
            "expected-time",
            "time of the run with failures",
            Amount(run.expected_s, "s"),
            Derivation(
                "time without failures / share that trains",
                f"{exact(plan.training_s, 's')} / {g.goodput_frac:.8g}",
                "planner.specs.search.objectives.run_figures",
                method="goodput",
            ),
        )
        facts.append(Fact("Run with failures", (length,)))
    if run.power_w is not None and run.energy_j_per_token is not None:
        limit = problem.pool.accelerator.drawn_w
        power = deck.add(
            "power",
            "power at the meter",
            Amount(run.power_w, "W"),
            Derivation(
                "power limit × overhead of the node × PUE × devices",
                f"{exact(limit, 'W')} × {operations.power_overhead:g} × {operations.pue:g} ×"
                f" {x.n_devices:,}",
                "costmodels.run.cost_energy.device_power_w: catalogue; MLPerf Training power logs",
                method="energy",
            ),
        )
        token = deck.add(
            "energy-per-token",
            "energy of a token",
            Amount(run.energy_j_per_token, "J"),
            Derivation(
                "power × step time / (share that trains × tokens of a step)",
                f"{exact(run.power_w, 'W')} × {exact(plan.step_time_s, 's')} /"
                f" ({g.goodput_frac:.8g} × {round(job.tokens_per_step):,})",
                "costmodels.run.cost_energy.energy_j",
                method="energy",
            ),
        )
        sentence: Words = (power, ", ", token, " a token")
        if run.energy_j is not None and run.expected_s is not None:
            energy = deck.add(
                "energy",
                "energy of the run",
                Amount(run.energy_j, "J"),
                Derivation(
                    "power × time with failures",
                    f"{exact(run.power_w, 'W')} × {exact(run.expected_s, 's')}",
                    "costmodels.run.cost_energy.energy_j",
                    method="energy",
                ),
            )
            sentence += (", ", energy, " the run")
        facts.append(Fact("Energy", sentence))
    price = operations.price_per_device_hour
    if run.usd_per_million_tokens is not None and price is not None:
        cost = deck.add(
            "cost-per-million-tokens",
            "price of a million tokens",
            Amount(run.usd_per_million_tokens, "USD"),
            Derivation(
                "price of a device and hour × devices × step time with failures / tokens",
                f"{price:g} × {x.n_devices:,} × {exact(plan.step_time_s, 's')} /"
                f" ({g.goodput_frac:.8g} × 3,600 s × {round(job.tokens_per_step):,}) × 1,000,000",
                "costmodels.run.cost_energy.cost_usd; price of the cluster file",
                method="cost",
            ),
        )
        sentence = (cost, " a million tokens")
        if run.cost_usd is not None and run.expected_s is not None:
            run_card = deck.add(
                "cost",
                "price of the run",
                Amount(run.cost_usd, "USD", text=f"{run.cost_usd:,.0f} USD"),
                Derivation(
                    "price of a device and hour × devices × time with failures",
                    f"{price:g} × {x.n_devices:,} × {exact(run.expected_s, 's')} / 3,600 s",
                    "costmodels.run.cost_energy.cost_usd; price of the cluster file",
                    method="cost",
                ),
            )
            sentence += (", ", run_card, " the run")
        facts.append(Fact("Cost", sentence))
    return facts


DEGREES = {
    "tp": "ranks that share every layer (tensor parallelism)",
    "pp": "stages of the pipeline",
    "dp": "data-parallel replicas",
    "cp": "ranks that share a sequence (context parallelism)",
    "ep": "ranks that hold different experts (expert parallelism)",
    "etp": "ranks that share every expert",
    "vpp": "chunks of layers on each pipeline rank",
    "mbs": "sequences of a micro-batch",
}


def _layout(deck: Deck, problem: Problem, plan: Plan) -> tuple[Fact, ...]:
    x, facts = plan.layout, []
    product = f"{x.n_devices:,} / ({{}})"
    others = {
        "tp": (x.pp, x.cp, x.dp),
        "pp": (x.tp, x.cp, x.dp),
        "dp": (x.tp, x.pp, x.cp),
        "cp": (x.tp, x.pp, x.dp),
    }
    names = {"tp": "pp cp dp", "pp": "tp cp dp", "dp": "tp pp cp", "cp": "tp pp dp"}
    chosen = "a choice of the plan: searched or pinned, see planner.solver.solve.solve"
    for axis, meaning in DEGREES.items():
        value = getattr(x, axis)
        if axis in ("ep", "etp") and not problem.shape.n_experts:
            continue
        formula, text = "chosen", f"{value}"
        if axis in others:
            formula = f"devices / ({names[axis].replace(' ', ' × ')})"
            text = product.format(" × ".join(map(str, others[axis])))
        elif axis == "mbs":
            formula, text = (
                "global batch / (micro-batches × dp)",
                f"{x.gbs} / ({x.n_micro} × {x.dp})",
            )
        elif axis == "vpp":
            formula = "virtual stages / pp"
            text = f"{len(x.stage_layers)} / {x.pp}"
        number = deck.add(
            f"layout-{axis}",
            f"{axis}: {meaning}",
            Amount(value, "", text=str(value)),
            Derivation(formula, text, chosen),
        )
        facts.append(Fact(axis, (number, f" {meaning}")))
    shard = deck.add(
        "layout-dp-shard",
        "ranks of one ZeRO group",
        Amount(x.dp_shard, "", text=str(x.dp_shard)),
        Derivation("dp × cp / replicas", f"{x.dp} × {x.cp} / {x.dp * x.cp // x.dp_shard}", chosen),
    )
    sharded = {
        0: "nothing is sharded",
        1: "optimizer states are sharded",
        2: "optimizer states and gradients are sharded",
        3: "weights, gradients and optimizer states are sharded",
    }[x.zero]
    facts.append(Fact("ZeRO", (Label(f"stage {x.zero}"), f": {sharded} over ", shard, " ranks")))
    facts.append(Fact("Schedule", (Label(x.schedule),)))
    recompute_text = x.recompute_text
    sentence: Words = (Label(recompute_text),)
    if x.recompute == "full":
        layers = deck.add(
            "layout-recompute-layers",
            "layers of each virtual stage that run forward twice",
            Amount(x.recompute_layers, "", text=str(x.recompute_layers)),
            Derivation("chosen", str(x.recompute_layers), chosen),
        )
        sentence += (", ", layers, " layers of each virtual stage")
    facts.append(Fact("Recomputation", sentence))
    if x.hpz > 1:
        number = deck.add(
            "layout-hpz",
            "ranks that keep a second copy of the weights",
            Amount(x.hpz, "", text=str(x.hpz)),
            Derivation("chosen", str(x.hpz), chosen),
        )
        facts.append(Fact("hpz", (number, " ranks share a second copy of the weights")))
    if x.activation_offload:
        number = deck.add(
            "layout-activation-offload",
            "layers whose activations lie on the host",
            Amount(x.activation_offload_layers, "", text=str(x.activation_offload_layers)),
            Derivation("chosen", str(x.activation_offload_layers), chosen),
        )
        facts.append(Fact("Activation offload", (number, " layers")))
    switches = [
        ("sequence parallelism", x.sp),
        ("dp overlap", x.dp_overlap),
        ("tp overlap", x.tp_overlap),
        ("optimizer offload", x.optimizer_offload),
    ]
    on = ", ".join(name for name, value in switches if value) or "none"
    facts.append(Fact("Switches on", (on,)))
    return tuple(facts)
