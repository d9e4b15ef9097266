"""The order in which two servers are asked, so that what changes with time meets both."""

import random
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psutil

from tools.qualification.server import Server
from tools.throughput.attempts import Attempt, Block, Place, Role, attempt
from tools.throughput.workloads import Workload

TRIES = 3
"""How often it is tried to have one sample undisturbed."""

_Turns = Sequence[tuple[Role, Block]]
_WARM_UP: _Turns = (("reference", "warm-up"), ("candidate", "warm-up"))
_ROUND: _Turns = (("reference", "R1"), ("candidate", "C"), ("reference", "R2"))


@dataclass
class Rounds:
    """Two servers and their processes, and all that was asked of them."""

    servers: dict[Role, Server]
    listeners: dict[Role, frozenset[psutil.Process]]
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    """What openings are made of, beside the place."""

    attempts: list[Attempt] = field(default_factory=list[Attempt])
    gone: Role | None = None
    """The server that was no longer there, after which nothing is asked."""

    def ask(self, workloads: Sequence[Workload], runs: int) -> None:
        """A warm-up, then as many rounds through all workloads as each block has samples."""
        left = list(workloads)
        for turn in range(runs + 1):
            for workload in tuple(left):
                step = f"round {turn} of {runs}" if turn else "warm-up"
                print(f"{step}: {workload.name} ...", file=sys.stderr)
                for made in self._round(workload, turn):
                    self.attempts.append(made)
                    if made.verdict in ("failed", "refused"):
                        left.remove(workload)  # there can be no verdict any more
                        if not self.servers[made.place.server].is_there():
                            self.gone = made.place.server
                            return
                        break

    def _round(self, workload: Workload, turn: int) -> Iterator[Attempt]:
        processes = self.listeners["reference"] | self.listeners["candidate"]
        for role, block in _ROUND if turn else _WARM_UP:
            for tried in range(1, TRIES + 1):
                place = Place(role, workload.name, block, turn, tried)
                opening = self._opening(place)
                made = attempt(place, self.servers[role], workload, opening, processes)
                yield made
                if made.verdict != "excluded":
                    break

    def _opening(self, place: Place) -> str:
        """Digits, since vocabularies make as many tokens of one number as of another. The
        candidate gets those that the reference got before it. The reference, which may have kept
        them, gets others after it, and so does a server that stands for both."""
        one_server = self.listeners["candidate"] == self.listeners["reference"]
        own = (place.server, place.block) if place.block == "R2" or one_server else ""
        key = (self.run, place.workload, place.round, place.tried, own)
        return str(random.Random(repr(key)).randrange(10**19, 10**20))
