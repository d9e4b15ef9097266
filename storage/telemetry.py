from dataclasses import asdict, dataclass

from sqlalchemy import Connection, bindparam, delete, insert, select

from storage.database import Database
from storage.tables import telemetry

INSERT = insert(telemetry)
DELETE = delete(telemetry).where(telemetry.c.job_id == bindparam("job_id"))


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Where the time of one job went; None where it was not measured or did not come to be."""

    queue_seconds: float
    load_seconds: float
    prefill_seconds: float
    decode_seconds: float
    # From the engine's acceptance of the job to its last word.
    engine_seconds: float
    input_tokens: int
    output_tokens: int
    # Tokens that were really computed before the first one came, in all segments of the run.
    prefilled_tokens: int
    peak_memory_bytes: int | None
    # From the start of the run on the engine to its first token.
    first_token_seconds: float | None
    longest_step_seconds: float | None
    # Of the input, what the client was told that the prompt cache had, and that it has now.
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    # In so many rounds so many tokens were drafted, and so many of those were right; and how often
    # drafting was given up for a while, since it did not pay.
    verified_rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    draft_pauses: int = 0


def replace_telemetry(
    connection: Connection, job_id: str, measured: Telemetry | None, *, first: bool
) -> None:
    """Write a job's row, in the transaction that ends the job; `first` when it has none yet.

    A job that had one when it was resumed has none any more when it is not `measured`.
    """
    if not first:
        connection.execute(DELETE, {"job_id": job_id})
    if measured is not None:
        connection.execute(INSERT, {"job_id": job_id, **asdict(measured)})


async def telemetry_of(db: Database, job_id: str) -> Telemetry | None:
    """A finished job's telemetry; None for a job that is unknown or was never measured."""
    async with db.read() as connection:
        found = await connection.execute(select(telemetry).where(telemetry.c.job_id == job_id))
        row = found.mappings().one_or_none()
    if row is None:
        return None
    return Telemetry(**{name: row[name] for name in Telemetry.__dataclass_fields__})
