"""Merge a platform's own pod patch into the pods of its Jobs: fast networks need containers, volumes and annotations.

A strategic merge, as Kubernetes defines it: mappings merge, lists of named things merge by name, other lists are
replaced, null removes. The fields are checked against the models of the installed Kubernetes client.
"""

import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from harness.contract.errors import SpecError, show

MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "imagePullSecrets": "name",
    "resourceClaims": "name", "volumeMounts": "mountPath", "volumeDevices": "devicePath", "ports": "containerPort",
    "hostAliases": "ip", "topologySpreadConstraints": "topologyKey",
}  # fmt: skip
"""Lists of a pod that merge -> the field that names an element (x-kubernetes-patch-merge-key of the API)."""
PLAIN: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": (int, float)}


@functools.cache
def read_patch(folder: str, platform: str) -> dict[str, Any]:
    """The patch of a platform's pods, checked; empty when the folder holds none for it. Raises SpecError."""
    path = Path(folder, f"{platform}.yaml")
    if not folder or not path.exists():
        return {}
    import yaml  # lazy: Snakemake imports every plugin at every start

    try:
        patch = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SpecError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    try:
        _check(patch, "V1PodTemplateSpec", "")
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    return dict(patch)


def digest(folder: str, platform: str) -> str:
    """What tells one patch from another; empty when there is none."""
    patch = read_patch(folder, platform)
    return hashlib.sha256(json.dumps(patch, sort_keys=True).encode()).hexdigest()[:12] if patch else ""


def merge(base: Any, patch: Any, name: str = "") -> Any:
    """`base` with `patch` merged into it; `name` is the field that holds both."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = base | {key: merge(base.get(key), value, key) for key, value in patch.items()}
        return {key: value for key, value in merged.items() if value is not None}
    if isinstance(base, list) and isinstance(patch, list) and (key := MERGE_KEYS.get(name)):
        changes = {element[key]: element for element in patch}
        known = {element[key] for element in base}
        kept = [merge(element, changes.get(element[key], {})) for element in base]
        return kept + [element for element in patch if element[key] not in known]
    return patch


def _check(value: Any, kind: str, where: str) -> None:
    """Refuse what the Kubernetes client's model `kind` does not know; `where` is the path of `value`."""
    from kubernetes.client import models  # lazy: Snakemake imports every plugin at every start

    inner = re.fullmatch(r"List\[(.*)\]|Dict\[str, (.*)\]", kind)
    if value is None or kind == "object":
        return
    if inner and inner[1]:
        if not isinstance(value, list):
            raise SpecError(f"{where}: found {show(value)}, expected a list")
        for number, element in enumerate(value):
            key = MERGE_KEYS.get(where.rpartition(".")[2])
            if key and not (isinstance(element, dict) and element.get(key)):
                raise SpecError(f"{where}[{number}]: found no {key}; entries of this list are merged by {key}")
            _check(element, inner[1], f"{where}[{number}]")
    elif inner or hasattr(models, kind):
        if not isinstance(value, dict):
            raise SpecError(f"{where or 'the file'}: found {show(value)}, expected a mapping")
        known = _fields(getattr(models, kind)) if not inner else dict.fromkeys(value, inner[2])
        for field, element in value.items():
            place = f"{where}.{field}".lstrip(".")
            if field not in known:
                raise SpecError(f"{place}: no such field; expected one of {', '.join(sorted(known))}")
            _check(element, known[field], place)
    elif not isinstance(value, PLAIN.get(kind, object)) or (kind == "int" and isinstance(value, bool)):
        quote = ": quote it" if kind == "str" else ""
        raise SpecError(f"{where}: found {show(value)}, expected {kind}{quote}")


def _fields(model: Any) -> dict[str, str]:
    """Fields of a model as the API spells them -> the kind of each."""
    return {spelled: model.openapi_types[attribute] for attribute, spelled in model.attribute_map.items()}
