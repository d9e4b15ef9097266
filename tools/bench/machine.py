"""What the figures were measured on."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from models.engine import blas


def machine() -> dict[str, str]:
    """Facts by name, in the order in which to print them."""
    return {
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "load before": f"{os.getloadavg()[0]:.2f}",
        "system": platform.platform(),
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx-lm": version("mlx-lm"),
        "blas": blas.preload() or "MLX's own (slow): install OpenBLAS",
    }


def _cpu_model() -> str:
    if sys.platform == "darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
