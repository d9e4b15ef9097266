"""The tokens of answers, by a digest of what they say."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select, text

from storage.database import Database
from storage.tables import answers

# What a query may have of parameters is limited, and a conversation's turns are not.
_ASKED_AT_ONCE = 10_000

# The last of two answers that say the same to the same conversation: it is that which goes on.
_KEEP = text(
    "INSERT INTO answers (digest, api_key, job_id, ids) VALUES (:digest, :api_key, :job_id, :ids)"
    " ON CONFLICT (digest, api_key) DO UPDATE SET job_id = excluded.job_id, ids = excluded.ids"
)


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """`ids` are packed little-endian 32-bit integers."""

    digest: bytes
    ids: bytes


def keep_answer(
    connection: Connection, job_id: str, api_key: str | None, answer: KeptAnswer
) -> None:
    """Write a job's answer, in the transaction that ends the job. It goes with the job."""
    connection.execute(
        _KEEP,
        {
            "digest": answer.digest,
            "api_key": api_key or "",
            "job_id": job_id,
            "ids": answer.ids,
        },
    )


async def kept_answers(
    db: Database, api_key: str | None, digests: Sequence[bytes]
) -> list[KeptAnswer]:
    """Those of the digests that a job of the key has. Raises StorageError."""
    found: list[KeptAnswer] = []
    async with db.read() as connection:
        for start in range(0, len(digests), _ASKED_AT_ONCE):
            some = digests[start : start + _ASKED_AT_ONCE]
            query = select(answers.c.digest, answers.c.ids).where(
                answers.c.api_key == (api_key or ""), answers.c.digest.in_(some)
            )
            found += [KeptAnswer(*row) for row in await connection.execute(query)]
    return found
