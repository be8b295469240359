"""`python -m proof.power_cut`."""

import sys

from proof.power_cut.campaign import main

if __name__ == "__main__":
    sys.exit(main())
