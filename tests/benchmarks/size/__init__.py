"""The load of a large job on gateway, store and driver, for ``bench_size.py``."""
