"""Types whose layers the cost model does not have, and what it is that they have."""

from collections.abc import Mapping

_HYBRID = "some layers with {} in place of attention"

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "codestral_mamba"),
        "a state-space model (Mamba), whose layers have no attention",
    ),
    **dict.fromkeys(
        ("rwkv", "rwkv5", "rwkv6", "rwkv7", "rwkv6qwen2"),
        "a recurrent model (RWKV), whose layers have no attention",
    ),
    **dict.fromkeys(
        ("recurrent_gemma", "xlstm", "hgrn", "retnet", "hyena", "stripedhyena", "ttt"),
        "layers with recurrences or long convolutions in place of attention",
    ),
    **dict.fromkeys(
        (
            "jamba",
            "bamba",
            "zamba",
            "zamba2",
            "falcon_h1",
            "nemotron_h",
            "nemotron_h_v2",
            "samba",
            "hymba",
            "phi4flash",
            "mambaformer",
            "plamo2",
        ),
        _HYBRID.format("a state space (Mamba)"),
    ),
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm3"), _HYBRID.format("convolutions")),
    **dict.fromkeys(
        (
            "qwen3_next",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_5_text",
            "qwen3_5_moe_text",
            "kimi_linear",
            "olmo_hybrid",
            "bailing_moe_linear",
            "bailing_hybrid",
        ),
        _HYBRID.format("linear attention"),
    ),
    **dict.fromkeys(
        ("nemotron-nas", "nemotron_nas", "deci", "decilm", "openelm", "puzzletron"),
        "layers that differ from one another in width, as an architecture search (NAS) left them",
    ),
    **dict.fromkeys(
        ("deepseek_v32", "deepseek_v4", "glm_moe_dsa", "minicpm_sala"),
        "sparse attention whose tokens an indexer picks",
    ),
    **dict.fromkeys(
        ("gemma3n", "gemma3n_text", "gemma4", "gemma4_text"),
        "layers of several widths and embeddings in every layer",
    ),
    "longcat_flash": "two attentions a layer, with experts beside the second",
    **dict.fromkeys(
        ("step3_text", "step3", "step3p5"), "factorised attention, whose matrices are others"
    ),
    "phi3small": "blocks of sparse attention and a gate of its own",
    "jetmoe": "attention whose heads are experts too",
    "doge": "attention with dynamic masks and experts that are embeddings",
    **dict.fromkeys(
        (
            "t5",
            "mt5",
            "umt5",
            "bart",
            "mbart",
            "pegasus",
            "whisper",
            "m2m_100",
            "t5gemma",
            "longt5",
            "switch_transformers",
            "nllb-moe",
            "blenderbot",
            "marian",
            "prophetnet",
        ),
        "an encoder beside the decoder",
    ),
    **dict.fromkeys(
        (
            "bert",
            "roberta",
            "xlm-roberta",
            "deberta",
            "deberta-v2",
            "electra",
            "albert",
            "distilbert",
            "modernbert",
            "vit",
            "clip",
            "siglip",
            "dinov2",
        ),
        "an encoder, and this plans the training of decoders",
    ),
}
"""By `model_type`, what its layers have."""
