import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.examples import DEEPSEEK_V3
from hardware.catalogue import load_catalogue
from planner.cli.spec_check import check_spec
from planner.errors import SpecError
from planner.specs.examples import example_names
from planner.specs.loader import cluster_from_dict, load_cluster, load_model, model_from_dict

DATA = Path(__file__).parents[1] / "data"
MODELS = [
    *("deepseek-v2", "deepseek-v3", "dense-2t-2029", "gpt3-175b", "llama1-13b", "llama1-33b"),
    *("llama1-65b",),
    *("llama1-7b", "llama2-13b", "llama2-70b", "llama2-7b", "llama3-405b", "llama3-70b"),
    *("llama3-8b", "mixtral-8x7b", "moe-5t-2029", "qwen3-235b-a22b"),
]
CLUSTERS = [
    *("a100-x1024", "b200-x256", "gb200-nvl72-x576", "gb300-nvl72-x512", "h100-x16384"),
    *("h100-x256-a100-x512", "h100-x512", "h100-x8", "h800-x2048"),
    *("mi300x-x64", "mi455x-x576", "mixed-h100-a100"),
    *("p5e-x128", "rubin-ultra-x576", "rubin-x576", "two-sites-h100"),
]
GB = 1e9

MODEL = """\
model:
  layers: 80
  hidden: 8192
  heads: 64
  kv_heads: 8
  ffn: 28672
  gated: true
  vocab: 128256
  tied: false
training:
  seq_len: 8192
  global_batch: 1024
"""
CLUSTER = """\
pools:
  - accelerator: h100-sxm-80gb
    nodes: 64
    nic: ib-ndr-400
fabric:
  tiers:
    - name: unit
      nodes: 32
    - name: hall
      nodes: 64
      oversubscription: 2:1
"""


def refusal(load, tmp_path, text, name):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load(path)
    assert caught.value.exit_code == 1
    return str(caught.value).replace(f"{tmp_path}/", "")


def changed(text, old, new):
    assert old in text
    return text.replace(old, new, 1)


def without(text, line):
    return changed(text, f"  {line}\n", "")


class TestExamples:
    def test_names(self):
        assert example_names("model") == MODELS
        assert example_names("cluster") == CLUSTERS

    @pytest.mark.parametrize("name", MODELS)
    def test_models_load_and_their_documents_read_back(self, name):
        given = load_model(name)
        assert given.shape.name == name
        again = model_from_dict(json.loads(json.dumps(given.document)))
        assert (again.shape, again.job) == (given.shape, given.job)
        assert again.document == given.document

    @pytest.mark.parametrize("name", CLUSTERS)
    def test_clusters_load_and_their_documents_read_back(self, name):
        given = load_cluster(name)
        assert given.cluster.name == name
        if "-x" in name:
            assert given.cluster.pools[0].n_devices == int(name.split("-x")[1].split("-")[0])
        again = cluster_from_dict(json.loads(json.dumps(given.document)))
        assert again.cluster == given.cluster
        assert again.document == given.document

    def test_the_405b_is_that_of_the_report(self):
        given = load_model("llama3-405b")
        shape = given.shape
        assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads) == (126, 16384, 128, 8)
        assert (shape.ffn, shape.vocab, shape.tied) == (53248, 128256, False)
        assert given.job.tokens_per_step == 16 * 2**20
        assert given.job.tokens == 15e12

    def test_metas_cluster_has_pods_of_3072_behind_1_to_7(self):
        cluster = load_cluster("h100-x16384").cluster
        pod = cluster.fabric.tiers[-1]
        assert (pod.n_nodes * 8, pod.oversubscription) == (3072, 7)
        assert not cluster.fabric.rail_optimized
        assert cluster.pools[0].nic.bytes_per_s == 50 * GB

    def test_summaries(self):
        assert "80 layers, hidden 8192, 64 heads (8 kv)" in check_spec("llama3-70b")
        summary = check_spec("h100-x512")
        assert "64 nodes x 8 h100-sxm-80gb = 512 devices" in summary
        assert "unit of 32 nodes (1:1 above)" in summary
        assert "1 node x 8" in check_spec("h100-x8")

    def test_a_file_goes_before_an_example(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "llama3-70b").write_text(changed(MODEL, "layers: 80", "layers: 2"))
        assert load_model("llama3-70b").shape.layers == 2

    def test_a_folder_does_not_hide_an_example(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "llama3-70b").mkdir()
        assert load_model("llama3-70b").shape.layers == 80

    def test_unknown_names(self):
        with pytest.raises(SpecError) as caught:
            load_model("llama-70b")
        message = str(caught.value)
        assert "no file and no example called 'llama-70b'" in message
        assert "did you mean llama3-70b" in message
        with pytest.raises(SpecError, match="this is a cluster file, and a model file is needed"):
            load_model("h100-x512")


