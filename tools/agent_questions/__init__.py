"""Questions with known answers, asked through the tools of `planner mcp` and graded by code."""
