"""Everything that happens while a campaign runs."""

import os

# Before anything imports torch: OpenMP reads it once. By default its threads spin while they wait,
# and where sandboxes share the cores a spinning thread keeps from its core the very thread it waits
# for: ten times slower on two cores with one busy process beside it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
