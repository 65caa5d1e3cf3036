"""Recorded-session replay: ``recording.py`` is the engine that answers from a stored rollout,
``comparison.py`` finds where the requests differ, ``run.py`` does both.
"""
