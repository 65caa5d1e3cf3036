"""A referee for gateways that record agents' conversations for training.

It plays both ends: the agent program that talks to the gateway, and the engine behind it. So it
knows what was sent, what the policy saw, what was sampled and what came back, and compares that
with the samples that the gateway hands to the trainer. It knows nothing of the gateway but two
calls: open a session, finish it (docs/referee.md).
"""
