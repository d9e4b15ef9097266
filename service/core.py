"""What the routes work with, and how it is put together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from models.catalog import Checkpoint
from models.engine.host import EngineHost
from models.engine.protocol import Load
from models.families.family import Family
from models.speculation.source import drafter_of
from service.answers import Answers
from service.cache_diagnosis import CacheDiagnosis
from service.documents.documents import Documents
from service.documents.sources import Sources
from service.documents.urls import DocumentUrls
from service.preparation import Preparation
from service.requests.served import Served
from service.scheduling.admission import Admission
from service.scheduling.cancellation import Cancellation
from service.scheduling.finishing import Finishing
from service.scheduling.revival import Revival
from service.scheduling.scheduler import Claimer, Scheduler
from service.settings import Settings
from service.signatures import Signer
from service.threads import Threads
from storage.batches import Batches
from storage.database import Database
from storage.files import Files
from storage.jobs import Job, Jobs
from storage.owner import this_process
from storage.resumption import resume


@dataclass(frozen=True, slots=True)
class Core:
    """One served model and all that brings requests to it."""

    settings: Settings
    owner: str
    checkpoint: Checkpoint
    family: Family
    db: Database
    jobs: Jobs
    batches: Batches
    files: Files
    engine: EngineHost
    preparation: Preparation
    signer: Signer
    scheduler: Scheduler
    cancellation: Cancellation
    admission: Admission
    context_tokens: int
    max_output_tokens: int

    @classmethod
    def of(
        cls,
        settings: Settings,
        checkpoint: Checkpoint,
        family: Family,
        db: Database,
        engine_command: Sequence[str],
    ) -> Self:
        """All of it, and nothing of it running yet. Raises StorageError and CheckpointError."""
        jobs, batches, owner = Jobs(db), Batches(db), this_process()
        context_tokens = min(settings.context_tokens or 1 << 62, checkpoint.context_tokens)
        max_output_tokens = min(settings.max_output_tokens or context_tokens, context_tokens)
        signer = Signer.open(settings.data_dir)
        served = Served(
            checkpoint.id,
            family.capabilities,
            signer,
            grammar=settings.grammar,
            ignores_hints=settings.ignore_unsupported_hints,
        )
        answers = Answers(db, served, checkpoint, content=settings.record_content)
        files = Files(db, settings.data_dir)
        urls = DocumentUrls() if settings.allow_document_urls else None
        threads = Threads(jobs, settings.data_dir, content=settings.record_content)
        preparation = Preparation(
            checkpoint,
            family,
            served,
            answers,
            Documents(Sources(files, urls)),
            threads,
            context_tokens=context_tokens,
            max_output_tokens=max_output_tokens,
        )
        diagnosis = CacheDiagnosis(jobs, settings.data_dir, checkpoint)
        drafter = drafter_of(checkpoint, settings.draft_model, settings.models_dir)
        engine = EngineHost(
            Load(
                str(checkpoint.path),
                cache_bytes=settings.cache_memory_bytes,
                cache_folder=str(settings.cache_dir) if settings.cache_disk_gib else None,
                cache_disk_bytes=settings.cache_disk_bytes,
                weights=checkpoint.weights_sha256,
                speculates=settings.speculation,
                drafter=None if drafter is None else str(drafter),
            ),
            stall_seconds=settings.engine_stall_seconds,
            command=engine_command,
        )
        scheduler = Scheduler(
            jobs,
            engine,
            Claimer(owner, f"engine-0 of {owner}", checkpoint.id, settings.lease_seconds),
            Finishing(jobs, answers),
            Revival(
                jobs,
                batches,
                preparation,
                diagnosis,
                settings.data_dir,
                content=settings.record_content,
            ),
            preparation,
        )
        cancellation = Cancellation(db, jobs, scheduler)
        return cls(
            settings=settings,
            owner=owner,
            checkpoint=checkpoint,
            family=family,
            db=db,
            jobs=jobs,
            batches=batches,
            files=files,
            engine=engine,
            preparation=preparation,
            signer=signer,
            scheduler=scheduler,
            cancellation=cancellation,
            admission=Admission(
                settings,
                checkpoint.id,
                owner,
                preparation,
                threads,
                diagnosis,
                jobs,
                scheduler,
                cancellation,
            ),
            context_tokens=context_tokens,
            max_output_tokens=max_output_tokens,
        )

    async def resume(self, job: Job) -> str | None:
        """Queue a run again here. Why it cannot go on, in a sentence; None when it is queued."""
        return await resume(
            self.db,
            job,
            self.settings.data_dir,
            owner=self.owner,
            model=self.checkpoint.id,
            weights_sha256=self.checkpoint.weights_sha256,
        )
