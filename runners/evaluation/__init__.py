"""Measuring a policy on a benchmark: which rollouts, and what they say."""