class TestDefaults:
    def test_model(self, tmp_path):
        path = tmp_path / "My model.yaml"
        path.write_text(MODEL)
        shape = load_model(path).shape
        assert shape.name == "My-model"
        assert shape.head_dim == 128
        assert (shape.norm, shape.bias, shape.positions) == ("rmsnorm", False, "rope")
        assert (shape.flash_attention, shape.dropout, shape.vocab_multiple) == (True, False, 128)
        job = load_model(path).job
        assert (job.precision, job.optimizer, job.tokens) == ("bf16", "adam", 0)

    def test_plain_mlp_and_heads(self):
        text = {
            "layers": 2,
            "hidden": 64,
            "heads": 4,
            "gated": False,
            "vocab": 9,
            "tied": True,
            "moe": None,
            "mla": None,
            "mtp_layers": 0,
        }
        given = model_from_dict({"model": text, "training": {"seq_len": 8, "global_batch": 1e3}})
        assert (given.shape.ffn, given.shape.kv_heads) == (256, 4)
        assert given.job.global_batch == 1000
        assert given.shape.name == "model"
        assert "moe" not in given.document["model"]

    def test_experts(self, tmp_path):
        path = tmp_path / "m.yaml"
        path.write_text(moe("experts: 8, topk: 2, shared_experts: 2, routing_groups: 4"))
        shape = load_model(path).shape
        assert (shape.n_experts, shape.top_k, shape.expert_ffn) == (8, 2, 28672)
        assert (shape.shared_ffn, shape.top_groups, shape.n_expert_layers) == (2 * 28672, 4, 80)
        assert (shape.imbalance, shape.capacity_factor) == (1.0, 0.0)

    def test_an_expert_model_needs_no_ffn_and_a_partly_dense_one_does(self, tmp_path):
        path = tmp_path / "m.yaml"
        text = without(moe("experts: 8, topk: 2, moe_ffn: 96"), "ffn: 28672")
        path.write_text(text)
        assert load_model(path).shape.ffn == 96
        path.write_text(changed(text, "moe_ffn: 96", "moe_ffn: 96, dense_layers: 1"))
        with pytest.raises(SpecError, match=r"model\.ffn: is missing"):
            load_model(path)

    def test_latent_attention(self):
        shape = load_model("deepseek-v3").shape
        assert shape == DEEPSEEK_V3
        assert (shape.head_dim, shape.kv_heads, shape.v_width) == (192, 128, 128 * 128)

    def test_cluster(self):
        given = cluster_from_dict({"pools": [{"accelerator": "H100", "nodes": 2}]})
        pool = given.cluster.pools[0]
        assert pool.accelerator.name == pool.name == "h100-sxm-80gb"
        assert (pool.devices_per_node, pool.scale_up_domain, pool.nics_per_node) == (8, 8, 8)
        assert pool.nic.name == "ib-ndr-400"
        assert pool.memory_margin_bytes == 2 * 2**30
        assert given.cluster.fabric.tiers == ()
        assert given.cluster.fabric.rail_optimized
        assert given.document["pools"][0]["accelerator"] == "h100-sxm-80gb"

    @pytest.mark.parametrize(
        ("accelerator", "nic", "n_nics"),
        [
            ("a100", "ib-hdr-200", 8),
            ("b200-sxm-180gb", "ib-ndr-400", 8),
            ("v100", "ib-edr-100", 4),
        ],
    )
    def test_the_port_is_that_of_the_usual_platform(self, accelerator, nic, n_nics):
        given = cluster_from_dict({"pools": [{"accelerator": accelerator, "nodes": 2}]})
        pool = given.cluster.pools[0]
        assert (pool.nic.name, pool.nics_per_node) == (nic, n_nics)

    def test_the_domain_is_at_most_a_node(self):
        pool = {"accelerator": "h100", "nodes": 2, "accelerators_per_node": 4}
        assert cluster_from_dict({"pools": [pool]}).cluster.pools[0].scale_up_domain == 4

    @pytest.mark.parametrize(
        ("accelerator", "nodes", "per_node", "domain"),
        [
            ("gb200", 144, 4, 72),
            ("gb300", 18, 4, 72),
            ("gb200", 9, 4, 36),  # half a rack
            ("gb200", 20, 4, 72),  # a rack and two trays of the next
            ("h100", 9, 8, 8),
            ("mi300x", 2, 8, 8),
            ("mi455x", 18, 4, 72),
        ],
    )
    def test_racks_join_nodes(self, accelerator, nodes, per_node, domain):
        given = cluster_from_dict({"pools": [{"accelerator": accelerator, "nodes": nodes}]})
        pool = given.cluster.pools[0]
        assert (pool.devices_per_node, pool.scale_up_domain) == (per_node, domain)

    def test_a_part_of_a_rack_in_boxes_of_eight_is_taken_at_its_word(self):
        pool = {"accelerator": "gb200", "nodes": 2, "accelerators_per_node": 8}
        assert cluster_from_dict({"pools": [pool]}).cluster.pools[0].scale_up_domain == 16

    def test_port_speed(self):
        pool = {"accelerator": "h100", "nodes": 2, "nic_speed": "200 Gb/s"}
        assert cluster_from_dict({"pools": [pool]}).cluster.pools[0].nic.bytes_per_s == 25 * GB

    def test_every_catalogue_accelerator_makes_a_cluster(self):
        for name in load_catalogue().names():
            pool = {"accelerator": {"like": name, "scale_up_bandwidth": "100 GB/s"}, "nodes": 2}
            given = cluster_from_dict({"pools": [pool]})
            assert given.cluster.pools[0].accelerator.scale_up_bytes_per_s == 100 * GB


def pool_of(**fields):
    return cluster_from_dict({"pools": [fields]}).cluster.pools[0]


