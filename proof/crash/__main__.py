"""`python -m proof.crash`."""

import sys

from proof.crash.campaign import main

if __name__ == "__main__":
    sys.exit(main())
