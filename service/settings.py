"""Every setting of the service and its default; `cli` makes options and variables of them."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from models.catalog import DEFAULT_MODEL

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/mererun`, in the home folder by default."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "mererun"


@dataclass(frozen=True, slots=True)
class Settings:
    """The first group are options of `mererun serve`, each also `MERERUN_<NAME>`; the second are
    the service's own constants, kept here so that a test can shorten them."""

    model: str = DEFAULT_MODEL
    host: str = "127.0.0.1"
    port: int = 8765
    data_dir: Path = field(default_factory=default_data_dir)
    context_tokens: int | None = None  # at most, and by default, the model's own
    max_output_tokens: int | None = None  # by default what the context leaves
    api_key_file: Path | None = None
    retain_days: float | None = None  # by default, runs are kept for ever
    retain_gib: float | None = None
    ready_file: Path | None = None
    record_content: bool = True
    grammar: bool = True
    speculation: bool = True
    draft_model: str | None = None  # by default the companion that is shipped for the model, if any
    ignore_unsupported_hints: bool = False
    cache_memory_gib: float | None = None  # by default, a share of the machine's memory
    cache_disk_gib: float = 0.0  # none
    allow_document_urls: bool = False
    file_limit_mib: int = 512  # of one uploaded file; the API's own limit is 500 MB
    database_url: str | None = None  # by default a SQLite file in the data folder

    queue_limit: int = 1000
    # Clients give up after 300 s of silence; half of the 10 s promised leaves room for a busy loop.
    ping_seconds: float = 5.0
    # A vanished peer is found by unanswered probes or unacknowledged bytes after this.
    peer_timeout_seconds: int = 30
    lease_seconds: float = 30.0
    # Longer than any step and any tensor read; a hang is rare, a wrongly killed engine is worse.
    engine_stall_seconds: float = 120.0
    drain_seconds: float = 10.0
    body_limit_bytes: int = 32 << 20  # the API's own limit, as are those of batches
    batch_body_limit_bytes: int = 256 << 20
    batch_requests_limit: int = 100_000
    batch_expiry_seconds: float = 24 * 3600.0

    # How often what is due with time is looked for: expired batches, lost leases, old runs.
    housekeeping_seconds: float = 30.0

    @property
    def database(self) -> Path | str:
        """Where the jobs are: `storage.database.Database.open` takes it."""
        return self.database_url or self.data_dir / "mererun.db"

    @property
    def retain_bytes(self) -> int | None:
        return None if self.retain_gib is None else int(self.retain_gib * (1 << 30))

    @property
    def cache_memory_bytes(self) -> int | None:
        return None if self.cache_memory_gib is None else int(self.cache_memory_gib * (1 << 30))

    @property
    def cache_disk_bytes(self) -> int:
        return int(self.cache_disk_gib * (1 << 30))

    @property
    def file_limit_bytes(self) -> int:
        return self.file_limit_mib << 20

    @property
    def cache_dir(self) -> Path:
        return self.data_dir / "prompt-cache"

    @property
    def models_dir(self) -> Path:
        return self.data_dir / "models"
