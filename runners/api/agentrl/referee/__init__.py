"""A referee for gateways that record agents' conversations for training (docs/referee.md)."""
