"""What docs/published.md says beside its tables."""

INTRO = """# Published settings

Settings that frameworks publish for TPUs, AMD's and Huawei's accelerators, each judged by
[`planner check`](check.md) and set beside the best plan that the same search finds: same model, sequence, batch,
precision, framework and devices. `scripts/published_settings` makes the rows
(`tools/published/kept.json`) of checkouts: {commits}. **Only configurations were read, no
measured figure: a ratio here is one modelled step over another**, and neither was timed.
"""

SECTIONS = {"Primus": "", "MindSpeed-LLM": "", "tpu-recipes": ""}

CAUSES = ""
