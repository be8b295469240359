"""Language models behind one seam: provider protocols, and the scripted model for demos and tests."""
