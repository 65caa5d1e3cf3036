"""Everything that happens while a campaign runs."""

import os

# Before anything imports torch: OpenMP reads it once. Its threads spin while they wait by default, and on a machine
# whose cores are shared with sandboxes a spinning thread keeps from its core the very thread it waits for (measured:
# ten times slower on two cores with one busy process beside).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
