"""`python -m proof.simulation`."""

import sys

from proof.simulation.campaign import main

if __name__ == "__main__":
    sys.exit(main())
