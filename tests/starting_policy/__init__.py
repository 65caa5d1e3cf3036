"""Makes the starting policy that comes with agentrl: tokenizer, demonstrations, warm-up."""
