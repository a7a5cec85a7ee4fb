"""MindSpeed-LLM (Ascend): what it does not run, over layouts and over options."""
