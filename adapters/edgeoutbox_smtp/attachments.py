"""Files from the one folder that attachments may come from, opened so that no link leads out of it."""

import errno
import hashlib
import os
import stat
from pathlib import Path

from edgeoutbox_smtp.errors import InvalidEmail

LARGEST = 50 * 1024 * 1024
"""Bytes of one file; no relay in common use takes more."""

_REFUSALS = {
    errno.ENOENT: "no such file in attachments_dir",
    errno.ENOTDIR: "no such file in attachments_dir",
    errno.EISDIR: "is not a file",
    errno.ELOOP: "a symbolic link is not followed",
    errno.EMLINK: "a symbolic link is not followed",
    errno.EACCES: "may not be read by this process",
    errno.EPERM: "may not be read by this process",
    errno.ENAMETOOLONG: "is too long for a path",
    errno.ENXIO: "is not a file",
}


def read_attachment(folder: Path | None, path: str, where: str) -> bytes:
    """The bytes of a file given by its path under the folder; blocks, so call it in a thread.

    Every part of the path is opened relative to the one before it and without following links, so nothing that
    changes meanwhile can lead elsewhere. Raises `InvalidEmail` naming `where`, and `OSError` without the path when
    the disk fails.
    """
    if folder is None:
        raise InvalidEmail(f"{where}: no attachments_dir is configured; give the content instead")
    if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
        raise InvalidEmail(f"{where}: this system cannot open files without following links; give the content instead")
    parts = path.split("/")
    if "\0" in path or any(part in {"", ".", ".."} for part in parts):
        raise InvalidEmail(f"{where}: must be a relative path below attachments_dir, without '..'")
    try:
        return _read(folder, parts, where)
    except OSError as error:
        if refusal := _REFUSALS.get(error.errno or 0):
            raise InvalidEmail(f"{where}: {refusal}") from None
        raise OSError(error.errno, os.strerror(error.errno or errno.EIO)) from None


def sha256_of(content: bytes) -> str:
    """The digest that a payload keeps of a file: hexadecimal SHA-256."""
    return hashlib.sha256(content).hexdigest()


def _read(folder: Path, parts: list[str], where: str) -> bytes:
    *folders, name = parts
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in folders:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = inner
        # O_NONBLOCK: opening a named pipe would otherwise wait for its writer.
        found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)
    with os.fdopen(found, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise InvalidEmail(f"{where}: is not a file")
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise InvalidEmail(f"{where}: is larger than {LARGEST // (1024 * 1024)} MiB")
    return content