class TestInstances:
    @pytest.mark.parametrize(
        ("name", "accelerator", "per_node", "ports", "nic", "gb_per_s"),
        [
            ("p5.48xlarge", "h100-sxm-80gb", 8, 32, "efa-100", 50),
            ("p5e.48xlarge", "h200-sxm-141gb", 8, 32, "efa-100", 50),
            ("p5en.48xlarge", "h200-sxm-141gb", 8, 16, "efa-200", 50),
            ("p6-b200.48xlarge", "b200-sxm-180gb", 8, 8, "efa-400", 50),
            ("p6-b300.48xlarge", "b300-sxm-288gb", 8, 16, "efa-400", 100),
            ("p6e-gb200.36xlarge", "gb200-186gb", 4, 8, "efa-400", 100),
            ("p4d.24xlarge", "a100-sxm-40gb", 8, 4, "efa-100", 6.25),
            ("a2-ultragpu-8g", "a100-sxm-80gb", 8, 1, "tcp-100", 1.5625),
            ("a3-highgpu-8g", "h100-sxm-80gb", 8, 4, "tcpx-200", 12.5),
            ("a3-megagpu-8g", "h100-sxm-80gb", 8, 8, "tcpx-200", 25),
            ("a4-highgpu-8g", "b200-sxm-180gb", 8, 8, "roce-400", 50),
            ("A4X", "gb200-186gb", 4, 4, "roce-400", 50),
            ("Standard_ND96isr_MI300X_v5", "mi300x-192gb", 8, 8, "ib-ndr-400", 50),
            ("nd-gb300-v6", "gb300-288gb", 4, 4, "ib-xdr-800", 100),
            ("BM.GPU.H100.8", "h100-sxm-80gb", 8, 8, "roce-400", 50),
            ("dgx-a100", "a100-sxm-80gb", 8, 8, "ib-hdr-200", 25),
        ],
    )
    def test_an_instance_says_the_node(self, name, accelerator, per_node, ports, nic, gb_per_s):
        pool = pool_of(instance=name, nodes=2)
        assert pool.accelerator.name == pool.name == accelerator
        assert (pool.devices_per_node, pool.nics_per_node) == (per_node, ports)
        assert pool.nic.name == nic
        nominal = pool.nic.bytes_per_s * pool.nics_per_node / pool.devices_per_node
        assert nominal == pytest.approx(gb_per_s * GB)

    def test_it_is_the_same_as_its_parts_spelled_out(self):
        spelled = {
            "accelerator": "h200",
            "nodes": 16,
            "nic": "efa-100",
            "nics_per_node": 32,
        }
        instance = cluster_from_dict({"pools": [{"instance": "p5e", "nodes": 16}]})
        assert cluster_from_dict({"pools": [spelled]}).document == instance.document

    def test_racks_of_an_instance(self):
        assert pool_of(instance="p6e-gb200", nodes=36).scale_up_domain == 72

    def test_ports_may_be_fewer_than_the_instance_has(self):
        assert pool_of(instance="p5.48xlarge", nodes=2, nics_per_node=16).nics_per_node == 16

    def test_ports_without_a_second_source_are_listed(self):
        given = cluster_from_dict({"pools": [{"instance": "bm.gpu.h100.8", "nodes": 2}]})
        assert "bm.gpu.h100.8.nics_per_node" in given.assumed
        given = cluster_from_dict({"pools": [{"instance": "p5", "nodes": 2}]})
        assert not [figure for figure in given.assumed if figure.startswith("p5")]

    def test_every_platform_makes_a_cluster(self):
        for name, platform in load_catalogue().platforms.items():
            pool = pool_of(instance=name, nodes=2)
            assert pool.accelerator.name == platform.accelerator


class TestFreeNodes:
    def test_free_nodes(self):
        given = cluster_from_dict(
            {"pools": [{"accelerator": "h100", "nodes": 64, "free_nodes": 48}]}
        )
        assert given.cluster.pools[0].n_devices == 384
        assert given.document["pools"][0]["nodes"] == 48
        assert cluster_from_dict(given.document).cluster == given.cluster

    def test_only_whole_nodes_count(self):
        pool = pool_of(accelerator="h100", nodes=4, free_devices=[8, 8, 4, 0])
        assert (pool.n_nodes, pool.devices_per_node, pool.nics_per_node) == (2, 8, 8)

    @pytest.mark.parametrize(
        ("free", "nodes", "devices"),
        [
            ([8, 8, 4, 0], 2, 8),  # 16 devices in two whole nodes beat 12 in three halves
            ([8, 4, 4, 4], 4, 4),  # 16 in four halves beat 8 in one node
            ([4, 4, 4, 4], 4, 4),
            ([8, 8, 8, 7], 4, 7),  # 28 of seven beat 24
            ([8, 4, 0, 0], 1, 8),  # equal totals: the whole node
        ],
    )
    def test_partial_nodes(self, free, nodes, devices):
        pool = pool_of(accelerator="h100", nodes=4, free_devices=free, partial_nodes=True)
        assert (pool.n_nodes, pool.devices_per_node) == (nodes, devices)
        assert pool.scale_up_domain == devices
        # Every device keeps its own port.
        assert pool.nic_bytes_per_s == pytest.approx(50 * GB * 0.97)

    def test_free_trays_fill_racks_from_the_first(self):
        assert pool_of(accelerator="gb200", nodes=36, free_nodes=9).scale_up_domain == 36
        assert pool_of(accelerator="gb200", nodes=36, free_nodes=20).scale_up_domain == 72


