"""The resource `DisaggregatedInference` of tandem.dev/v1alpha1, and how a body of the API server becomes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AwareDatetime, Field, ValidationError

from tandem_operator.api.base import DNS_LABEL, Part, Rule, broken_rules
from tandem_operator.api.constants import MAX_NAME
from tandem_operator.api.spec import Spec
from tandem_operator.api.status import Status


class Metadata(Part):
    """What the operator reads of the object's metadata; the API server validates the rest."""

    name: Annotated[str, Field(max_length=MAX_NAME, pattern=DNS_LABEL)]
    namespace: str
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    deletion_timestamp: AwareDatetime | None = None


class InvalidResourceError(ValueError):
    """The body is no valid resource; `problems` has one `path: what is wrong` each."""

    def __init__(self, problems: list[str]) -> None:
        """Keep the problems, and say all of them."""
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class DisaggregatedInference(Part):
    """One model served by prefill and decode pools whose ratio is kept right."""

    api_version: Literal["tandem.dev/v1alpha1"] = "tandem.dev/v1alpha1"
    kind: Literal["DisaggregatedInference"] = "DisaggregatedInference"
    metadata: Metadata
    spec: Spec
    """What is wanted."""
    status: Status = Field(default_factory=Status)
    """What is, and what the operator decided."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message=f"metadata.name must be at most {MAX_NAME} characters, so that the names of children fit",
            holds=lambda resource: len(resource.metadata.name) <= MAX_NAME,
            cel=f"self.metadata.name.size() <= {MAX_NAME}",
        ),
        Rule(
            message="metadata.name must begin with a letter and have no dots, so that the names of Services are valid",
            holds=lambda resource: "." not in resource.metadata.name and resource.metadata.name[:1].isalpha(),
            cel=f"self.metadata.name.matches('{DNS_LABEL}')",
        ),
    )


def read(body: Mapping[str, Any]) -> DisaggregatedInference:
    """The resource in a body of the API server.

    Raises InvalidResourceError with every problem. The API server refuses the same; this is for an older CRD there.
    """
    try:
        resource = DisaggregatedInference.model_validate(body)
    except ValidationError as error:
        raise InvalidResourceError([_sentence(found["loc"], found["msg"]) for found in error.errors()]) from None
    if problems := list(broken_rules(resource.spec, "spec")):
        raise InvalidResourceError(problems)
    return resource


def _sentence(where: tuple[int | str, ...], what: str) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
    return f"{path.removeprefix('.')}: {what}"
