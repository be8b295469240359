"""`holdfast-copilot` with the parrot as its surface."""

import os
import sys

from holdfast.cli.copilot import run
from tests.wire.copilot.parrot import parrot

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], os.environ, parrot))
