"""Replays of plans in the frameworks themselves."""
