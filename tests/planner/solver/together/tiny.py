"""A small job and small pools: searched over several pools within a second or two."""

MODEL = {
    "model": {
        "name": "tiny",
        "layers": 4,
        "hidden": 2048,
        "heads": 16,
        "kv_heads": 8,
        "ffn": 8192,
        "gated": True,
        "vocab": 32000,
        "tied": False,
    },
    "training": {"seq_len": 2048, "global_batch": 16},
}
PINS = {"mbs": 1, "tp": 1, "cp": 1}


def pool(name, part="h100-sxm-80gb", nodes=1, per_node=2, **more):
    nic = {"nic": "ib-hdr-200"} if part.startswith("a100") else {}
    counts = {"nodes": nodes, "accelerators_per_node": per_node}
    return {"name": name, "accelerator": part, **counts, **nic, **more}


NEW = pool("new")
OLD = pool("old", "a100-sxm-80gb")


def cluster(*pools, links=()):
    linked = {"links": list(links)} if links else {}
    return {"name": "several", "pools": list(pools), **linked}
