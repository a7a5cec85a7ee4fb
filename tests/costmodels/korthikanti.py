"""The four models of Korthikanti et al. 2022, table 3, by the names of the measured runs."""

from costmodels.shapes import ModelShape


def gpt(layers: int, hidden: int, heads: int) -> ModelShape:
    """One of the four models: V 51,200, unfused attention, dropout."""
    return ModelShape(
        "gpt",
        layers,
        hidden,
        heads,
        heads,
        hidden // heads,
        4 * hidden,
        gated=False,
        vocab=51_200,
        tied=True,
        norm="layernorm",
        bias=True,
        positions="learned",
        dropout=True,
        padded_vocab=51_200,
        flash_attention=False,
    )


MODELS = {
    "megatron-22b": gpt(48, 6_144, 64),
    "gpt3-175b": gpt(96, 12_288, 96),
    "mt-nlg-530b": gpt(105, 20_480, 128),
    "gpt-1t": gpt(128, 25_600, 160),
}
