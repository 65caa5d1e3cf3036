"""The APIs of agent programs: requests parsed, answers built and framed."""
