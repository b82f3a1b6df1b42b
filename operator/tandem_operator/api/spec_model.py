"""What is served and by which engine: `spec.model` and `spec.engine`."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tandem_operator.api.base import ObjectName, Part, Rule

DType = Literal["bfloat16", "float16", "float32"]
EngineName = Literal["tandem", "vllm", "sglang"]

# Options that follow from the resource, in every engine's spelling; an argument that repeats one would contradict it.
OWNED_OPTIONS = (
    "--model",
    "--model-path",
    "--revision",
    "--served-name",
    "--served-model-name",
    "--dtype",
    "--max-context",
    "--max-model-len",
    "--context-length",
    "--host",
    "--port",
    "--kv-port",
    "--transfer-backend",
    "--kv-transfer-config",
    "--tensor-parallel",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--enable-expert-parallel",
    "-tp",
    "-pp",
    "-dp",
    "--tp",
    "--tp-size",
    "--pp-size",
    "--dp-size",
    "--ep-size",
    "--enable-dp-attention",
    "--disaggregation-mode",
    "--disaggregation-transfer-backend",
    "--disaggregation-bootstrap-port",
    "--disaggregation-ib-device",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--headless",
    "--dist-init-addr",
)


class SecretRef(Part):
    """A Secret in the resource's own namespace."""

    name: ObjectName
    """Name of the Secret, in the namespace of the resource."""


class ModelCache(Part):
    """Where downloaded weights are kept between pods; exactly one of the two."""

    persistent_volume_claim: ObjectName | None = None
    """Name of a PersistentVolumeClaim (ReadWriteMany) in the namespace of the resource. A Job pulls the model into it
    before the first worker starts; workers mount it read-only and ask no hub. Example: models."""
    host_path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r'^/[^"\\]*$')] | None = None
    """Absolute path on the nodes, where the operator's settings allow HostPath; user 65532 must be able to write it,
    and each node downloads for itself. Example: /var/cache/models."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="exactly one of persistentVolumeClaim and hostPath",
            holds=lambda cache: (cache.persistent_volume_claim is None) != (cache.host_path is None),
            cel="has(self.persistentVolumeClaim) != has(self.hostPath)",
        ),
    )


NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
SOURCE = (
    rf'^(hf://{NAME}/{NAME}|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^"\\\s]*)?|file://[^"\\\s]+'
    r'|oci://[a-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9._:-]+)+(@[^"\\\s]*)?)$'
)
DIGEST = "@sha256:[0-9a-f]{64}(/|$)"  # of an image, with a path in it behind


class Model(Part):
    """The model to serve."""

    source: Annotated[str, Field(min_length=1, max_length=1024, pattern=SOURCE)]
    """Where the weights are: hf://<owner>/<name> (model hub), pvc://<claim>/<path> (a volume), file://<absolute path>
    (a folder in the engine's image), or oci://<image>@sha256:<digest>/<path> (an image of weights, mounted as a
    volume). Example: file:///models/smollm2-135m-instruct."""
    revision: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")] | None = (
        None
    )
    """Commit, tag or branch of a hf:// model, required there: a branch moves, so pin a commit. status.modelRevision
    says what runs. Other sources have none."""
    served_name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")]
    """The name that clients put into a request's "model". Example: llama-70b."""
    dtype: DType = "bfloat16"
    """Number type of weights, activations and KV cache. Default: bfloat16."""
    max_context: Annotated[int, Field(ge=16, le=16_777_216)] = 4096
    """Most tokens of one request, prompt and output together; no more than the model was made for. Default: 4096."""
    auth_secret_ref: SecretRef | None = None
    """Secret with the hub's token under the key "token", for gated hf:// models; the operator never reads it."""
    cache: ModelCache | None = None
    """Where a hf:// model is kept, so that a new pod does not download it again. Default: nowhere."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="a hf:// source needs a revision, so that every worker serves the same weights; other sources have "
            "none",
            holds=lambda model: model.is_hub == (model.revision is not None),
            cel="self.source.startsWith('hf://') == has(self.revision)",
            field=".revision",
        ),
        Rule(
            message="an oci:// source needs a digest, @sha256:<64 hexadecimal characters>: a tag moves",
            holds=lambda model: not model.source.startswith("oci://") or re.search(DIGEST, model.source) is not None,
            cel=f"!self.source.startsWith('oci://') || self.source.matches('{DIGEST}')",
            field=".source",
        ),
        Rule(
            message="authSecretRef and cache are for hf:// sources alone",
            holds=lambda model: model.is_hub or (model.auth_secret_ref is None and model.cache is None),
            cel="self.source.startsWith('hf://') || (!has(self.authSecretRef) && !has(self.cache))",
            field=".source",
        ),
    )

    @property
    def is_hub(self) -> bool:
        """Is the model downloaded?"""
        return self.source.startswith("hf://")


Argument = Annotated[str, Field(max_length=512)]


def _args_are_free(engine: Engine) -> bool:
    # vLLM also takes single keys of an option: --kv-transfer-config.kv_role.
    return not any(arg.split("=", 1)[0].split(".", 1)[0] in OWNED_OPTIONS for arg in engine.args)


class Engine(Part):
    """The program that computes: which one, from which image, with which further arguments."""

    name: EngineName = "tandem"
    """Which engine: tandem, vllm or sglang. Default: tandem."""
    image: Annotated[str, Field(max_length=512, pattern=r"^[A-Za-z0-9._:/@-]*$")] = ""
    """Container image of the workers; vllm and sglang need one, by a tag that stays or a digest. Default: "", the image
    that the operator was installed with (tandem)."""
    version: Annotated[str, Field(max_length=32, pattern=r"^([0-9]{1,4}(\.[0-9]{1,4}){1,2})?$")] = ""
    """Version of vllm or sglang in the image, where its tag does not say: older ones take other options. Example:
    0.13.0. Default: "", by the tag of the engines' own images (vllm-openai, sglang; mirrors too), else a new one."""
    args: list[Argument] = Field(
        default_factory=list, max_length=64, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Arguments added to the worker's command, one list item each. What follows from the resource (model, name, dtype,
    context, host, ports, parallelism, transfer) cannot be repeated here. Example: ["--max-batch", "32"]. Default:
    none."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="an option that follows from the resource (model, name, dtype, context, host, ports, parallelism, "
            "transfer) cannot be set here",
            holds=_args_are_free,
            cel=f"!has(self.args) || self.args.all(a, !(a.split('=', 2)[0].split('.', 2)[0] in {list(OWNED_OPTIONS)}))",
            field=".args",
        ),
        Rule(
            message="engines vllm and sglang need the image to run: the operator comes with tandem's alone",
            holds=lambda engine: engine.name == "tandem" or bool(engine.image),
            cel="self.name == 'tandem' || (has(self.image) && self.image != '')",
            field=".image",
        ),
        Rule(
            message="version is of vllm or sglang: tandem's workers have the operator's",
            holds=lambda engine: engine.name != "tandem" or not engine.version,
            cel="self.name != 'tandem' || !has(self.version) || self.version == ''",
            field=".version",
        ),
    )
