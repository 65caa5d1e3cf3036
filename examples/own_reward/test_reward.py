"""Tests of the reward: the price of a line, and a number for whatever a policy hands in."""

from reward import small_diff

from agentrl.testing import RewardConformance, graded

DIFF = b"""\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,3 @@
 def add(a, b):
-    return a - b
+    # the sum
+    return a + b
"""


class TestSmallDiff(RewardConformance):
    """Every rollout has a finite reward, and solving pays."""

    target, options = "reward.py:small_diff", {"per_line": 0.1}


def test_each_line_has_its_price() -> None:
    """Three lines changed: one removed, two added."""
    assert small_diff(graded(DIFF), per_line=0.1) == 1 - 0.1 * 3
    assert small_diff(graded(DIFF), per_line=9) == 0
    assert small_diff(graded(DIFF, solved=False)) == 0
