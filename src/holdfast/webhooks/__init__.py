"""Webhooks: delivers the events of the outbox to receivers, signed, and only to addresses that are allowed."""
