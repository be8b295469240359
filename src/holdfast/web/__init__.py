"""The page as it was built from `web/` at the root of the project. It knows the HTTP API and nothing else."""
