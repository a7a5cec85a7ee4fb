#!/usr/bin/env python3
"""Run Hugging Face models as Accelerate shards them with FSDP2, under fake tensors. CPU only.

  replay_fsdp2.py CASES.jsonl [--out ANSWERS.jsonl]     # "-" reads standard input; a fork per case

A case: {"id", "plan": facts of an emitted file, "model": sizes, "job": {"seq_len", "precision"}},
sizes and plan under the planner's names. The model is built from transformers' own classes at its
full size, `fsdp2_apply_ac` and `fsdp2_prepare_model` of Accelerate recompute and shard it over a
pretended world, and optimizer steps run on tensors without memory. Attention is flash-attn's
kernel (`attn_implementation flash_attention_2`), of which only the saved tensors are there.
Micro-batches after the second repeat it and are not run.
"""

import argparse
import json
import os
import sys
import traceback
from types import SimpleNamespace

import counting
import recording
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

RUN_AT_MOST = 2
"""Micro-batches that really run; the others repeat the last of them."""
DTYPES = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}


def config_of(model, seq_len):
    """Return transformers' configuration of a model of these sizes."""
    import transformers as hf

    common = {
        "hidden_size": model["hidden"],
        "intermediate_size": model["ffn"] or model.get("expert_ffn", 0),
        "num_hidden_layers": model["layers"],
        "num_attention_heads": model["heads"],
        "num_key_value_heads": model["kv_heads"],
        "head_dim": model["head_dim"],
        "vocab_size": model["vocab"],
        "tie_word_embeddings": model["tied"],
        "max_position_embeddings": seq_len,
        "use_cache": False,
        "pad_token_id": None,
    }
    n_experts = model.get("n_experts", 0)
    if model.get("norm") == "layernorm":
        return hf.GPT2Config(
            n_embd=model["hidden"],
            n_layer=model["layers"],
            n_head=model["heads"],
            n_inner=model["ffn"],
            vocab_size=model["vocab"],
            n_positions=max(seq_len, model.get("max_positions", 0)),
            use_cache=False,
            tie_word_embeddings=model["tied"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    if model.get("kv_rank"):
        del common["head_dim"]
        return hf.DeepseekV3Config(
            **common | {"num_key_value_heads": model["heads"]},
            q_lora_rank=model["q_rank"] or None,
            kv_lora_rank=model["kv_rank"],
            qk_nope_head_dim=model["qk_nope"],
            qk_rope_head_dim=model["qk_rope"],
            v_head_dim=model["v_head"],
            n_routed_experts=max(n_experts, 1),
            num_experts_per_tok=model["top_k"],
            moe_intermediate_size=model["expert_ffn"] or 1,
            n_shared_experts=(
                max(1, model["shared_ffn"] // model["expert_ffn"]) if n_experts else 1
            ),
            first_k_dense_replace=model["dense_layers"] if n_experts else model["layers"],
            n_group=model["n_groups"],
            topk_group=model["top_groups"],
        )
    if n_experts and model.get("shared_ffn"):
        return hf.Qwen2MoeConfig(
            **common,
            num_experts=n_experts,
            num_experts_per_tok=model["top_k"],
            moe_intermediate_size=model["expert_ffn"],
            shared_expert_intermediate_size=model["shared_ffn"],
            mlp_only_layers=[i for i in range(model["layers"]) if not is_routed(model, i)],
        )
    if n_experts and not model.get("dense_layers") and model.get("moe_every", 1) == 1:
        return hf.MixtralConfig(
            **common | {"intermediate_size": model["expert_ffn"]},
            num_local_experts=n_experts,
            num_experts_per_tok=model["top_k"],
        )
    if n_experts:
        return hf.Qwen3MoeConfig(
            **common,
            num_experts=n_experts,
            num_experts_per_tok=model["top_k"],
            moe_intermediate_size=model["expert_ffn"],
            mlp_only_layers=[i for i in range(model["layers"]) if not is_routed(model, i)],
        )
    if not model.get("gated", True):
        return hf.NemotronConfig(**common)
    return hf.LlamaConfig(**common, attention_bias=model["bias"], mlp_bias=model["bias"])


def is_routed(model, layer):
    """Tell whether a layer has experts."""
    dense, every = model.get("dense_layers", 0), model.get("moe_every", 1)
    return layer >= dense and (layer - dense + 1) % every == 0


def flash_attention(module, query, key, value, attention_mask, **kwargs):
    """Run as transformers' flash_attention_2: tokens before heads, no keys repeated."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out, _ = recording.FlashAttention.apply(q, k, v)
    return out, None


def use_flash(config):
    """Let the model take the kernel above, without a mask."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("counted", flash_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("counted", lambda *args, **kwargs: None)
    config._attn_implementation = "counted"


def mesh_of(plan):
    """Return the mesh that FSDP2 shards over: replicas, then ranks of a ZeRO group."""
    from torch.distributed.device_mesh import init_device_mesh

    ranks = plan["dp"] * plan.get("cp", 1)
    shard = plan.get("shard") or ranks
    sizes = (ranks // shard, shard) if shard < ranks else (shard,)
    names = ("dp_replicate", "dp_shard_cp")[-len(sizes) :]
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def sharded(model, plan, precision, mesh):
    """Return the model as Accelerate's own code recomputes and wraps it."""
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_model

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=plan["zero"] == 3,
        auto_wrap_policy="transformer_based_wrap",
        activation_checkpointing=plan["recompute"] == "full" and plan["recompute_layers"] > 0,
        cpu_ram_efficient_loading=False,
    )
    if precision != "no":
        plugin.set_mixed_precision(precision)
    known = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        torch_device_mesh=mesh,
        parallelism_config=SimpleNamespace(fsdp_dim_names=mesh.mesh_dim_names),
        mixed_precision=precision,
        is_main_process=False,
        device=torch.device("cpu"),
    )
    plugin.set_auto_wrap_policy(model)
    if plugin.activation_checkpointing:
        model = fsdp2_apply_ac(known, model)
    return fsdp2_prepare_model(known, model)


def layers_of(model):
    """Return the layers of a transformers model."""
    base = model.base_model
    return list(getattr(base, "layers", None) or base.h)


def plan_of(case):
    """Return the plan of a case: the facts of an emitted file, or the fields of a layout."""
    plan = {"cp": 1, "tp": 1, "pp": 1, "sp": False} | (case.get("plan") or case["layout"])
    return plan | {"n_micro": plan.get("n_micro") or case["n_micro"]}


def replay(case):
    """Return the record of one case."""
    plan, sizes, job = plan_of(case), case["model"], case["job"]
    precision, notes = DTYPES[job["precision"]], []
    world = plan.get("n_devices", plan["dp"] * plan.get("cp", 1) * plan.get("tp", 1))
    if plan.get("tp", 1) > 1 or plan.get("cp", 1) > 1:
        raise ValueError(f"tp {plan.get('tp', 1)}, cp {plan.get('cp', 1)}: not replayed for FSDP2")
    recording.start_world(world, case.get("rank", 0))
    mesh = mesh_of(plan)
    recording.WHOLE["axis"] = "dp"
    kept, sent = recording.Kept(), recording.Collectives()
    with FakeTensorMode(allow_non_fake_inputs=True), sent:
        import transformers

        config = config_of(sizes, job["seq_len"])
        use_flash(config)
        model = transformers.AutoModelForCausalLM.from_config(config)
        n_params = sum(p.numel() for p in model.parameters())
        model = sharded(model, plan, precision, mesh)
        for layer in layers_of(model):
            kept.inside(layer, "layers")
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        counts, gradients = steps(model, optimizer, plan, job, kept, sent, precision)
        states, master = recording.state_bytes(model.parameters(), optimizer)
    collectives, control = counting.as_rows(counts)
    held = counting.weight_bytes(plan["zero"], n_params, master, precision != "no")
    return {
        "id": case["id"],
        "collectives": collectives,
        "control": control,
        "parameters": n_params,
        "parameters_sharded": sum(recording.local(p).numel() for p in model.parameters()),
        "gradient_bytes": gradients,
        "parameter_bytes": held,
        "optimizer_bytes": states + (master if precision != "no" else 0),
        "kept_activation_bytes": round(kept.peak.get("layers", 0)),
        "kept_head_bytes": round(kept.peak.get("ends", 0)),
        "notes": [*notes, f"model class {type(model).__mro__[1].__name__}"],
        "saved": saved_rows(kept) if case.get("explain") else [],
    }


def saved_rows(kept):
    """Return what was saved, by part, shape and type, for reading."""
    return [[*map(str, key), n] for key, n in sorted(kept.seen.items(), key=str)]


def steps(model, optimizer, plan, job, kept, sent, precision):
    """Run one optimizer step; return the counts of all its micro-batches and gradient bytes."""
    ids = torch.zeros((plan["mbs"], job["seq_len"] // plan.get("cp", 1)), dtype=torch.long)
    n_run, marks = min(RUN_AT_MOST, plan["n_micro"]), []
    cast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    for i in range(n_run):
        marks.append(sent.counts())
        context = kept.recording() if not i else torch.enable_grad()
        with context, torch.autocast("cpu", dtype=cast, enabled=cast is not None):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        del loss
    done = sent.counts()
    counts = counting.repeated(marks[-1], done, plan["n_micro"] - n_run)
    held = [p.grad for p in model.parameters() if p.grad is not None]
    gradients = sum(recording.n_bytes(recording.local(g)) for g in held)
    optimizer.step()
    return counting.added(counts, done, sent.counts()), gradients


def replay_safely(work, case):
    """Return the record of a case, or what went wrong."""
    try:
        return work(case)
    except Exception as e:
        frames = traceback.extract_tb(e.__traceback__)
        where = [
            f"{f.filename.rpartition('site-packages/')[2]}:{f.lineno} {f.name}" for f in frames
        ]
        return {"id": case.get("id"), "error": f"{type(e).__name__}: {e}"[:2000], "where": where}


def forked(case, work):
    """Return what a child process makes of a case: worlds are formed once a process."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        # A fork leaves the pool broken; two threads of autograd would race to mend it.
        torch.set_num_threads(1)
        with os.fdopen(write, "w") as pipe:
            pipe.write(json.dumps(work(case)))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"id": case.get("id"), "error": "the process died"}


def main(work, doc):
    """Answer every case of a file."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases")
    parser.add_argument("--out")
    options = parser.parse_args()
    with (
        sys.stdin if options.cases == "-" else open(options.cases) as lines,
        open(options.out, "w") if options.out else sys.stdout as out,
    ):
        for line in lines:
            if line.strip():
                print(json.dumps(forked(json.loads(line), work)), file=out, flush=True)
    return 0


def import_all():
    """Import what every case needs once, before processes are forked."""
    import accelerate.utils.fsdp_utils
    import transformers

    _ = accelerate.utils.fsdp_utils
    for name in ("Llama", "Mixtral", "Qwen2Moe", "Qwen3Moe", "DeepseekV3", "GPT2", "Nemotron"):
        getattr(transformers, f"{name}ForCausalLM" if name != "GPT2" else "GPT2LMHeadModel")


if __name__ == "__main__":
    import_all()
    sys.exit(main(lambda case: replay_safely(replay, case), __doc__))
