"""What is happening right now: deltas and wake-ups. All of it may be lost; the store repairs it."""
