"""What a model or a cluster file describes, in a few lines (`planner check-spec`)."""

from typing import Any

from costmodels.parameters import active_params, total_params
from hardware.parts import Pool
from planner import units
from planner.specs.cluster.links import GB
from planner.specs.cluster.slices import shape_text
from planner.specs.inputs import ClusterInput, ModelInput


def spec_summary(spec: ModelInput | ClusterInput) -> str:
    """Return what a model or a cluster describes, in a few lines."""
    if isinstance(spec, ModelInput):
        return _model_summary(spec)
    return _cluster_summary(spec)


def model_size(model: ModelInput) -> str:
    """Return the parameters of a model, and with experts those that a token meets.

    `70.55 B parameters`, `46.70 B parameters, 12.9 B active`; below a tenth of a billion in M.
    """
    total, active = parameter_counts(model)
    text = f"{_billions(total, 2)} parameters"
    return text + (f", {_billions(active, 1)} active" if model.shape.n_experts else "")


def parameter_counts(model: ModelInput) -> tuple[int, int]:
    """Return all parameters, and those that one token meets; the same without experts."""
    shape, seq_len = model.shape, model.job.seq_len
    return round(total_params(shape, seq_len)), round(active_params(shape, seq_len))


def _billions(count: int, digits: int) -> str:
    return f"{count / 1e9:.{digits}f} B" if count >= 1e8 else f"{count / 1e6:.{digits}f} M"


def spec_json(spec: ModelInput | ClusterInput) -> dict[str, Any]:
    """Return what a model or a cluster describes as plain values."""
    if not isinstance(spec, ModelInput):
        return {"kind": "cluster", "notes": list(spec.notes), "document": spec.document}
    total, active = parameter_counts(spec)
    return {
        "kind": "model",
        "parameters": total,
        "active_parameters": active,
        "notes": list(spec.notes),
        "document": spec.document,
    }


def _model_summary(model: ModelInput) -> str:
    shape, job = model.shape, model.job
    run = f", {units.format_count(job.tokens)} tokens in all" if job.tokens else ""
    notes = "".join(f"\n  {note}" for note in model.notes)
    return (
        f"{model.path or 'model'}: {model.format}, no problems found\n"
        f"  {shape.name}: {shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads"
        f" ({shape.kv_heads} kv) of {shape.head_dim}, ffn {shape.ffn}"
        f" {'gated' if shape.gated else 'plain'}, vocab {shape.vocab}"
        f" {'tied' if shape.tied else 'untied'}\n"
        f"  {model_size(model)}\n"
        f"{_expert_summary(model)}"
        f"  seq {job.seq_len}, global batch {job.global_batch}"
        f" ({units.format_count(job.tokens_per_step)} tokens per step),"
        f" {' or '.join(model.precisions)},"
        f" {job.optimizer}{run}{notes}"
    )


def _expert_summary(model: ModelInput) -> str:
    """Return a line each on kinds of layers, experts, latent attention and others, where used."""
    shape, text = model.shape, ""
    if shape.layer_runs:
        pairs = zip(shape.kind_counts, shape.kinds, strict=True)
        text += f"  kinds: {', '.join(f'{n} {name}' for n, name in pairs if n)}\n"
    if shape.n_experts:
        text += (
            f"  experts: {shape.n_experts} of width {shape.expert_ffn}, {shape.top_k} a token,"
            f" in {shape.n_expert_layers} layers\n"
        )
    if shape.latent:
        text += (
            f"  latent attention: ranks {shape.q_rank} and {shape.kv_rank}, heads of"
            f" {shape.qk_nope} + {shape.qk_rope}, values of {shape.v_head}\n"
        )
    if shape.mtp_layers:
        text += f"  multi-token prediction: {shape.mtp_layers} module(s)\n"
    return text


def _cluster_summary(spec: ClusterInput) -> str:
    cluster = spec.cluster
    tiers = ", ".join(
        f"{t.name} of {t.n_nodes} nodes ({t.oversubscription:g}:1 above)"
        for t in cluster.fabric.tiers
    )
    rails = "rail-optimized" if cluster.fabric.rail_optimized else "not rail-optimized"
    what = "a dump of a cluster" if spec.from_dump else "a cluster file"
    lines = [f"{spec.path or 'cluster'}: {what}, no problems found"]
    for pool in cluster.pools:
        lines += _pool_summary(cluster.name if len(cluster.pools) == 1 else pool.name, pool)
    sums = f"; the lowest {n} level(s) sum" if (n := cluster.fabric.n_summing_tiers) else ""
    lines.append(f"  fabric {rails}{sums}; tiers: {tiers or 'one non-blocking switch'}")
    for link in cluster.links:
        wan = "wan link" if link.is_wan else "link"
        price = f", ${link.price_per_byte * GB:g} per GB" if link.price_per_byte else ""
        lines.append(
            f"  {wan} {' - '.join(link.pools)}: {units.format_bandwidth(link.bytes_per_s)} shared,"
            f" {units.format_time(link.latency_s)} a message{price}"
        )
    if replaced := _replaced_figures(spec):
        lines.append("  replaced figures: " + ", ".join(replaced))
    if spec.announced:
        names = ", ".join(spec.announced)
        lines.append(f"  announced, not measured: {names}")
    if spec.assumed:
        lines.append("  assumed figures: " + ", ".join(spec.assumed))
    lines += [f"  {note}" for note in spec.notes]
    return "\n".join(lines)


def _replaced_figures(cluster: ClusterInput) -> list[str]:
    """Return the catalogue figures that the file replaces, with their new values."""
    results = []
    for pool, source in zip(cluster.document["pools"], cluster.sources, strict=True):
        figures = dict(source.network)
        if isinstance(pool["accelerator"], dict):
            own = {k: v for k, v in pool["accelerator"].items() if k not in ("like", "name")}
            peaks = own.pop("peaks", {})
            figures = {**own, **{f"peaks.{k}": v for k, v in peaks.items()}, **figures}
        shown = {k: units.shown_value(v) if isinstance(v, bool) else v for k, v in figures.items()}
        results += [f"{pool['name']}.{key} {value}" for key, value in shown.items()]
    return results


def _slice_text(pool: Pool) -> str:
    return f" (slice {shape_text(pool.slice_shape)})" if pool.slice_shape else ""


def _pool_summary(name: str, pool: Pool) -> list[str]:
    nodes = "1 node" if pool.n_nodes == 1 else f"{pool.n_nodes} nodes"
    return [
        f"  {name}: {nodes} x {pool.devices_per_node} {pool.accelerator.name}"
        f" = {pool.n_devices} devices, {units.format_gib(pool.usable_bytes)} GiB usable of"
        f" {units.format_gib(pool.accelerator.memory_bytes)} GiB each",
        f"  scale-up {pool.scale_up.name}, domain of {pool.scale_up_domain}{_slice_text(pool)}, "
        f"{units.format_bandwidth(pool.accelerator.scale_up_bytes_per_s)} per device; "
        f"{pool.nics_per_node} x {pool.nic.name} per node, "
        f"{units.format_link_speed(pool.nic.bytes_per_s)} each",
    ]
