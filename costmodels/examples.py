"""Small named shapes for doctests and tests; users' models come from YAML."""

from costmodels.shapes import ModelShape

LLAMA3_8B = ModelShape(
    "llama3-8b",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14336,
    gated=True,
    vocab=128256,
    tied=False,
)
LLAMA3_70B = ModelShape(
    "llama3-70b",
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=8,
    head_dim=128,
    ffn=28672,
    gated=True,
    vocab=128256,
    tied=False,
)
LLAMA3_405B = ModelShape(
    "llama3-405b",
    layers=126,
    hidden=16384,
    heads=128,
    kv_heads=8,
    head_dim=128,
    ffn=53248,
    gated=True,
    vocab=128256,
    tied=False,
)
GPT3_175B = ModelShape(
    "gpt3-175b",
    layers=96,
    hidden=12288,
    heads=96,
    kv_heads=96,
    head_dim=128,
    ffn=49152,
    gated=False,
    vocab=50257,
    tied=True,
    norm="layernorm",
    bias=True,
    positions="learned",
    dropout=True,
    padded_vocab=51200,
)
