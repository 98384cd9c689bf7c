"""`schemas.py FILE ...`: compares each document with its client's class. Runs in the peer's environment."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from kubeflow.training import models as kubeflow
from kubernetes.client import models as kubernetes

CLASSES = {
    ("kubeflow.org/v1", "TFJob"): "KubeflowOrgV1TFJob",
    ("networking.k8s.io/v1", "NetworkPolicy"): "V1NetworkPolicy",
}
SCALARS = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object, "datetime": str}


def mistakes(value: Any, kind: str, path: str) -> Iterator[str]:
    """Yields a line for each field of `value` that its type `kind`, in the clients' spelling, doesn't have."""
    if match := re.fullmatch(r"list\[(.*)\]", kind):
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
            return
        for i, item in enumerate(value):
            yield from mistakes(item, match[1], f"{path}[{i}]")
    elif match := re.fullmatch(r"dict\(str, (.*)\)", kind):
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is no mapping"
            return
        for key, item in value.items():
            yield from mistakes(item, match[1], f"{path}.{key}")
    elif kind in SCALARS:
        if not isinstance(value, SCALARS[kind]) or (kind == "int" and isinstance(value, bool)):
            yield f"{path}: {value!r} is no {kind}"
    else:
        yield from _fields(value, getattr(kubeflow, kind, None) or getattr(kubernetes, kind), path)


def _fields(value: Any, cls: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: {value!r} is no {cls.__name__}"
        return
    names = {given: name for name, given in cls.attribute_map.items()}
    for key, item in value.items():
        if key not in names:
            yield f"{path}.{key}: {cls.__name__} has no such field; it has {', '.join(sorted(names))}"
        else:
            yield from mistakes(item, cls.openapi_types[names[key]], f"{path}.{key}")
    try:  # required fields, and values outside an enumeration
        cls(**{names[key]: item for key, item in value.items() if key in names})
    except ValueError as error:
        yield f"{path}: {error}"


def main() -> int:
    """Prints each document and its mistakes; returns 1 if there are any."""
    wrong = 0
    for file in map(Path, sys.argv[1:]):
        for document in yaml.safe_load_all(file.read_text()):
            version, kind = document.get("apiVersion"), document.get("kind")
            cls = CLASSES.get((version, kind))
            found = (
                [f"no class is known for {kind!r} of {version!r}"] if cls is None else [*mistakes(document, cls, kind)]
            )
            print(f"{file.name}, {kind}: {len(found)} mistakes", *found, sep="\n  ", flush=True)
            wrong += len(found)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
