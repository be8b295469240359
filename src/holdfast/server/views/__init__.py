"""Rows of the store, and parts of the log, as the values that clients see: one file per noun of `protocol/`."""
