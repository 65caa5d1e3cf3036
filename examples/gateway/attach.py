"""Run the agent as a session of a gateway that runs already, and pay it."""

import json
import subprocess
from pathlib import Path

import agentrl

started = json.loads(Path("gateway.json").read_text())
gateway = agentrl.GatewayClient(started["url"], started["admin_key"])
with gateway.session(task="greet") as session:  # session.base_url, session.api_key
    done = subprocess.run(
        ["python", "agent.py"], env=session.environment(), capture_output=True, check=False
    )
    ended = session.finish(reward=1.0 if b"hello" in done.stdout else 0.0)
print(ended.outcome, ended.reward, [int(chain.loss_mask.sum()) for chain in ended.segments])
