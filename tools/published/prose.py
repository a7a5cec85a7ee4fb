"""What docs/published.md says beside its tables."""

INTRO = """# Published settings

Settings that frameworks publish for AMD's and Huawei's accelerators and for TPUs, each judged by
[`planner check`](check.md) and set beside the best plan that the same search finds: same model,
sequence, batch, precision, framework and devices. `scripts/published_settings` makes the rows
(`tools/published/kept.json`) of checkouts: {commits}.

**A ratio is one modelled step over another.** Only configurations were read, no figure that
somebody measured, and neither plan was timed.

- *GB of* is the predicted peak of the published plan and the usable memory of a device. *no*: it
  does not fit by our model; *?*: it keeps something off the device that has no price, and how
  much is left is not known.
- *step s* has the 80 % interval in brackets.
- *place* counts the plans of the same search that fit and are faster, by the closed form. A
  layout *outside* is not itself among them, and why is said.
- *ours* names the axes by which our best plan differs. A ratio just below 1 is a tie: of plans
  within the margin the one that leaves 5 % of memory free comes first.
- \\* after a part: the example names no number of devices. It is judged on the fewest of 8 to
  2,048 on which the rules hold and it fits, or on which the rules hold where it fits on none.
"""

SECTIONS = {
    "Primus": """
All experiments that pretrain with Megatron-LM on the newest part
(`examples/megatron/configs/MI355X/*-pretrain.yaml`). `${NAME:default}` is taken at its default, so
Kimi K2 in FP8 and Llama 4 stand with the pipeline of 1 that they write, in which they fit on no
number of devices (Llama 4 Scout misses by a tenth). Primus's DeepEP is priced with the buffers of
NVIDIA's kernels. Layers that DeepSeek-V3 names one by one for recomputation are spread over the
stages.
""",
    "MindSpeed-LLM": """
All scripts of `examples/mcore` that pretrain, on `NNODES` times `NPUS_PER_NODE` devices: 16 a node
are Atlas 900 A3, 8 are Atlas 800T A2. Qwen3-480B is the one that is clearly faster than our best:
`--noop-layers 0,63` gives 62 layers to 32 virtual stages, and our search does not use layers that
do nothing. GLM-4.5-Air is three times slower than ours: its batch leaves two micro-batches
to four stages, which stand idle for more than half of the step; the script may be meant for
larger batches.
""",
    "tpu-recipes": """
All recipes that start MaxText. Those of Trillium name an entry of MaxText's
`benchmarks/maxtext_trillium_model_configs.py` and are read as the command that it stands for.
Ironwood's link to its host is not published: what they keep there is priced at half of the link of
a v6e. `output_dir` is refused by MaxText's own parser too ([MaxText](maxtext.md)).

Memory is that of the program that libtpu lays out for a step ([MaxText](maxtext.md#memory)),
within 6 % of what it took for the plans that it was asked for. Of the recipes of Trillium whose
memory is judged all but one fit, the large ones with 30 to 32 GB of the 32 that a chip has to
give, as one expects of recipes that were tuned on it. Not priced: embeddings that are looked up
by a product (`use_iota_embed`), a capacity of experts, weights in 16 bits. Tensors that a policy
takes to the host besides a layer's input are priced as computed again.
""",
}

CAUSES = """
What the table says, and what would have to be measured before it is believed:

- Without experts the published plans are about as good as ours; the rest is recomputation that
  the memory would not need, and the size of a micro-batch.
- Models with experts differ by three switches. `ep_overlap` 1f1b
  (`overlap_moe_expert_parallel_comm`) hides the exchange of tokens beside the other
  micro-batch. It is priced from Megatron-LM's schedule; neither its kernels on MI355X nor the
  compute units that the exchange takes from them were measured. One run of DeepSeek-V3 with and
  without it would settle most of the table.
- Full recomputation against a few modules: of published plans that compute all layers again most
  leave a third or more of the memory free, by our model. Either the examples are careful, or
  something lies there that we do not count: uneven routing (priced as balanced), the pools of
  ROCm's allocator. A peak of one run would tell.
- Interleaving (`vpp`) costs messages between stages, whose latency on these networks is assumed.
- `ep` 8 to 1 trades the exchange for copies of all experts; it pays where 288 GB hold them, by the
  rate of grouped products with few tokens each, which was not measured on these parts.
- Examples are written to run anywhere, often with a small batch: a ratio is no verdict on their
  authors.
"""
