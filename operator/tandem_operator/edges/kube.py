"""The API server. The only user of the kubernetes client; every call has a deadline, and none blocks the event loop."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client as kubernetes
from kubernetes.aio import config
from pydantic_core import from_json

from tandem_operator.api.constants import FIELD_MANAGER, STATUS_MANAGER
from tandem_operator.edges.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from tandem_operator.edges.kinds import KINDS, RESOURCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON = "application/json"
HEADS = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"  # of a list: every object's metadata alone
TIMEOUT_S = 15.0  # one request: connect and read
MAX_LIST = 50_000  # objects of one kind; more is refused rather than read without end
PAGE = 100  # a pod is 15 kB on the wire and several times that when read, and a start lists a dozen kinds at once
# A field that the schema does not have: server-side apply answers it with 500 and these words, and no retry mends it.
UNTYPED = "failed to create typed patch object"

Object = dict[str, Any]


def strip_none(value: Any) -> Any:
    """Without keys whose value is None: server-side apply would send them as null, and so own and clear the field."""
    if isinstance(value, dict):
        return {key: strip_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [strip_none(inner) for inner in value if inner is not None]
    return value


async def connect(context: str | None = None) -> kubernetes.ApiClient:
    """A client from KUBECONFIG where it is set, else from the pod's service account (whose token it re-reads)."""
    # Nothing is retried here, by the client's default: that is the queue's decision, with its backoff.
    # Proxies are the kubeconfig's, as for kopf's own connections.
    configuration = kubernetes.Configuration(client_session_kwargs={"trust_env": False})
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        await config.load_kube_config(context=context, client_configuration=configuration, persist_config=False)
    return kubernetes.ApiClient(configuration)


