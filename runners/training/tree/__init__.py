"""The prefix tree of an update's samples: its packs, and attention in it."""
