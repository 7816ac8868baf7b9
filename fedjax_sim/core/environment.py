"""Where a run computes."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

import flax
import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import optax

from fedjax_sim.core.devices import processor
from fedjax_sim.core.keys import generator

# JAX's settings that change how results are rounded and no draw, as they are unless it is told otherwise.
_ROUNDING = {
    "jax_allow_f16_reductions": True,
    "jax_compiler_enable_remat_pass": True,
    "jax_default_device": None,
    "jax_default_matmul_precision": None,
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_optimization_level": "UNKNOWN",
    "jax_softmax_custom_jvp": False,
    "jax_use_direct_linearize": True,
}
# Flags of XLA that change no result: how many CPU devices there are is said beside them; files to look at.
_NO_MATTER = re.compile(r"--xla_(force_host_platform_device_count|dump_)")


def environment() -> dict[str, Any]:
    """Versions, device, and the settings in force that change draws or rounding."""
    from fedjax_sim.core.version import __version__

    settings = {name: getattr(jax.config, name, usual) for name, usual in _ROUNDING.items()}
    flags = os.environ.get("XLA_FLAGS", "").split()
    device = jax.devices()[0]
    on_cpu = device.platform == "cpu"
    return {
        "fedjax_sim": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "numpy": np.__version__,
        "flax": flax.__version__,
        "optax": optax.__version__,
        "python": platform.python_version(),
        "device": f"{jax.device_count()} x {device.device_kind}{_of_processes()}",
        **({"processor": list(processor())} if on_cpu else {"driver": device.client.platform_version}),
        "float": str(jnp.result_type(float)),
        "generator": generator(),
        "settings": {name: _as_json(value) for name, value in settings.items() if value != _ROUNDING[name]},
        "flags": sorted(flag for flag in flags if not _NO_MATTER.match(flag)),
    }


def _as_json(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _of_processes() -> str:
    return f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
