"""Measures Holdfast against the bars that the README states: `python -m bench`, or `make bench`."""