class TestSums:
    def test_the_fabric_sums(self):
        fabric = {"sharp": True, "tiers": [{"name": "unit", "nodes": 2}]}
        given = cluster_from_dict(
            {"pools": [{"accelerator": "h100", "nodes": 4}], "fabric": fabric}
        )
        assert given.cluster.pools[0].n_summing_tiers == 2
        again = cluster_from_dict(given.document)
        assert (again.cluster, again.document) == (given.cluster, given.document)

    def test_what_is_not_set_is_not_in_the_document(self):
        assert "sharp" not in json.dumps(load_cluster("h100-x512").document)


class TestInlineAccelerator:
    inline = {  # noqa: RUF012
        "like": "h100",
        "name": "h100-wide",
        "memory": "141 GB",
        "hbm_bandwidth": "4.8 TB/s",
        "peaks": {"bf16": "500 TFLOP/s"},
        "scale_up_bandwidth": "225 GB/s",
    }

    def test_stated_figures_replace_those_of_the_catalogue(self):
        given = cluster_from_dict({"pools": [{"accelerator": self.inline, "nodes": 2}]})
        part, base = given.cluster.pools[0].accelerator, load_catalogue().accelerator("h100")
        assert part.name == "h100-wide"
        assert (part.memory_bytes, part.hbm_bytes_per_s) == (141e9, 4.8e12)
        assert part.peak_flops_per_s == {**base.peak_flops_per_s, "bf16": 5e14}
        assert part.ring_bytes_per_s == base.ring_bytes_per_s / 2
        assert part.n_sms == base.n_sms
        again = cluster_from_dict(given.document)
        assert again.cluster == given.cluster
        assert again.document == given.document

    def test_nothing_stated_is_the_catalogue_entry_under_another_name(self):
        given = cluster_from_dict({"pools": [{"accelerator": {"like": "h100"}, "nodes": 2}]})
        part = given.cluster.pools[0].accelerator
        base = load_catalogue().accelerator("h100")
        assert dataclasses.replace(part, name=base.name) == base
        assert part.name == "h100-sxm-80gb-custom"

    def test_what_the_file_states_is_not_assumed(self):
        names = load_catalogue().names()
        part = next(
            p
            for p in map(load_catalogue().accelerator, names)
            if p.provenance["hbm_bytes_per_s"].status == "assumed"
        )
        plain = cluster_from_dict({"pools": [{"accelerator": part.name, "nodes": 1}]})
        assert f"{part.name}.hbm_bytes_per_s" in plain.assumed
        inline = {"like": part.name, "name": part.name, "hbm_bandwidth": "1 TB/s"}
        stated = cluster_from_dict({"pools": [{"accelerator": inline, "nodes": 1}]})
        assert set(plain.assumed) - set(stated.assumed) == {f"{part.name}.hbm_bytes_per_s"}


MLA = "kv_rank: 512, qk_nope: 128, qk_rope: 64, v_head: 128"


def moe(fields):
    return changed(MODEL, "  tied: false", f"  tied: false\n  moe: {{{fields}}}")


