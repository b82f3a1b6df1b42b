"""Where a worker finds its model: what it is told, what is mounted, and the Job that fills a shared cache once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tandem_operator.templates.names import Owner
from tandem_operator.templates.render import render

if TYPE_CHECKING:
    from tandem_operator.api.spec_model import Model

Object = dict[str, Any]
MODEL: Final = "model"
CACHE: Final = "cache"
MODEL_FOLDER: Final = "/model"
CACHE_FOLDER: Final = "/cache"
REVISION: Final = "tandem.dev/model-revision"  # annotation of a worker pod: the revision that it serves


@dataclass(frozen=True, slots=True)
class Weights:
    """What a pod needs for its model. `source`: as the worker is told it."""

    source: str
    env: tuple[Object, ...] = ()
    volumes: tuple[Object, ...] = ()
    mounts: tuple[Object, ...] = ()


def weights_of(model: Model) -> Weights:
    """The worker's view of spec.model."""
    parts = urlsplit(model.source)
    if parts.scheme == "pvc":
        claim = {"claimName": parts.netloc, "readOnly": True}
        return Weights(
            f"file://{MODEL_FOLDER}{parts.path}".rstrip("/"),
            volumes=({"name": MODEL, "persistentVolumeClaim": claim},),
            mounts=({"name": MODEL, "mountPath": MODEL_FOLDER, "readOnly": True},),
        )
    if parts.scheme == "oci":
        reference, path = image_and_path(model.source)
        return Weights(
            f"file://{MODEL_FOLDER}{path}".rstrip("/"),
            volumes=({"name": MODEL, "image": {"reference": reference, "pullPolicy": "IfNotPresent"}},),
            mounts=({"name": MODEL, "mountPath": MODEL_FOLDER, "readOnly": True},),
        )
    if parts.scheme != "hf":
        return Weights(model.source)
    return of_hub(model, pulls=False)


def image_and_path(source: str) -> tuple[str, str]:
    """`oci://host/name@sha256:…/path` as the image's reference and the path in it."""
    name, _, rest = source.removeprefix("oci://").partition("@")
    digest, slash, path = rest.partition("/")
    return f"{name}@{digest}", slash + path


def of_hub(model: Model, *, pulls: bool) -> Weights:
    """A hub's model. Only the pulling Job writes a claim that workers share, and only it asks the hub then."""
    env: list[Object] = [{"name": "HF_HUB_DISABLE_TELEMETRY", "value": "1"}]
    if model.auth_secret_ref:
        token = {"secretKeyRef": {"name": model.auth_secret_ref.name, "key": "token"}}
        env.append({"name": "HF_TOKEN", "valueFrom": token})
    if (volume := cache_volume(model)) is None:
        return Weights(model.source, tuple(env))
    env.append({"name": "HF_HOME", "value": CACHE_FOLDER})
    reads_only = is_pulled(model) and not pulls
    if reads_only:
        env.append({"name": "HF_HUB_OFFLINE", "value": "1"})
    mount = {"name": CACHE, "mountPath": CACHE_FOLDER} | ({"readOnly": True} if reads_only else {})
    return Weights(model.source, tuple(env), (volume,), (mount,))


def cache_volume(model: Model) -> Object | None:
    """The volume of spec.model.cache."""
    if model.cache is None:
        return None
    if model.cache.persistent_volume_claim:
        return {"name": CACHE, "persistentVolumeClaim": {"claimName": model.cache.persistent_volume_claim}}
    return {"name": CACHE, "hostPath": {"path": model.cache.host_path, "type": "Directory"}}


def is_pulled(model: Model) -> bool:
    """Does a Job pull the model before any worker starts? Into a claim that all of them mount."""
    return model.is_hub and model.cache is not None and model.cache.host_path is None


def pull_job(owner: Owner, model: Model, image: str) -> Object | None:
    """The Job that pulls the model; None where no cache is shared. A Job cannot change: its name tells what it does."""
    if not is_pulled(model):
        return None
    job = render(
        "pull",
        metadata=owner.metadata(MODEL, MODEL),
        image=image,
        args=[model.source, "--revision", model.revision],
        service_account=owner.child("worker"),
        weights=of_hub(model, pulls=True),
    )
    digest = hashlib.sha256(json.dumps(job["spec"], sort_keys=True).encode()).hexdigest()[:8]
    job["metadata"]["name"] = owner.child(f"{MODEL}-{digest}")
    return job
