"""The runtime on a virtual clock: real code, a scheduled world, and faults by a number that plays them again."""
