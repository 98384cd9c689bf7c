"""Object storage: addresses such as `s3://bucket/runs/mine`, and the objects below them, through fsspec."""

from core.storage.address import SCHEMES, Address, is_address, parse_address
from core.storage.bucket import Bucket, StorageError, Stored
from core.storage.cache import cached

__all__ = ["SCHEMES", "Address", "Bucket", "StorageError", "Stored", "cached", "is_address", "parse_address"]
