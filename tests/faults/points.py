"""Every point at which a service is killed, in the order of a job's life, and what comes of it.

`MERERUN_FAILPOINT` takes the names (see `storage/failpoints.py`). What comes of a run are its
moves after the next start; `-` where there is no run of that kind at this point, and `nothing`
where there is no run yet, and at most a record that nobody was told of.
"""

from dataclasses import dataclass

NONE, NOTHING = "-", "nothing"
CUT = "queued running interrupted"
DONE = "queued running succeeded"
# A batch's request goes on with the tokens that it has.
AGAIN = "queued running queued running succeeded"
RESUMED = "queued running cancelled queued running queued running succeeded"


@dataclass(frozen=True, slots=True)
class Point:
    """`situation` is how it is reached; a `short` one is part of `make test`."""

    name: str
    situation: str
    interactive: str
    batch_item: str
    short: bool = False

    @property
    def id(self) -> str:
        return self.name.replace(" ", "-")


POINTS = (
    # A request is admitted, the record first, the row second; a batch has its rows only.
    Point("admitting", "answer", NOTHING, NONE),
    Point("naming request.json", "answer", NOTHING, AGAIN),
    Point("naming prompt.json", "answer", NOTHING, AGAIN),
    Point("recorded", "answer", NOTHING, NONE, short=True),
    Point("inserted", "answer", "queued interrupted", NONE),
    Point("creating batch", "batch created", NONE, NOTHING),
    Point("created batch", "batch created", NONE, DONE),
    # It is claimed; a batch's request gets its record now.
    Point("claimed", "answer", CUT, AGAIN),
    Point("record begun", "answer", NONE, AGAIN),
    Point("prepared", "answer", NONE, AGAIN),
    # The engine has it.
    Point("prefill", "answer", CUT, AGAIN),
    Point("prefill:3", "answer", CUT, AGAIN),
    Point("tokens", "answer", CUT, AGAIN),
    Point("tokens:4", "answer", CUT, AGAIN),
    Point("flushing", "answer", CUT, AGAIN),
    Point("flushed", "answer", CUT, AGAIN),
    Point("flushing:3", "answer", CUT, AGAIN),
    Point("flushed:3", "answer", CUT, AGAIN, short=True),
    # It makes room for another.
    Point("putting back", "preempted", CUT, AGAIN),
    Point("put back", "preempted", "queued running queued interrupted", AGAIN),
    # Its answer is complete. From the moment its files are on disk it is, whatever they are named.
    Point("answered", "answer", CUT, AGAIN),
    Point("naming telemetry.json", "answer", DONE, DONE),
    Point("naming response.json", "answer", DONE, DONE, short=True),
    Point("closed", "answer", DONE, DONE),
    Point("ended", "answer", DONE, DONE),
    # It is cancelled while it waits; a batch's request that had begun.
    Point("closed unclaimed", "cancelled", "queued cancelled", "queued running queued cancelled"),
    Point("cancelling batch", "batch cancelled", NONE, AGAIN),
    Point("cancelled batch", "batch cancelled", NONE, "queued running cancelled"),
    # An operator has it go on.
    Point("claimed:2", "resumed", RESUMED, NONE),
    Point("took back response.json", "resumed", RESUMED, NONE),
    Point("took back telemetry.json", "resumed", RESUMED, NONE),
    # The next service sees to what this one left.
    Point("making up", "recovered", DONE, DONE),
    # It goes, and its record with it.
    Point("deleting batch", "batch deleted", NONE, DONE),
    Point("pruning", "pruned", DONE, DONE),
    Point("rows pruned", "pruned", NOTHING, NOTHING),
    Point("records pruned", "pruned", NOTHING, NOTHING),
)


@dataclass(frozen=True, slots=True)
class FilePoint:
    """Where a file is uploaded or deleted, and whether it is there after the next start."""

    name: str
    situation: str
    there: bool


FILE_POINTS = (
    FilePoint("file written", "uploaded", False),
    FilePoint("file inserted", "uploaded", True),
    FilePoint("file set aside", "deleted", True),
    FilePoint("file row deleted", "deleted", False),
)


@dataclass(frozen=True, slots=True)
class EnginePoint:
    """The engine dies in place of the message that would be its `number`-th of the kind."""

    name: str
    message: str
    number: int
    interactive: str
    batch_item: str
    short: bool = False


FAILED = "queued running failed"

ENGINE_POINTS = (
    # It has not begun, so the next engine takes it.
    EnginePoint("before the first chunk of the prompt", "Prefill", 1, DONE, DONE),
    EnginePoint("in the prompt", "Prefill", 3, FAILED, AGAIN),
    EnginePoint("before the first token", "Tokens", 1, FAILED, AGAIN),
    EnginePoint("in the answer", "Tokens", 9, FAILED, AGAIN, short=True),
    EnginePoint("before the last token", "Tokens", 24, FAILED, AGAIN),
    # All tokens are there: that is the answer.
    EnginePoint("after the last token", "Finished", 1, DONE, DONE),
)
