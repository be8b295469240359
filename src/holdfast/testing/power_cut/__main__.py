"""`python -m holdfast.testing.power_cut`."""

import sys

from holdfast.testing.power_cut.campaign import main

if __name__ == "__main__":
    sys.exit(main())
