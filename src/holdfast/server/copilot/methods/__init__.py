"""The methods that a client may call, one file per noun. `surface.py` has the table of them."""
