"""Where the package keeps what it can compute again: compiled programs, measured layouts."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """``$FEDJAX_SIM_CACHE``, else ``$XDG_CACHE_HOME/fedjax_sim``, else ``~/.cache/fedjax_sim``.

    Nothing is made there: who writes makes the directory. All of it may be deleted at any time.

    Raises:
      RuntimeError: neither variable is set, and the user has no home directory.
    """
    own = os.environ.get("FEDJAX_SIM_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared and Path(shared).is_absolute():  # the standard says to ignore relative ones
        return Path(shared) / "fedjax_sim"
    return Path.home() / ".cache" / "fedjax_sim"
