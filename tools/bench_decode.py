"""`tools/bench-decode`: what drafts gain on this machine, and that they change no answer.

For developers: it uses the tests' support, and the models that the tests install. Let nothing else
run on the machine meanwhile. `tools/bench_decode_device.py` is for machines with a GPU.
"""

import sys

from tools.bench import speculation
from tools.bench.of_models import OfModel, main_of

_PARTS: dict[str, OfModel] = {
    "rewrite": speculation.rewrite,
    "prompts": speculation.prompts,
    "companion": speculation.companion,
    "grammar": speculation.grammar,
    "equality": speculation.equality,
}

if __name__ == "__main__":
    sys.exit(main_of("bench-decode", __doc__, _PARTS))
