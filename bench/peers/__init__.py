"""What somebody would use instead, in an environment of its own. Only `environment` is imported by the benchmark; the
applications beside it are run by that environment's Python."""
