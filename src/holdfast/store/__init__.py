"""The store: one seam, five verbs, and the plain queries beside them."""
