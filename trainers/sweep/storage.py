"""Opens the storage of an Optuna study: a database's URL, or the file of a journal."""

import re
import time
from pathlib import Path

from core.disk import disk_full
from core.errors import ConfigurationError, NoRoomError, TapeloopError, without_password

try:
    import optuna
    from optuna.storages import BaseStorage, JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend
except ImportError as missing:
    raise ConfigurationError(
        f"a search needs Optuna, which can't be imported ({missing}): `pip install -e '.[optuna]'` installs it. A grid "
        "of `--over` without `--storage` needs no package."
    ) from None

from trainers.track.mirror import told

WAIT_SECONDS = 20  # for the locks of other processes, and for a server's answer
ATTEMPTS = 5
RACES = ("UNIQUE constraint", "already exists", "duplicate key")  # another process makes the same tables
PACKAGES = {"MySQLdb": "mysqlclient"}  # of drivers whose module has another name
FILE_IS_FULL = ("database or disk is full", "disk I/O error")  # in SQLite's words, also where a file may not grow

optuna.logging.set_verbosity(optuna.logging.ERROR)  # the sweep prints each trial


def open_storage(url: str) -> BaseStorage:
    """Opens a storage, and makes its tables or file if they are missing. Raises an error if that fails."""
    for attempt in range(ATTEMPTS):
        try:
            return _open(url)
        except Exception as error:  # whatever Optuna, SQLAlchemy and the database's driver raise
            if attempt == ATTEMPTS - 1 or not any(words in str(_cause(error)) for words in RACES):
                raise refused(url, error, "Nothing was run.") from error
        time.sleep(1)
    raise AssertionError


def _open(url: str) -> BaseStorage:
    if "://" not in url:
        Path(url).parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(url))
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///").partition("?")[0]).parent.mkdir(parents=True, exist_ok=True)
    return RDBStorage(url, engine_kwargs={"connect_args": _wait(url)})


def refused(url: str, error: Exception, then: str) -> TapeloopError:
    """Returns the error for a storage that doesn't work, with the reason of its innermost cause and `then`."""
    shown_url = without_password(url)
    if isinstance(error, OSError) and (full := disk_full(error, shown_url, then=then)):
        return full
    cause = _cause(error)
    if isinstance(cause, ImportError):
        package = PACKAGES.get(cause.name or "", cause.name)
        return ConfigurationError(
            f"the storage `{shown_url}` needs a driver that can't be imported ({cause}): `pip install {package}` "
            "installs it, and SQLAlchemy's pages list the drivers of each database."
        )
    reason = " ".join(told(cause).replace(url, shown_url).replace("\\t", " ").split()).rstrip(".?")
    if any(words in reason for words in FILE_IS_FULL):
        return NoRoomError(f"`{shown_url}` can't be written: {reason}. Make room there. {then}")
    return ConfigurationError(
        f"the storage `{shown_url}` can't be used: {reason}. Check `--storage`: its address, user and password, and "
        f"that Optuna {optuna.__version__} reads its format. {then}"
    )


def _wait(url: str) -> dict[str, int]:
    """Returns the driver's setting of its patience, for drivers whose setting is known."""
    if url.startswith("sqlite"):
        return {"timeout": WAIT_SECONDS}
    return {"connect_timeout": WAIT_SECONDS} if re.match(r"(postgresql|mysql)\b", url) else {}


def _cause(error: Exception) -> Exception:
    """Returns what a driver said, without the statement around it."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    original = getattr(error, "orig", None)
    return original if isinstance(original, Exception) else error
