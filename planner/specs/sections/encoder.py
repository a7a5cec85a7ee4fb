"""What contradicts in the `model.encoder:` and `model.cross:` sections of a model file."""

from costmodels.layers.kinds import kind_of
from costmodels.towers.encoder_layers import NAME
from planner.specs.schema import ModelSpec, SpecFault


def has_second_sequence(model: ModelSpec) -> bool:
    """Tell whether a model says what its `cross` layers attend to."""
    return model.cross is not None or model.encoder is not None


def encoder_faults(model: ModelSpec) -> list[SpecFault]:
    """Return what is wrong between an encoder, the layers and the second sequence."""
    kinds = [kind for run in model.layer_kinds or () for kind in run.kinds]
    reads = any(kind_of(kind).mixer.endswith("cross") for kind in kinds)
    section = ("model", "encoder")
    x = model.encoder
    if x is None:
        lonely = SpecFault(
            ("model", "layer_kinds"),
            f"layers of kind {NAME} need an `encoder` section",
            "add `encoder:` with its `seq_len` under `model`, or name another kind",
        )
        return [lonely] if NAME in kinds else []
    first = next((i for i, kind in enumerate(kinds) if kind != NAME), len(kinds))
    heads, head_dim = x.heads or model.heads, x.head_dim or model.head_dim
    kv_heads = x.kv_heads or (0 if x.heads else model.kv_heads) or heads
    width, cross = x.hidden or model.hidden, model.cross
    checks = (
        (
            NAME not in kinds,
            section,
            "no layer is one of the encoder",
            f"name {NAME} in `layer_kinds`, or leave `encoder` out",
        ),
        (
            NAME in kinds[first:],
            ("model", "layer_kinds"),
            "a layer of the encoder stands behind one of the decoder",
            "the layers of the encoder come first",
        ),
        (
            not reads,
            ("model", "layer_kinds"),
            "no layer attends to what the encoder says",
            "the decoder's layers are of kind causal-cross+dense (or causal-cross+moe)",
        ),
        (
            heads % kv_heads > 0,
            (*section, "kv_heads" if x.kv_heads else "heads"),
            f"{heads} heads cannot be shared out over {kv_heads} kv_heads",
            "kv_heads must divide heads",
        ),
        (
            not head_dim and width % heads > 0,
            (*section, "heads"),
            f"hidden {width} is not a multiple of heads {heads}",
            "state head_dim, or other heads",
        ),
        (
            cross is not None and (cross.tokens, cross.width) != (x.seq_len, width),
            ("model", "cross"),
            f"{cross.tokens if cross else 0} tokens of {cross.width if cross else 0} are not what"
            f" the encoder returns, {x.seq_len} of {width}",
            "leave `cross` out: the encoder says it",
        ),
    )
    return [SpecFault(path, message, fix) for failed, path, message, fix in checks if failed]
