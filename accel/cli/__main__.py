"""``python -m accel.cli``: the command without its console script."""

import sys

from accel.cli import main

sys.exit(main())
