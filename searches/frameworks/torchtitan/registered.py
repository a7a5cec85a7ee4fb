"""Models that torchtitan registers, which a job file of 0.2 can only name."""

from costmodels.shapes import ModelShape

FLAVORS: dict[tuple[str, str], dict[str, int | bool]] = {}
"""Sizes of the registered models (torchtitan/models/*/__init__.py) under the names of the model
file; what is not listed is as in a plain dense model."""


def _dense(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: int
) -> dict[str, int | bool]:
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "ffn": ffn}
    return sizes | {"vocab": vocab, "head_dim": 128, "tied": False} | more


def _experts(
    n: int, top_k: int, ffn: int, shared: int = 0, dense: int = 0, every: int = 1
) -> dict[str, int]:
    return {
        "n_experts": n,
        "top_k": top_k,
        "expert_ffn": ffn,
        "shared_ffn": shared,
        "dense_layers": dense,
        "moe_every": every,
    }


def _latent(q_rank: int) -> dict[str, int]:
    return {
        "q_rank": q_rank,
        "kv_rank": 512,
        "qk_nope": 128,
        "qk_rope": 64,
        "v_head": 128,
        "head_dim": 192,
    }


FLAVORS |= {
    ("llama3", "debugmodel"): _dense(6, 256, 16, 16, 768, 2048, head_dim=16),
    ("llama3", "8B"): _dense(32, 4096, 32, 8, 14336, 128256),
    ("llama3", "70B"): _dense(80, 8192, 64, 8, 28672, 128256),
    ("llama3", "405B"): _dense(126, 16384, 128, 8, 53248, 128256),
    ("qwen3", "0.6B"): _dense(28, 1024, 16, 8, 3072, 151936, tied=True),
    ("qwen3", "1.7B"): _dense(28, 2048, 16, 8, 6144, 151936, tied=True),
    ("qwen3", "4B"): _dense(36, 2560, 32, 8, 9728, 151936, tied=True),
    ("qwen3", "8B"): _dense(36, 4096, 32, 8, 12288, 151936),
    ("qwen3", "14B"): _dense(40, 5120, 40, 8, 17408, 151936),
    ("qwen3", "32B"): _dense(64, 5120, 64, 8, 25600, 151936),
    ("qwen3", "30B-A3B"): _dense(48, 2048, 32, 4, 0, 151936, **_experts(128, 8, 768)),
    ("qwen3", "235B-A22B"): _dense(94, 4096, 64, 4, 0, 151936, **_experts(128, 8, 1536)),
    ("llama4", "17bx16e"): _dense(48, 5120, 40, 8, 0, 202048, **_experts(16, 1, 8192, 8192)),
    ("llama4", "17bx128e"): _dense(
        48, 5120, 40, 8, 16384, 202048, **_experts(128, 1, 8192, 8192, every=2)
    ),
    ("deepseek_v3", "debugmodel"): _dense(
        6, 256, 16, 16, 1024, 2048, **_experts(8, 3, 256, 512, 1), **_latent(0)
    ),
    ("deepseek_v3", "16B"): _dense(
        27, 2048, 16, 16, 10944, 102400, **_experts(64, 6, 1408, 2816, 1), **_latent(0)
    ),
    ("deepseek_v3", "236B"): _dense(
        60, 5120, 128, 128, 12288, 102400, **_experts(160, 6, 1536, 3072, 1), **_latent(1536)
    ),
    ("deepseek_v3", "671B"): _dense(
        61, 7168, 128, 128, 18432, 129280, **_experts(256, 8, 2048, 2048, 3), **_latent(1536)
    ),
    ("gpt_oss", "20b"): _dense(
        24, 2880, 64, 8, 0, 201088, head_dim=64, bias=True, **_experts(32, 4, 2880)
    ),
    ("gpt_oss", "120b"): _dense(
        36, 2880, 64, 8, 0, 201088, head_dim=64, bias=True, **_experts(128, 4, 2880)
    ),
}

SDPA = ("llama3", "llama4", "qwen3")
"""Models whose registered flavors use the attention that context parallelism of 0.2.2 splits."""
_PLAIN: dict[str, int | bool] = {"n_experts": 0, "kv_rank": 0, "bias": False, "mtp_layers": 0}


def registered_model(shape: ModelShape) -> tuple[str, str] | None:
    """Return (name, flavor) of the registered model with these sizes, None when there is none."""
    rotary = shape.gated and shape.norm == "rmsnorm" and shape.positions == "rope"
    for key, sizes in FLAVORS.items():
        dense = not all(shape.expert_layers)  # a model without dense layers has no such width
        wanted = {k: v for k, v in (_PLAIN | sizes).items() if dense or k != "ffn"}
        if rotary and all(getattr(shape, name) == value for name, value in wanted.items()):
            return key
    return None
