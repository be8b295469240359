"""What a model may ask for: definitions, the registry, and the tools that come with Holdfast."""
