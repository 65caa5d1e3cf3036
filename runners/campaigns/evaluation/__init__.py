"""Measure a policy on a benchmark."""
