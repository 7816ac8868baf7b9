"""fedjax_sim: federated learning simulated in JAX, one XLA program a run.

Names are loaded when they are first used: ``import fedjax_sim`` itself imports nothing. Which there are, and where they
are from, is said in one place, ``__init__.pyi``, which type checkers read too.
"""

from pathlib import Path as _Path
from typing import Any as _Any

from fedjax_sim.core.version import __version__ as __version__

# Each line there is: from HOME import NAME as NAME.
_HOME = {
    words[-1]: words[1]
    for words in map(str.split, _Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8").splitlines())
    if words[:1] == ["from"] and words[-1] != "__version__"
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> _Any:
    if name in _HOME:
        if _HOME[name] == __name__:
            return __import__(f"{__name__}.{name}", fromlist=[name])
        return getattr(__import__(_HOME[name], fromlist=[name]), name)
    import difflib

    known = {one.lower(): one for one in __all__}  # SCAFFOLD is scaffold
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {known[near[0]]!r}?" if near else ""
    raise AttributeError(f"module 'fedjax_sim' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
