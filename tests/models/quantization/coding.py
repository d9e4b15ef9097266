"""What the tests of conversions do with MLX. See `tests.models.engine.on_mlx`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def coded(rows: "np.ndarray[Any, Any]", form: str) -> tuple["np.ndarray[Any, Any]", ...]:
    """Codes in uint8 [rows, inputs], scales and biases in float32 [rows, groups]."""
    import mlx.core as mx

    from models.quantization.codes import coded
    from models.quantization.forms import FORMS

    codes, scales, biases = coded(mx.array(rows), FORMS[form])
    exact = (np.array(each.astype(mx.float32)) for each in (scales, biases))
    return np.array(codes).view(np.uint8), *exact


def command(arguments: Sequence[str], data_dir: Path) -> tuple[int, str]:
    """`mererun models`: its exit code and what it said."""
    from click.testing import CliRunner

    from service.commands.models import models

    done = CliRunner().invoke(models, arguments, env={"MERERUN_DATA_DIR": str(data_dir)})
    return done.exit_code, done.output
