"""The AI SDK surface without its HTTP routes: each turn is one message, sent as the chunks of a UI-message stream."""
