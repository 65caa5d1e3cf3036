"""Names that the other districts may import."""

from __future__ import annotations

from runners.records.store.campaign_tables import EvaluationRow, StepRow
from runners.records.store.database import Database
from runners.records.store.free_disk import measure_free_mb
from runners.records.store.run_state import (
    KILLED,
    REMOTE_SILENCE_S,
    Driver,
    RunState,
    State,
    current_process,
)
from runners.records.store.run_store import STORE_FILE, RunStore
from runners.records.store.session_tables import MAX_TURNS, SAMPLED_TOKENS
from runners.records.store.status_file import STATUS_FILE, find_remote_driver, read_status_file
from runners.records.store.store_error import StoreError, raise_store_errors, to_store_error

__all__ = [
    "KILLED",
    "MAX_TURNS",
    "REMOTE_SILENCE_S",
    "SAMPLED_TOKENS",
    "STATUS_FILE",
    "STORE_FILE",
    "Database",
    "Driver",
    "EvaluationRow",
    "RunState",
    "RunStore",
    "State",
    "StepRow",
    "StoreError",
    "current_process",
    "find_remote_driver",
    "measure_free_mb",
    "raise_store_errors",
    "read_status_file",
    "to_store_error",
]
