"""``python -m fedjax_sim.cli``: the command without its script."""

import sys

from fedjax_sim.cli.main import main

sys.exit(main())
