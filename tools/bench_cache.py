"""`tools/bench-cache`: the prompt cache's figures against their bars, measured on this machine.

For developers: it uses the tests' support, and the models that the tests install. Let nothing else
run on the machine meanwhile. `tools/bench_cache_device.py` is for machines with a GPU.
"""

import sys

from tools.bench.cache_in_memory import lookup, memory
from tools.bench.first_token import first_token
from tools.bench.of_models import OfModel, Other, main_of
from tools.bench.tool_turns import random_tool_turns, tool_turns

_OF_EACH_MODEL: dict[str, OfModel] = {
    "first-token": first_token,
    "tool-turns": tool_turns,
    "memory": memory,
}
_OTHERS: dict[str, Other] = {"random-tool-turns": random_tool_turns, "lookup": lookup}

if __name__ == "__main__":
    sys.exit(main_of("bench-cache", __doc__, _OF_EACH_MODEL, _OTHERS))
