"""What the service is compared with: `mlx_lm.stream_generate` in a process of its own.

The same weights, dtype, BLAS and prefill chunk as the engine's, so that the service is compared
with the best that mlx-lm does here. The process waits on its input while it has nothing to do, and
costs nothing then.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Generated:
    """One generation. Seconds from its start to the first and to the last token."""

    first: float
    last: float
    tokens: int
    text: str

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one."""
        return (self.tokens - 1) / (self.last - self.first)


class Baseline:
    """The parent's side."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def generate(self, prompt: list[int], max_tokens: int) -> Generated:
        """Greedy; blocks until it is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([prompt, max_tokens]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the baseline process ended; what it said is above")
        return Generated(**json.loads(line))


@contextmanager
def baseline(folder: Path) -> Iterator[Baseline]:
    """A baseline over the model in `folder`."""
    command = [sys.executable, "-m", "tools.bench.baseline", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Baseline(process)  # the end of its input ends it


def main() -> None:
    from models.engine import blas

    blas.preload()
    # Only now, since a BLAS must be loaded before MLX is.
    import mlx.core as mx
    from mlx_lm import load, stream_generate
    from mlx_lm.utils import dequantize_model

    from models.engine.generate import CHUNK_TOKENS

    model, tokenizer, *_ = load(sys.argv[1])
    device = "gpu" if mx.default_device() == mx.gpu else "cpu"
    if device == "cpu":  # as models/engine/generate.py does
        model = dequantize_model(model)
        model.set_dtype(mx.float32)
        mx.eval(model.parameters())
    for line in sys.stdin:
        prompt, max_tokens = json.loads(line)
        started = time.perf_counter()
        times: list[float] = []
        text = ""
        for response in stream_generate(
            model,
            tokenizer,
            prompt,
            max_tokens=max_tokens,
            prefill_step_size=CHUNK_TOKENS[device],
        ):
            times.append(time.perf_counter() - started)
            text += response.text
        done = Generated(times[0], times[-1], response.generation_tokens, text)
        print(json.dumps(asdict(done)), flush=True)


if __name__ == "__main__":
    main()