MODEL_FAULTS = [
    (
        changed(MODEL, "layers", "n_layers"),
        ["m.yaml:2:3: model.n_layers: unknown key 'n_layers'", "did you mean `layers`?"],
    ),
    (changed(MODEL, "hidden:", "hidden_size:"), ["m.yaml:3:3", "did you mean `hidden`?"]),
    (changed(MODEL, "heads:", "num_attention_heads:"), ["m.yaml:4:3", "did you mean `heads`?"]),
    (changed(MODEL, "vocab:", "vocabb:"), ["m.yaml:8:3", "did you mean `vocab`?"]),
    (
        changed(MODEL, "  tied: false", "  tied: false\n  zzz: 1"),
        ["m.yaml:10:3: model.zzz: unknown key 'zzz'", "keys here: name, layers, hidden"],
    ),
    (
        changed(MODEL, "  tied: false", "  tied: false\n  seq_length: 1"),
        ["m.yaml:10:3", "`seq_len` belongs under `training:`"],
    ),
    (
        changed(MODEL, "  tied: false", "  tied: false\n  num_local_experts: 8"),
        [
            "m.yaml:10:3: model.num_local_experts: unknown key 'num_local_experts'",
            "`experts` belongs under `model.moe:`",
        ],
    ),
    (
        changed(MODEL, "  tied: false", "  tied: false\n  kv_lora_rank: 512"),
        ["m.yaml:10:3", "`kv_rank` belongs under `model.mla:`"],
    ),
    (
        changed(MODEL, "  tied: false", "  tied: false\n  moe: {experts: 8}"),
        ["m.yaml:10:3: model.moe.topk: is missing", "add `topk:`"],
    ),
    (
        moe("experts: 8, topk: 9"),
        ["m.yaml:10:27: model.moe.topk: 9 experts a token of 8", "give at most 8"],
    ),
    (
        moe("experts: 8, topk: 2, dense_layers: 80"),
        ["model.moe.dense_layers: no layer has experts: the first would be layer 81 of 80"],
    ),
    (moe("experts: 8, topk: 2, every: 81"), ["model.moe.every: no layer has experts"]),
    (
        moe("experts: 8, topk: 2, routing_groups: 3"),
        ["model.moe.routing_groups: 8 experts cannot be shared out over 3 groups"],
    ),
    (moe("experts: 8, topk: 2, routing_groups: 4, top_groups: 5"), ["top_groups: 5 groups of 4"]),
    (
        moe("experts: 8, topk: 3, routing_groups: 4, top_groups: 1"),
        ["top_groups: 1 groups hold 2 experts, fewer than topk 3"],
    ),
    (moe("experts: 8, topk: 2, imbalance: 0.9"), ["model.moe.imbalance: 0.9 is out of range"]),
    (moe("experts: 8, topk: 2, imbalance: 1.2, capacity_factor: 1"), ["keep one of them"]),
    (moe("experts: 8, topk: 2, imbalance: 1.2, forced_balance: true"), ["keep one of them"]),
    (moe("experts: 8, topk: 2, capacity_factor: 0.5"), ["give 1 or more, or 0 for dropless"]),
    (moe("experts: 8, topk: 2, shared_experts: 1, shared_ffn: 0"), ["shared experts of width 0"]),
    (moe("experts: 8, topk: 2, z: 1"), ["unknown key 'z'", "keys here: experts, topk, moe_ffn"]),
    (
        changed(MODEL, "  tied: false", "  tied: false\n  mla: true"),
        ["m.yaml:10:8: model.mla: expected a section"],
    ),
    (
        changed(MODEL, "  tied: false", f"  tied: false\n  mla: {{{MLA}}}"),
        ["m.yaml:5:13: model.kv_heads: stands beside `mla`", "leave it out"],
    ),
    (
        changed(
            without(MODEL, "kv_heads: 8"),
            "  tied: false",
            f"  tied: false\n  bias: true\n  flash_attention: false\n  mla: {{{MLA}}}",
        ),
        ["model.bias: latent attention with biases", "model.flash_attention: latent attention"],
    ),
    (
        changed(MODEL, "  tied: false", "  tied: false\n  mtp_layers: -1"),
        ["m.yaml:10:15: model.mtp_layers: must be at least 0"],
    ),
    (
        changed(MODEL, "  tied: false", "  tied: false\n  positions: learned\n  mtp_layers: 1"),
        ["model.positions: multi-token prediction needs rotary positions"],
    ),
    (
        changed(MODEL, "layers: 80", "layers: '80'"),
        [
            "m.yaml:2:11: model.layers: expected a whole number, got the text '80'",
            "write 80 without quotes",
        ],
    ),
    (changed(MODEL, "layers: 80", "layers: eighty"), ["got the text 'eighty'", "in digits"]),
    (changed(MODEL, "layers: 80", "layers: true"), ["expected a whole number, got true"]),
    (changed(MODEL, "layers: 80", "layers: 80.5"), ["expected a whole number, got 80.5"]),
    (changed(MODEL, "layers: 80", "layers:"), ["m.yaml:2", "expected a whole number, got null"]),
    (changed(MODEL, "layers: 80", "layers: 0"), ["m.yaml:2:11", "must be at least 1, got 0"]),
    (changed(MODEL, "layers: 80", "layers: -3"), ["must be at least 1, got -3"]),
    (changed(MODEL, "layers: 80", "layers: 80000"), ["must be at most 10000, got 80000"]),
    (changed(MODEL, "hidden: 8192", "hidden: 1e300"), ["must be at most 1e+07"]),
    (changed(MODEL, "hidden: 8192", "hidden: .inf"), ["expected a whole number, got inf"]),
    (
        changed(MODEL, "hidden: 8192", "hidden: 8_193"),
        ["m.yaml:4:10: model.heads: hidden 8193 is not a multiple of heads 64", "head_dim"],
    ),
    (
        changed(MODEL, "kv_heads: 8", "kv_heads: 7"),
        ["m.yaml:5:13: model.kv_heads: 64 heads cannot be shared out over 7", "must divide"],
    ),
    (without(MODEL, "ffn: 28672"), ["m.yaml:1:1: model.ffn: is missing", "intermediate_size"]),
    (without(MODEL, "gated: true"), ["m.yaml:1:1: model.gated: is missing", "add `gated:`"]),
    (
        changed(MODEL, "gated: true", "gated: yes"),
        ["m.yaml:7:10: model.gated: expected true or false, got 'yes'", "write true"],
    ),
    (changed(MODEL, "gated: true", "gated: 1"), ["expected true or false, got 1", "write true"]),
    (changed(MODEL, "gated: true", "gated: null"), ["expected true or false, got null"]),
    (changed(MODEL, "seq_len: 8192", "seq_len: 0"), ["m.yaml:11:12", "must be at least 1, got 0"]),
    (changed(MODEL, "global_batch: 1024", "global_batch: 2k"), ["m.yaml:12:17", "the text '2k'"]),
    (
        MODEL + "  precision: bf61\n",
        ["m.yaml:13:14: training.precision: unknown value 'bf61'", "did you mean bf16?"],
    ),
    (MODEL + "  optimizer: lamb\n", ["m.yaml:13:14", "unknown value 'lamb'", "allowed: adam"]),
    (
        MODEL + "  optimizer: adam\n  muon: {tp_mode: distributed}\n",
        ["m.yaml:14:9", "options with optimizer adam: they are of muon alone"],
    ),
    (
        MODEL + "  optimizer: muon\n  muon: {tp_mode: split}\n",
        ["m.yaml:14:19", "unknown value 'split'", "allowed: duplicated"],
    ),
    (
        MODEL + "  optimizer: muon\n  muon: {num_ns_steps: 0}\n",
        ["m.yaml:14:24", "must be at least 1, got 0"],
    ),
    (MODEL + "  tokens: -1\n", ["m.yaml:13:11", "-1 is out of range"]),
    (MODEL + "  tokens: 15 trillion\n", ["unknown unit 'trillion'"]),
    (MODEL + "  tokens: 1e3\n", ["m.yaml:13:11", "less than one step"]),
    (
        MODEL.replace("model:\n", "model:\n  positions: learned\n  max_positions: 2048\n"),
        ["m.yaml:3:18", "2048 learned positions are fewer than seq_len 8192"],
    ),
    (
        MODEL.replace("model:\n", "model:\n  padded_vocab: 1000\n"),
        ["m.yaml:2:17", "1000 is smaller than vocab 128256"],
    ),
    (MODEL.replace("model:\n", "model:\n  name: rm -rf $HOME\n"), ["m.yaml:2:9", "is not a name"]),
    (MODEL.replace("model:\n", "model:\n  name: 405\n"), ["expected a name, got 405", "'405'"]),
    (MODEL.replace("model:\n", "model:\n  norm: layer\n"), ["did you mean layernorm?"]),
    (MODEL + "pools: []\n", ["m.yaml:13:1: pools: 'pools' belongs in a cluster file"]),
    ("model: 3\ntraining: []\n", ["m.yaml:1:8: model: expected a section with keys"]),
    (MODEL.split("training")[0], ["m.yaml:1:1: training: is missing", "add `training:`"]),
    (
        MODEL.replace("model:\n", "").split("training")[0].replace("  ", ""),
        ["there is no `model:`, but keys that belong under it", "put them under `model:`"],
    ),
    ("- 1\n", ["m.yaml:1:1: expected a model file with `model:` at the top, got a list"]),
    ("hello\n", ["got 'hello'"]),
    (CLUSTER, ["m.yaml:1:1: this is a cluster file, and a model file is needed here"]),
    (changed(MODEL, "heads: 64", "heads: 64\n  heads: 64"), ["m.yaml:5:3", "already on line 4"]),
]


