"""What the routes work with."""

from dataclasses import dataclass

from models.catalog import Checkpoint
from models.engine.host import EngineHost
from models.families.family import Family
from service.errors import ApiError
from service.prompts import Prompts
from service.scheduling.admission import Admission
from service.scheduling.cancellation import Cancellation
from service.scheduling.scheduler import Scheduler
from service.settings import Settings
from storage.database import Database
from storage.jobs import Jobs


@dataclass(frozen=True, slots=True)
class Core:
    """One served model and all that brings requests to it."""

    settings: Settings
    checkpoint: Checkpoint
    family: Family
    db: Database
    jobs: Jobs
    engine: EngineHost
    scheduler: Scheduler
    cancellation: Cancellation
    admission: Admission
    prompts: Prompts
    context_tokens: int
    max_output_tokens: int

    def check_model(self, name: str) -> None:
        """Raises ApiError 404 unless `name` is the served model, or a Claude model: agents ask
        for those by name in the background, and the one model there is answers them all."""
        if name != self.checkpoint.id and not name.startswith("claude-"):
            raise ApiError.not_found(
                f"model: {name[:100]} is not served here; the model is {self.checkpoint.id}"
            )
