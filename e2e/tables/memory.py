"""An API server in memory, under the operator's own edge: paths, verbs, preconditions; and the controllers that matter.

It knows no kind by name, so whatever the operator begins to write is kept and seen here without a change.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from tandem_operator.edges.errors import ApiError
from tandem_operator.edges.kinds import KINDS, RESOURCE
from tandem_operator.edges.kube import APPLY, JSON, Kube, error_of
from tandem_operator.loop.main import world_of
from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.refs import Outcome, Ref
from tandem_operator.loop.resync import fill_cache
from tandem_operator.loop.settings import Settings
from tandem_operator.loop.world import World

Object = dict[str, Any]
Key = tuple[str, str, str]  # plural, namespace, name
PATH = re.compile(r"^/(?:api|apis/[^/]+)/[^/]+(?:/namespaces/([^/]+))?/([^/]+)(?:/([^/]+))?(?:/(status))?$")
CREATED = "2026-01-01T00:00:00Z"
READY = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]
PODS, DEPLOYMENTS = "pods", "deployments"


def refusal(status: int, reason: str, message: str = "") -> ApiError:
    """The error that the edge makes of a refusal with this status and reason."""
    return error_of(status, json.dumps({"reason": reason, "message": message or reason}), "memory")


def copied(value: Any) -> Any:
    """A deep copy of what JSON can hold; three times faster than copy.deepcopy."""
    return json.loads(json.dumps(value))


def merged(old: Any, new: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return copied(new)
    found = {**old, **{key: merged(old.get(key), value) for key, value in new.items()}}
    return {key: value for key, value in found.items() if value is not None}


class Memory(Kube):
    """Objects by (plural, namespace, name).

    `heard` is told of each request; then `gate` is asked, may raise; so may `after` a write. `watch` sees each change.
    """

    def __init__(self) -> None:
        self.items: dict[Key, Object] = {}
        self.writes: list[tuple[str, str]] = []  # (verb, plural/name[/status])
        self.heard: Callable[[str, str, dict[str, str], Object | None, str], None] = lambda *_: None
        self.gate: Callable[[str, str], None] = lambda _verb, _path: None
        self.after: Callable[[int], None] = lambda _count: None
        self.watch: Callable[[str, str, Object], None] = lambda _what, _plural, _item: None
        self._versions = itertools.count(1)
        self._names = itertools.count(1)

    async def _ask(
        self,
        verb: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content: str = JSON,
        accept: str = JSON,  # noqa: ARG002 - more than was asked for is understood, too
    ) -> Object:
        self.heard(verb, path, query or {}, body, content)
        self.gate(verb, path)
        found = PATH.match(path)
        if found is None:
            raise ValueError(f"not a path of the API: {path}")
        namespace, plural, name, sub = found.groups()
        key = (plural, namespace or "", name or (body or {}).get("metadata", {}).get("name", ""))
        if verb == "GET":
            return self._read(key) if name else self._list(plural, namespace, (query or {}).get("labelSelector", ""))
        done = self._write(verb, key, sub, body or {}, content == APPLY, (query or {}).get("force") == "true")
        self.writes.append((verb, "/".join(filter(None, (plural, key[2], sub)))))
        self.after(len(self.writes))
        return done

    def _read(self, key: Key) -> Object:
        if key not in self.items:
            raise refusal(404, "NotFound")
        return self.items[key]

    def _list(self, plural: str, namespace: str | None, selector: str) -> Object:
        wanted = [part.split("=")[0] for part in selector.split(",") if part]
        found = [
            item
            for key, item in sorted(self.items.items())
            if key[0] == plural
            and namespace in {None, key[1]}
            and all(label in (item["metadata"].get("labels") or {}) for label in wanted)
        ]
        found = [{name: part for name, part in item.items() if name not in {"apiVersion", "kind"}} for item in found]
        return {"items": found, "metadata": {"resourceVersion": str(next(self._versions))}}

    def _write(self, verb: str, key: Key, sub: str | None, body: Object, applied: bool, forced: bool) -> Object:
        old = self.items.get(key)
        if verb == "POST":
            if old is not None:
                raise refusal(409, "AlreadyExists")
            return self.store(key[0], body)
        about = body.get("preconditions") if verb == "DELETE" else body.get("metadata")
        self._hold_to(old, about or {})
        if verb == "DELETE":
            return self.remove(key)
        if sub is not None:
            if old is None:
                raise refusal(404, "NotFound")
            whole = body["status"] if applied else merged(old.get("status") or {}, body["status"])
            return self.store(key[0], {**old, "status": copied(whole)})
        if old is None:
            return self.store(key[0], body)
        if applied and not forced:
            raise refusal(409, "Conflict", "somebody else's fields")
        return self.store(key[0], self._applied(old, body) if applied else merged(old, body))

    @staticmethod
    def _hold_to(old: Object | None, wanted: Object) -> None:
        """Preconditions: this uid, this version."""
        if old is None:
            if wanted.get("uid") or wanted.get("resourceVersion"):
                raise refusal(404, "NotFound")
            return
        for name in ("uid", "resourceVersion"):
            if wanted.get(name) not in {None, old["metadata"][name]}:
                raise refusal(409, "Conflict", name)

    @staticmethod
    def _applied(old: Object, new: Object) -> Object:
        """What a former apply had and this one has not is gone: these objects are the operator's alone."""
        kept = {name: old["metadata"][name] for name in ("uid", "creationTimestamp", "generation")}
        status = {"status": old["status"]} if "status" in old else {}
        return {**copied(new), **status, "metadata": {**copied(new["metadata"]), **kept}}

    def store(self, plural: str, item: Object) -> Object:
        """Keep an object under a new version; its generation rises with its spec."""
        item = copied(item)
        metadata = item["metadata"]
        key = (plural, metadata.get("namespace", ""), metadata["name"])
        old = self.items.get(key)
        metadata["resourceVersion"] = str(next(self._versions))
        metadata.setdefault("uid", f"uid-{metadata['resourceVersion']}")
        metadata.setdefault("creationTimestamp", CREATED)
        same = old is not None and old.get("spec") == item.get("spec")
        before = old["metadata"]["generation"] if old else 0
        metadata["generation"] = before if same else before + 1
        self.items[key] = item
        self.watch("MODIFIED" if old else "ADDED", plural, item)
        return item

    def remove(self, key: Key) -> Object:
        """An object goes; its end has a version of its own."""
        item = self.items.pop(key)
        ended = {**item["metadata"], "resourceVersion": str(next(self._versions))}
        self.watch("DELETED", key[0], {**item, "metadata": ended})
        return item

    def of(self, plural: str) -> list[Object]:
        """All objects of a kind, by name."""
        return [item for key, item in sorted(self.items.items()) if key[0] == plural]

    def settle(self) -> None:
        """The cluster's controllers: Deployments get ready pods of their template; what has no Deployment goes."""
        kept = set()
        for deployment in self.of(DEPLOYMENTS):
            kept |= self._pods_of(deployment)
        for job in self.of("jobs"):
            if "status" not in job:
                done = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
                self.store("jobs", {**job, "status": done})
        for key in [key for key in self.items if key[0] == PODS and key not in kept]:
            self.remove(key)

    def _pods_of(self, deployment: Object) -> set[Key]:
        metadata, spec = deployment["metadata"], deployment["spec"]
        mine = [p for p in self.of(PODS) if p["metadata"]["ownerReferences"][0]["uid"] == metadata["uid"]]
        mine.sort(key=lambda p: int((p["metadata"].get("annotations") or {}).get(COST, 0)), reverse=True)
        mine += [self.store(PODS, self._pod(deployment)) for _ in range(spec["replicas"] - len(mine))]
        mine = mine[: spec["replicas"]]
        wanted = template_of(deployment)
        mine = [pod if pod["template"] == wanted else self.store(PODS, self._pod(deployment)) for pod in mine]
        counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), len(mine))
        status = {"observedGeneration": metadata["generation"], **counts}
        if deployment.get("status") != status:
            self.store(DEPLOYMENTS, {**deployment, "status": status})
        return {(PODS, metadata["namespace"], pod["metadata"]["name"]) for pod in mine}

    def _pod(self, deployment: Object) -> Object:
        metadata, template = deployment["metadata"], deployment["spec"]["template"]
        about = {
            **copied(template["metadata"]),
            "name": f"{metadata['name']}-{next(self._names):04}",
            "namespace": metadata["namespace"],
            "ownerReferences": [{"kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"]}],
        }
        return {
            "metadata": about,
            "spec": copied(template["spec"]),
            "status": {"phase": "Running", "conditions": READY},
            "template": template_of(deployment),
        }