@pytest.mark.parametrize(("text", "parts"), MODEL_FAULTS)
def test_wrong_model_files(tmp_path, text, parts):
    message = refusal(load_model, tmp_path, text, "m.yaml")
    for part in parts:
        assert part in message


INLINE = "{like: h100, memory: 80 GiB}"
CLUSTER_FAULTS = [
    (
        changed(CLUSTER, "h100-sxm-80gb", "h1000-sxm-80gb"),
        [
            "c.yaml:2:18: pools.0.accelerator: unknown accelerator 'h1000-sxm-80gb'",
            "did you mean h100-sxm-80gb",
            "`planner catalog list`",
        ],
    ),
    (
        changed(CLUSTER, "h100-sxm-80gb", "{like: h1000}"),
        ["c.yaml:2:25: pools.0.accelerator.like: unknown accelerator 'h1000'"],
    ),
    (
        changed(CLUSTER, "h100-sxm-80gb", "{memory: 80 GiB}"),
        ["c.yaml:2:5: pools.0.accelerator.like: is missing", "add `like:`"],
    ),
    (
        changed(CLUSTER, "h100-sxm-80gb", "{like: h100, memory: 80}"),
        ["c.yaml:2:39: pools.0.accelerator.memory: 80 has no unit", "80 GiB or 80 GB"],
    ),
    (
        changed(CLUSTER, "h100-sxm-80gb", "{like: h100, name: x, name2: y}"),
        ["c.yaml:2:40: pools.0.accelerator.name2: unknown key", "did you mean `name`?"],
    ),
    (
        changed(CLUSTER, "h100-sxm-80gb", "{like: h100, name: 5}"),
        ["c.yaml:2:37: pools.0.accelerator.name: expected a name, got 5"],
    ),
    (
        changed(CLUSTER, "h100-sxm-80gb", "{like: h100, peaks: {bf61: 1 TFLOP/s}}"),
        ["pools.0.accelerator.peaks.bf61: unknown value 'bf61'", "did you mean bf16?"],
    ),
    (changed(CLUSTER, "h100-sxm-80gb", "[h100]"), ["pools.0.accelerator: expected a name"]),
    (changed(CLUSTER, "    nodes: 64\n", ""), ["c.yaml:2:5: pools.0.nodes: is missing"]),
    (changed(CLUSTER, "nodes: 64", "num_nodes: 64"), ["c.yaml:3:5", "did you mean `nodes`?"]),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 64\n    gpus_per_node: 8"),
        ["c.yaml:4:5", "did you mean `accelerators_per_node`?"],
    ),
    (changed(CLUSTER, "nodes: 64", "nodes: -64"), ["c.yaml:3:12", "at least 1, got -64"]),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 64\n    scale_up_domain: 3"),
        ["c.yaml:4:22: pools.0.scale_up_domain: a domain of 3 devices does not divide nodes of 8"],
    ),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 64\n    scale_up_domain: 1024"),
        ["c.yaml:4:22", "only 512 in the pool", "at most 512"],
    ),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 64\n    accelerators_per_node: 12"),
        ["pools.0.scale_up_domain: a domain of 8 devices does not divide nodes of 12"],
    ),
    (
        changed(CLUSTER, "ib-ndr-400", "ib-ndr-4000"),
        ["c.yaml:4:10", "unknown link 'ib-ndr-4000'", "did you mean ib-ndr-400"],
    ),
    (changed(CLUSTER, "ib-ndr-400", "nvlink4"), ["nvlink4 is a link inside a node"]),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 64\n    nic_speed: 400gb"),
        ["c.yaml:4:16", "case matters", "400 Gb/s (bits)"],
    ),
    (changed(CLUSTER, "nodes: 64", "nodes: 64\n    nic_speed: 4 b/s"), ["out of range", "1 MB/s"]),
    (changed(CLUSTER, "nodes: 64", "nodes: 64\n    memory_margin: 4"), ["4 GiB or 4 GB"]),
    (changed(CLUSTER, "nodes: 64", "nodes: 64\n    memory_margin: -4 GiB"), ["out of range"]),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 64\n    memory_margin: 100 GiB"),
        ["c.yaml:4:20: pools.0.memory_margin: 100.0 GiB leave nothing of 79.6 GiB"],
    ),
    (
        changed(CLUSTER, "fabric:", "  - {accelerator: h100, nodes: 2}\nfabric:"),
        ["c.yaml:5:5: pools.1: a second pool named 'h100-sxm-80gb'", "its own `name:`"],
    ),
    (
        changed(CLUSTER, "fabric:", "  - {name: b, accelerator: h101, nodes: 2}\nfabric:"),
        ["c.yaml:5:28: pools.1.accelerator: unknown accelerator 'h101'"],
    ),
    (
        changed(
            CLUSTER, "fabric:", "  - {name: b, accelerator: h100, nodes: 2, nic: pcie5}\nfabric:"
        ),
        ["c.yaml:5:49: pools.1.nic: pcie5 is a link inside a node"],
    ),
    (
        changed(
            CLUSTER,
            "h100-sxm-80gb\n    nodes: 64",
            "gb200\n    nodes: 36\n    scale_up_domain: 70",
        ),
        [
            "c.yaml:4:22: pools.0.scale_up_domain: a domain of 70 devices does not "
            "divide nodes of 4"
        ],
    ),
    (
        changed(CLUSTER, "accelerator: h100-sxm-80gb", "name: x"),
        ["c.yaml:2:5: pools.0.accelerator: is missing", "or `instance:`"],
    ),
    (
        changed(CLUSTER, "h100-sxm-80gb", "h100\n    instance: p5.48xlarge"),
        ["c.yaml:3:15: pools.0.instance: stands beside `accelerator`", "keep one of them"],
    ),
    (
        changed(CLUSTER, "accelerator: h100-sxm-80gb", "instance: p5.24xlarge"),
        [
            "c.yaml:2:15: pools.0.instance: unknown instance 'p5.24xlarge'",
            "did you mean p5.48xlarge",
        ],
    ),
    (
        changed(CLUSTER, "accelerator: h100-sxm-80gb", "instance_type: p5.48xlarge"),
        ["c.yaml:2:5", "did you mean `instance`?"],
    ),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 64\n    free_nodes: 65"),
        ["c.yaml:4:17: pools.0.free_nodes: 65 free nodes of 64", "at most `nodes`"],
    ),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 2\n    free_devices: [8]"),
        ["c.yaml:4:19: pools.0.free_devices: 1 numbers for 2 nodes"],
    ),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 2\n    free_devices: [8, 9]"),
        ["c.yaml:4:23: pools.0.free_devices.1: 9 free devices in a node of 8"],
    ),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 2\n    free_devices: [4, 0]"),
        ["c.yaml:4:19: pools.0.free_devices: no node is free", "partial_nodes: true"],
    ),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 2\n    free_nodes: 1\n    free_devices: [8, 8]"),
        ["c.yaml:4:17: pools.0.free_nodes: stands beside `free_devices`"],
    ),
    (
        changed(CLUSTER, "nodes: 64", "nodes: 64\n    partial_nodes: true"),
        ["c.yaml:4:20: pools.0.partial_nodes: needs `free_devices`"],
    ),
    (
        changed(CLUSTER, "h100-sxm-80gb", "gb200").replace("nodes: 32", "nodes: 16"),
        ["c.yaml:8:14: fabric.tiers.0.nodes: 16 nodes of tier 'unit' lie in a domain of 18 nodes"],
    ),
    (
        changed(
            changed(CLUSTER, "ib-ndr-400", "roce-400"), "fabric:\n", "fabric:\n  sharp: true\n"
        ),
        ["c.yaml:6:10: fabric.sharp: switches of a roce-400 network do not sum"],
    ),
    (
        changed(CLUSTER, "oversubscription: 2:1", "sharp: true"),
        [
            "c.yaml:11:14: fabric.tiers.1.sharp: the switches of 'hall' sum, those of "
            "'unit' below do"
        ],
    ),
    ("pools: []\n", ["c.yaml:1:8: pools: expected at least 1 item"]),
    ("pools: {accelerator: h100, nodes: 1}\n", ["pools: expected a list", "got a mapping"]),
    (changed(CLUSTER, "2:1", "0.5"), ["c.yaml:11:25", "is not an oversubscription", "7:1"]),
    (changed(CLUSTER, "2:1", "none"), ["'none' is not"]),
    (changed(CLUSTER, "nodes: 32", "nodes: 128"), ["c.yaml:10:14", "not more than the 128"]),
    (changed(CLUSTER, "nodes: 32", "nodes: 30"), ["c.yaml:10:14", "not a multiple of the 30"]),
    (changed(CLUSTER, "hall", "unit"), ["c.yaml:9:13", "a second tier named 'unit'"]),
    (changed(CLUSTER, "fabric:", "fabrik:"), ["c.yaml:5:1", "did you mean `fabric`?"]),
    (
        changed(CLUSTER, "fabric:\n", "fabric:\n  rail_optimised: true\n"),
        ["c.yaml:6:3", "did you mean `rail_optimized`?"],
    ),
    (
        MODEL,
        [
            "c.yaml:1:1: this is a model file, and a cluster file is needed here",
            "give the model first, then the cluster",
        ],
    ),
    ("accelerator: h100\nnodes: 4\n", ["there is no `pools:`", "as a list item"]),
]


