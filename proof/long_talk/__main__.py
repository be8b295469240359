"""`python -m proof.long_talk`."""

import sys

from proof.long_talk.campaign import main

if __name__ == "__main__":
    sys.exit(main())
