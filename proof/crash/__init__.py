"""The crash campaign: real processes killed at every durable write, and what must hold of what they leave."""
