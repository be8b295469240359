"""The HTTP surface: REST with a published schema, and streams, over the same operations as every other surface."""