class Kube:
    """The API server as the loop sees it: a few verbs on plain dicts, typed errors."""

    def __init__(
        self,
        client: kubernetes.ApiClient,
        timeout_s: float = TIMEOUT_S,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """may_write: asked before each write, since a process that stood still goes on in the middle of a pass."""
        self._client = client
        self._timeout_s = timeout_s
        self._may_write = may_write

    async def apply(self, manifest: Object, *, uid: str | None) -> Object:
        """Server-side apply of a child.

        `uid` is the object's that we know: it goes along as a precondition, so an object that was deleted and made
        anew by somebody else is a ConflictError. None: we know of none, and then nothing is forced: an object that
        appeared meanwhile with other owners' fields is a ConflictError too, not taken.
        """
        metadata = manifest["metadata"]
        body = strip_none(manifest)
        if uid is not None:
            body = {**body, "metadata": {**body["metadata"], "uid": uid}}
        path = KINDS[manifest["kind"]].path(metadata["namespace"], metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true" if uid is not None else "false"}
        return await self._ask("PATCH", path, query, body, APPLY)

    async def create(self, manifest: Object) -> Object:
        """Create an object; raise AlreadyExistsError where one of that name is."""
        metadata = manifest["metadata"]
        path = KINDS[manifest["kind"]].path(metadata["namespace"])
        return await self._ask("POST", path, {"fieldManager": FIELD_MANAGER}, strip_none(manifest))

    async def replace(self, manifest: Object) -> Object:
        """Put an object in place of the one of the same resourceVersion; any other is a ConflictError."""
        metadata = manifest["metadata"]
        path = KINDS[manifest["kind"]].path(metadata["namespace"], metadata["name"])
        return await self._ask("PUT", path, {"fieldManager": FIELD_MANAGER}, strip_none(manifest))

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """The object, or None where there is none."""
        try:
            return await self._ask("GET", KINDS[kind].path(namespace, name))
        except NotFoundError:
            return None

    async def pages(
        self, kind: str, namespace: str | None, selector: str = "", *, heads: bool = False
    ) -> AsyncIterator[tuple[list[Object], int]]:
        """All objects of a kind with these labels, page by page, and the version that the list is of.

        namespace None = everywhere. Thousands of pods are never held as they come, each many times what is kept of it.
        `heads`: their metadata alone.
        """
        seen = 0
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            answer = await self._ask("GET", KINDS[kind].path(namespace), query, accept=HEADS if heads else JSON)
            seen += len(answer["items"])
            if seen > MAX_LIST:
                words = f"more than {MAX_LIST} objects of kind {kind}: narrow TANDEM_NAMESPACE"
                raise ApiError("TooManyObjects", words)
            yield answer["items"], int(answer["metadata"].get("resourceVersion") or 0)
            if not (more := answer["metadata"].get("continue")):
                return
            query["continue"] = more

    async def events_on_pod(self, namespace: str, pod: str) -> list[Object]:
        """What was said of one pod, one page of it."""
        query = {"limit": str(PAGE), "fieldSelector": f"regarding.kind=Pod,regarding.name={pod}"}
        found: list[Object] = (await self._ask("GET", KINDS["Event"].path(namespace), query))["items"]
        return found

    async def patch_pod(
        self, pod: Object, *, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
    ) -> Object:
        """Set labels or annotations of exactly this pod as it was seen; any other is a ConflictError."""
        seen = pod["metadata"]
        body = strip_none(
            {
                "metadata": {
                    "uid": seen["uid"],
                    "resourceVersion": seen["resourceVersion"],
                    "labels": labels,
                    "annotations": annotations,
                }
            }
        )
        path = KINDS["Pod"].path(seen["namespace"], seen["name"])
        return await self._ask("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, MERGE)

    async def write_status(self, resource: Object, status: Object) -> Object:
        """Apply the whole status of a resource; what a former status had and this one has not is removed."""
        seen = resource["metadata"]
        body = {
            "apiVersion": KINDS[RESOURCE].api_version,
            "kind": RESOURCE,
            "metadata": {"name": seen["name"], "namespace": seen["namespace"], "uid": seen["uid"]},
            "status": strip_none(status),
        }
        path = KINDS[RESOURCE].path(seen["namespace"], seen["name"]) + "/status"
        return await self._ask("PATCH", path, {"fieldManager": STATUS_MANAGER, "force": "true"}, body, APPLY)

    async def delete(self, manifest: Object) -> None:
        """Delete exactly this object (uid precondition), its dependents in the background; gone already is done."""
        seen = manifest["metadata"]
        path = KINDS[manifest["kind"]].path(seen["namespace"], seen["name"])
        body = {"preconditions": {"uid": seen["uid"]}, "propagationPolicy": "Background"}
        try:
            await self._ask("DELETE", path, {}, body)
        except NotFoundError:
            return

    async def _ask(
        self,
        verb: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content: str = JSON,
        accept: str = JSON,
    ) -> Object:
        what = f"{verb} {path}"
        if verb != "GET" and not self._may_write():
            raise ApiError("LeaseLost", f"{what}: not sent, another operator may have begun")
        try:
            status, text = await self._call(verb, path, query or {}, body, {"Accept": accept, "Content-Type": content})
        except TimeoutError as error:
            raise ApiError("Timeout", f"{what}: no answer in {self._timeout_s:.0f} s") from error
        except (aiohttp.ClientError, kubernetes.ApiException, OSError) as error:
            raise ApiError("Unreachable", f"{what}: {type(error).__name__}") from error
        if not 200 <= status <= 299:
            raise error_of(status, text.decode(errors="replace"), f"{what}?{urlencode(query or {})}")
        answered: Object = from_json(text) if text else {}
        return answered

    async def _call(
        self, verb: str, path: str, query: dict[str, str], body: Object | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """One request. The client's own serialisation is left out: it looks for models in every value of the body."""
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, verb, body)
        url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        # The second is for an answer that comes drop by drop.
        deadline = aiohttp.ClientTimeout(sock_read=self._timeout_s, total=self._timeout_s * 2)
        answer = await self._client.rest_client.request(
            verb, url, headers=headers, body=body, _request_timeout=deadline
        )
        async with answer.response:
            return answer.status, await answer.read()


def error_of(status: int, text: str, what: str) -> ApiError:
    """The typed error of a refusal; the API server's own sentence is kept, capped."""
    try:
        refusal = json.loads(text)
    except json.JSONDecodeError:
        refusal = {}
    reason = str(refusal.get("reason") or f"Http{status}") if isinstance(refusal, dict) else f"Http{status}"
    said = str(refusal.get("message") or "no message") if isinstance(refusal, dict) else "no message"
    message = f"{what}: {said[:600]}"
    if UNTYPED in message:
        return ApiError("Invalid", message)
    if status == 404:
        return NotFoundError(reason, message)
    if reason == "AlreadyExists":
        return AlreadyExistsError(reason, message)
    if status == 409:
        return ConflictError(reason, message)
    return ApiError(reason, message)
