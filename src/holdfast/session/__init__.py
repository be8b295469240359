"""The pure core: events to state, state to the next step, state to what the model sees. No clock, no await, no I/O."""
