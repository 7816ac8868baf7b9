"""``python -m fedjax_sim.command``: the command without its script."""

import sys

from fedjax_sim.cli import main

sys.exit(main())
