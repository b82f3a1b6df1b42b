"""The download of a hub's model, apart from hub.py: who loads from a disk never imports the hub's library."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from httpx2 import HTTPError
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tandem_worker.hub import UNREACHABLE, HubError

# The same weights in other forms; a model is loaded from *.safetensors.
UNUSED: Final = ("*.pth", "*.bin", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.gguf", "original/*", "onnx/*")


def fetched(repository: str, revision: str) -> Path:
    """The folder of this revision's files, downloaded where they are not there yet. Raises HubError."""
    what = f"hf://{repository} at revision {revision}"
    try:
        return Path(snapshot_download(repository, revision=revision or None, ignore_patterns=list(UNUSED)))
    except GatedRepoError as error:
        raise HubError(f"{what} is gated: accept its terms, and give spec.model.authSecretRef") from error
    except RevisionNotFoundError as error:
        raise HubError(f"{what}: the repository has no such revision; correct spec.model.revision") from error
    except RepositoryNotFoundError as error:
        raise HubError(
            f"{what} is not there, or private: correct spec.model.source, or give spec.model.authSecretRef"
        ) from error
    except HFValidationError as error:
        raise HubError(f"{what}: {error}") from error
    except LocalEntryNotFoundError as error:
        raise HubError(f"{what} is not in the cache, and the hub cannot be asked: {error}", UNREACHABLE) from error
    except (HTTPError, OSError) as error:
        raise HubError(f"{what} cannot be downloaded: {type(error).__name__}: {error}", UNREACHABLE) from error
