"""Routing replay: the experts that inference chose, forced in training, and checked."""
