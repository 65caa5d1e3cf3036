"""The sections of a run's configuration: one file per axis."""
