"""Types whose layers the cost model does not have, and what it is that they have."""

from collections.abc import Mapping

_HYBRID = "some layers with {} in place of attention"

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("rwkv", "rwkv5", "rwkv6", "rwkv7", "rwkv6qwen2"),
        "a recurrent model (RWKV), whose layers have no attention",
    ),
    **dict.fromkeys(
        ("xlstm", "hgrn", "retnet", "hyena", "stripedhyena", "ttt"),
        "layers with recurrences or long convolutions in place of attention",
    ),
    **dict.fromkeys(
        (
            "zamba",
            "zamba2",
            "samba",
            "hymba",
            "phi4flash",
            "mambaformer",
            "plamo2",
        ),
        _HYBRID.format("a state space (Mamba)"),
    ),
    **dict.fromkeys(("lfm3",), _HYBRID.format("convolutions")),
    **dict.fromkeys(
        ("puzzletron",),
        "layers that differ from one another in width, as an architecture search (NAS) left them",
    ),
    **dict.fromkeys(
        ("dots3_note", "dots3_note_text", "inkling_text", "inkling2_text"),
        "attention whose heads have other widths in some layers than in others",
    ),
    **dict.fromkeys(
        ("qwen4_exp", "qwen4_exp_text"),
        "residual streams that matrices of low rank mix, and embeddings of several tokens",
    ),
    "hy_v4": "sparse attention that takes the keys of another layer's indexer, with gates",
    "axk2": "norms with matrices of their own, beside sparse attention",
    **dict.fromkeys(
        ("glm5_next", "glm5_next_text"),
        "linear attention with gates of its own, and an indexer over pools of keys",
    ),
    "zaya": "convolutions of queries and keys, and a router that is an MLP",
    "hrm_text": "layers that run several times in one pass",
    "mllama_text_model": "cross attention to images in some layers",
    "mllama": "cross attention to images in some layers",
    "ernie4_5_vl_moe_text": "experts of two widths, for text and for images",
    "ernie4_5_vl_moe": "experts of two widths, for text and for images",
    "xlnet": "two streams of attention with relative positions",
    "reformer": "attention by hashing, with reversible layers",
    "ctrl": "no norm of its own in front of the MLP's residual, and positions of sines",
    **dict.fromkeys(
        ("gemma4_assistant", "gemma4_unified_assistant"),
        "attention to the keys and values of another model",
    ),
    **dict.fromkeys(
        ("cohere_compass", "cohere_compass_text", "diffusion_gemma", "diffusion_gemma_text"),
        "attention to tokens on both sides, and this plans the training of decoders",
    ),
    **dict.fromkeys(
        (
            "mistral_large4",
            "mistral_large4_text",
            "muse_glimmer",
            "muse_glimmer_text",
            "muse_spark",
            "muse_spark_text",
        ),
        "layers that have not been read into the records",
    ),
    **dict.fromkeys(
        ("cogvlm", "cogvlm2"), "matrices of their own for tokens of images in every layer"
    ),
    **dict.fromkeys(
        ("idefics", "evolla"), "gated cross attention to images or proteins between layers"
    ),
    "baichuan_m1": "convolutions of keys and values, and windows with heads of their own",
    "yuan": "convolutions over tokens in front of attention",
    "kimi_audio": "layers of a second head that writes sound",
    "ernie4_5_moe_vl": "experts of two widths, for text and for images",
    **dict.fromkeys(
        ("kosmos-2", "kosmos-2.5", "kosmos_2_text_model", "kosmos_2_5_text_model"),
        "positions of sines, and norms inside attention and MLP",
    ),
    **dict.fromkeys(
        ("blip", "blip_text_model", "git"), "cross attention to images, or a decoder of BERT"
    ),
    "cpmant": "relative positions in buckets, with segments",
    "gpt_neox_japanese": "a bias that is shared by layers, and an MLP of its own",
    **dict.fromkeys(("pi0", "cosmos3_edge"), "an expert of actions beside the language model"),
    **dict.fromkeys(
        ("deepseek_ocr2", "unlimited_ocr"), "a second language model that reads the image"
    ),
    "blt": "patches of bytes between three models",
    "moshi": "two models, one over time and one over codebooks",
    "phi3small": "blocks of sparse attention and a gate of its own",
    "megrez_moe": "experts that several layers share",
    "jetmoe": "attention whose heads are experts too",
    "doge": "attention with dynamic masks and experts that are embeddings",
    **dict.fromkeys(
        ("t5gemma2", "t5gemma2_decoder"),
        "attention to the own sequence and to an encoder's output at once",
    ),
    **dict.fromkeys(("switch_transformers", "nllb-moe"), "experts in the layers of an encoder"),
    **dict.fromkeys(
        (
            "longt5",
            "prophetnet",
            "fsmt",
            "pop2piano",
            "speecht5",
            "bigbird_pegasus",
            "trocr",
            "musicgen",
            "musicgen_melody",
            "pix2struct",
            "pix2struct_text_model",
            "udop",
            "florence2",
            "florence2_language",
            "pp_formulanet",
            "pp_formulanet_text",
        ),
        "an encoder beside the decoder",
    ),
    **dict.fromkeys(
        (
            "bert",
            "roberta",
            "xlm-roberta",
            "electra",
            "distilbert",
            "modernbert",
            "eurobert",
            "esm",
            "camembert",
            "ernie",
            "data2vec-text",
            "mpnet",
            "megatron-bert",
            "roberta-prelayernorm",
            "xlm-roberta-xl",
        ),
        "an encoder whose file does not say its sizes (hidden_size)",
    ),
    **dict.fromkeys(
        ("deberta", "deberta-v2"), "attention with matrices for the distances of tokens"
    ),
    **dict.fromkeys(
        ("moonshine", "moonshine_streaming", "speech_to_text", "canary", "cohere_asr", "dia"),
        "an encoder of sound beside the decoder",
    ),
    **dict.fromkeys(
        ("seamless_m4t", "seamless_m4t_v2"), "encoders of sound and of text, and several decoders"
    ),
    **dict.fromkeys(
        ("led", "pegasus_x"), "an encoder whose tokens attend to windows and to some global tokens"
    ),
    **dict.fromkeys(
        ("voxtral_realtime", "voxtral_realtime_text"),
        "norms that a time scales, with matrices of their own",
    ),
    "kyutai_speech_to_text": "embeddings of several codebooks, and linear layers for each of them",
    **dict.fromkeys(
        ("encoder-decoder", "vision-encoder-decoder", "speech-encoder-decoder"),
        "two models of other types, joined by cross attention",
    ),
    "albert": "layers that share one set of weights",
    **dict.fromkeys(("vit", "clip", "siglip", "dinov2"), "images in place of tokens"),
    **dict.fromkeys(
        ("big_bird", "longformer", "nystromformer", "mra", "yoso"),
        "attention to some tokens of a text, chosen by its own rules",
    ),
    **dict.fromkeys(
        (
            "modernvbert",
            "nomic_bert",
            "gte",
            "jina_embeddings_v3",
            "esmc",
            "mobilebert",
            "rembert",
            "roformer",
            "roc_bert",
            "xlm",
            "xmod",
            "flaubert",
            "funnel",
            "fnet",
            "convbert",
            "ibert",
            "layoutlm",
            "luke",
            "perceiver",
            "squeezebert",
            "tapas",
            "bert-generation",
            "neomme",
            "ultrabert",
            "ultravbert",
        ),
        "the layers of an encoder that has not been read into the records",
    ),
}
"""By `model_type`, what its layers have."""
