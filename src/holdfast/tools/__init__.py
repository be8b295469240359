"""The tools that a model may call: definitions, the registry, and the tools that come with Holdfast."""
