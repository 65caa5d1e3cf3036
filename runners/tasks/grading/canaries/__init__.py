"""Canaries: changed copies of a task's tests that a right solution must fail."""
