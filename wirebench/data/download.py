"""Fetch a data set's official archive once, whichever ranks of a machine ask for it."""

import hashlib
import http.client
import io
import os
import shutil
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from filelock import FileLock

from wirebench.errors import UserError

STALL_SECONDS = 30.0
CHUNK_BYTES = 1 << 20


def fetch(url: str, md5: str, root: Path, folder: str) -> None:
    """Download the tar archive at `url`, check its MD5, unpack it so that `root`/`folder` exists.

    The folder appears whole or not at all. Ranks that call at the same time wait for the one that downloads. UserError
    says why it failed: no network, a wrong checksum, a root that cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{folder}.lock"):
            if not (root / folder).exists():
                _fetch(url, md5, root, folder)
    except (OSError, http.client.HTTPException, tarfile.TarError) as error:
        raise UserError(
            f"data.download: {url} into {root}: {_reason(error)}; or fetch it elsewhere and unpack it into {root}"
        ) from error


def _fetch(url: str, md5: str, root: Path, folder: str) -> None:
    # within root, so that the final rename stays on one file system and is atomic
    with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as work:
        archive = Path(work) / "archive"
        with urllib.request.urlopen(url, timeout=STALL_SECONDS) as source, archive.open("wb") as target:
            shutil.copyfileobj(source, target, CHUNK_BYTES)
        with archive.open("rb") as file:
            digest = _md5(file)
        if digest != md5:
            raise UserError(
                f"data.download: {url}: {archive.stat().st_size} bytes with MD5 {digest}, expected {md5}; "
                f"nothing was kept, try again"
            )
        with tarfile.open(archive) as tar:
            tar.extractall(Path(work) / "unpacked", filter="data")
        os.rename(Path(work) / "unpacked" / folder, root / folder)


def _md5(file: io.BufferedReader) -> str:
    # the publisher states an MD5: it guards against a damaged transfer, not against an attacker
    return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _reason(error: BaseException) -> str:
    """The error in one line: urllib hides the cause in `reason`, the system's words are in `strerror`."""
    inner = getattr(error, "reason", error)
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return " ".join(text.split())
