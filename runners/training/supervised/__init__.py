"""Training on examples of a file instead of rollouts."""
