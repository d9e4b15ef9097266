"""Random weights for the real architecture that a model folder's configuration names."""

import subprocess
import sys
from pathlib import Path

# In a process of its own, since MLX stays out of the one that tests run in.
_SCRIPT = """
import json, sys
from pathlib import Path
import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())
kind, arguments = _get_classes(config)
mx.random.seed(0)
model = kind(arguments.from_dict(config))
mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
"""


def write_random_weights(folder: Path) -> Path:
    """In the place of those that it has; returns the folder."""
    subprocess.run([sys.executable, "-c", _SCRIPT, str(folder)], check=True)
    return folder
