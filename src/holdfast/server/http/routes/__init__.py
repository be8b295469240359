"""The routes of the HTTP surface, one file per noun. Each handler carries its own declaration: `@endpoint`."""
