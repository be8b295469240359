"""The power-cut campaign: a kill campaign whose disk forgets what was not synced."""