@pytest.mark.parametrize(("text", "parts"), CLUSTER_FAULTS)
def test_wrong_cluster_files(tmp_path, text, parts):
    message = refusal(load_cluster, tmp_path, text, "c.yaml")
    for part in parts:
        assert part in message


def test_a_hugging_face_config_is_a_model_and_no_cluster():
    path = DATA / "hf-llama3-70b-config.json"
    given = load_model(path)
    assert (given.shape.layers, given.shape.kv_heads) == (80, 8)
    assert "Hugging Face config.json (llama), no problems found" in check_spec(path)
    with pytest.raises(SpecError, match="this is a model file, and a cluster file is needed"):
        load_cluster(path)


def test_all_problems_of_a_file_are_told_unknown_keys_first(tmp_path):
    text = MODEL.replace("layers: 80", "layers: x").replace("tied:", "teid:")
    message = refusal(load_model, tmp_path, text, "m.yaml")
    heads = [line for line in message.splitlines() if line.startswith("m.yaml")]
    assert [line.split(": ")[1] for line in heads] == ["model.teid", "model.tied", "model.layers"]


def test_a_renamed_key_is_one_problem(tmp_path):
    text = MODEL.replace("layers:", "num_hidden_layers:")
    assert "missing" not in refusal(load_model, tmp_path, text, "m.yaml")


