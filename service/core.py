"""What the routes work with."""

from dataclasses import dataclass

from models.catalog import Checkpoint
from models.engine.host import EngineHost
from models.families.family import Family
from service.preparation import Preparation
from service.scheduling.admission import Admission
from service.scheduling.cancellation import Cancellation
from service.scheduling.scheduler import Scheduler
from service.settings import Settings
from storage.batches import Batches
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
    preparation: Preparation
    batches: Batches
    context_tokens: int
    max_output_tokens: int
