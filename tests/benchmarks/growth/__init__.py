"""Curves of costs over the size of the work, for ``bench_growth.py``."""
