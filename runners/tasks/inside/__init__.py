"""Programs of the graders that run inside a sandbox: standard library only."""
