"""The fast BLAS of a Linux CPU, loaded before MLX so that its symbols win.

MLX's Linux CPU wheel links the reference BLAS, but resolves `cblas_sgemm` dynamically: a BLAS
loaded first with global symbols takes its place (some 60 times the speed for float32 products).
"""

import ctypes
import sys

# OpenBLAS first in every spelling distributions use; never plain `libblas.so.3`, which may be
# the slow reference itself.
_CANDIDATES = ("libopenblas.so.0", "libopenblasp.so.0", "libopenblas.so")


def preload() -> str | None:
    """Load a fast BLAS for this process. To be called before the first import of `mlx.core`.

    Returns what is in use, for people to read; None when products will be slow.
    """
    if sys.platform == "darwin":
        return "Accelerate"
    for name in _CANDIDATES:
        try:
            library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            library.openblas_get_config.restype = ctypes.c_char_p
            return f"{library.openblas_get_config().decode()} ({name})"
        except (OSError, AttributeError):
            continue
    return None