def test_an_empty_name():
    with pytest.raises(SpecError, match="the name of the model file is empty"):
        load_model("")


class TestOverrides:
    def test_they_apply_before_the_checks(self):
        given = load_cluster("h100-x512", [("pools.0.nodes", "16"), ("pools.0.nodes", 32)])
        assert given.cluster.pools[0].n_nodes == 32
        assert given.document["pools"][0]["nodes"] == 32
        assert load_model("llama3-8b", [("training.tokens", "1T")]).job.tokens == 1e12

    def test_a_fabric_that_the_file_leaves_out(self):
        data = {"pools": [{"accelerator": "h100", "nodes": 2}]}
        given = cluster_from_dict(data, [("fabric.rail_optimized", "false")])
        assert not given.cluster.fabric.rail_optimized
        assert data == {"pools": [{"accelerator": "h100", "nodes": 2}]}

    @pytest.mark.parametrize(
        ("path", "value", "parts"),
        [
            ("pools.0.nodes", "many", ["--set pools.0.nodes=many: pools.0.nodes: expected a "]),
            (
                "pools.0.node",
                "4",
                ["--set pools.0.node=4: pools.0.node: unknown key", "did you mean `nodes`?"],
            ),
            ("pools.3.nodes", "4", ["--set pools.3.nodes=4", "a list of 1"]),
            ("pool.0.nodes", "4", ["keys there: name, pools, fabric", "did you mean pools?"]),
            ("pools.0.accelerator", "h1000", ["--set pools.0.accelerator=h1000", "unknown acc"]),
        ],
    )
    def test_problems_name_the_option(self, path, value, parts):
        with pytest.raises(SpecError) as caught:
            load_cluster("h100-x512", [(path, value)])
        for part in parts:
            assert part in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(
    st.sampled_from(["layers", "heads", "ffn", "gated", "moe", "name", "norm", "vocab", "x"]),
    VALUES,
)
def test_any_value_is_read_or_refused_model(key, value):
    model = {"layers": 2, "hidden": 64, "heads": 4, "gated": False, "vocab": 9, "tied": True}
    data = {"model": {**model, key: value}, "training": {"seq_len": 8, "global_batch": 8}}
    try:
        model_from_dict(data)
    except SpecError as error:
        assert str(error).startswith("model")  # noqa: PT017  the other outcome is no error


@given(
    st.sampled_from(["accelerator", "nodes", "nic", "nic_speed", "memory_margin", "name", "x"]),
    VALUES,
)
def test_any_value_is_read_or_refused_cluster(key, value):
    try:
        cluster_from_dict({"pools": [{"accelerator": "h100", "nodes": 2, key: value}]})
    except SpecError as error:
        assert str(error).startswith("pools")  # noqa: PT017
