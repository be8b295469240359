"""`python -m proof.chaos`."""

import sys

from proof.chaos.campaign import main

if __name__ == "__main__":
    sys.exit(main())
