"""A session as AI SDK clients see it: each turn is one message, told in the chunks of their UI-message stream."""