COST = "controller.kubernetes.io/pod-deletion-cost"


def template_of(deployment: Object) -> str:
    """The pod template as text: pods of another one are replaced."""
    return json.dumps(deployment["spec"]["template"], sort_keys=True)


class Case:
    """One resource `serving/chat`, an operator that has just started, and a cluster that answers it."""

    def __init__(self, body: Object, settings: Settings | None = None) -> None:
        self.ref = Ref(body["metadata"]["namespace"], body["metadata"]["name"])
        self.kube = Memory()
        self.settings = settings or Settings()
        self.plural = KINDS[RESOURCE].plural
        self.kube.store(self.plural, body)
        self.world: World = world_of(self.settings, self.kube)
        self.learn: Callable[[], Awaitable[None]] = self.list_all  # what a pass begins with

    async def restart(self) -> None:
        """The operator's process is another one: all that it knows is what the API server has."""
        self.world = world_of(self.settings, self.kube)
        await fill_cache(self.world)

    def body(self) -> Object:
        """The resource as the API server has it."""
        return self.kube.items[self.plural, self.ref.namespace, self.ref.name]

    def edit(self, spec: Object) -> None:
        """Another spec, as a user applies it."""
        self.kube.store(self.plural, {**self.body(), "spec": spec})

    def touch(self) -> None:
        """Another generation of the same spec."""
        self.kube.store(self.plural, self.body())["metadata"]["generation"] += 1

    async def list_all(self) -> None:
        """What the watches would show; a list that is refused is tried again with the next pass."""
        with suppress(ApiError):
            await fill_cache(self.world)

    async def one_pass(self) -> Outcome:
        """A pass over what there is by now."""
        await self.learn()
        return await reconcile(self.world, self.ref)

    async def converge(self, passes: int = 12) -> Outcome:
        """Passes and controllers in turn, until a pass writes nothing. Raises AssertionError after too many."""
        for _ in range(passes):
            before = len(self.kube.writes)
            outcome = await self.one_pass()
            quiet = len(self.kube.writes) == before
            self.kube.settle()
            if quiet:
                return outcome
        raise AssertionError(f"still writing after {passes} passes: {self.kube.writes[-5:]}")

    def condition(self, kind: str) -> Object | None:
        """One of the resource's conditions, None where it has none of that type."""
        found: list[Object] = (self.body().get("status") or {}).get("conditions") or []
        return next((c for c in found if c["type"] == kind), None)
