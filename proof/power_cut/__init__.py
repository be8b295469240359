"""The power-cut campaign: a kill campaign whose disk discards unsynced writes."""
