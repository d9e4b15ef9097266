"""A model repository of the Hugging Face hub, downloaded resumably.

The hub library resumes inside a file only within one run; between runs, files that are whole are
kept and the others start again.
"""

import shutil
import sys
from pathlib import Path

from huggingface_hub import (
    HfApi,
    snapshot_download,  # pyright: ignore[reportUnknownVariableType]
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] its transport's, whichever that is
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars

from models.catalog import Checkpoint, CheckpointError, folder_name, inspect
from models.sources.progress import announce
from models.sources.staging import RESUMABLE, publish, write_receipt

WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model"]


def pull(repository: str, models_dir: Path) -> Checkpoint:
    """Download `org/name` at its newest revision; an interrupted download goes on next time."""
    announce(f"downloading {repository}")
    if not sys.stderr.isatty():
        disable_progress_bars()
    folder = models_dir / f"{RESUMABLE}{folder_name(repository)}"
    for part in folder.rglob("*.incomplete"):  # of a killed run: the library takes fresh names
        part.unlink()
    revision = _download(repository, folder)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub library's resumption notes
    write_receipt(folder, {"source": f"hub {repository}", "revision": revision})
    inspect(folder)
    final = models_dir / folder_name(repository)
    publish(folder, final)
    return inspect(final)


def _download(repository: str, folder: Path) -> str:
    """Fill `folder`; returns the commit, asked first so that all files are of one revision."""
    try:
        revision = HfApi().model_info(repository).sha
        assert revision is not None
        snapshot_download(
            repository,
            revision=revision,
            local_dir=folder,
            allow_patterns=WANTED,
            ignore_patterns=["*/*"],  # other forms of the model lie in folders
        )
    except GatedRepoError as error:
        raise CheckpointError(
            f"{repository} is gated: accept its terms on the hub, set HF_TOKEN and pull again"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the hub has no {repository}, or it is private: check the name, or set HF_TOKEN"
        ) from error
    except HfHubHTTPError as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise CheckpointError(
            f"the hub refused {repository}: {reason}; run `mererun models pull {repository}` "
            "again to go on where it stopped"
        ) from error
    except (HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise CheckpointError(
            f"cannot reach the hub for {repository}, this machine seems offline: pull again "
            "later, or copy the folder here and run `mererun models pull /path/to/folder`"
        ) from error
    return revision
