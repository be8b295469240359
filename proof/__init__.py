"""The proof that Holdfast keeps its promise: campaigns that crash it, simulate it, cut its power and break its cluster.

Not a part of the package that users install; `make verify` runs all of it."""
