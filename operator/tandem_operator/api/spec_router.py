"""What stands in front of the workers and what watches them: `spec.router` and `spec.monitoring`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tandem_operator.api.base import ObjectName, Part, whole
from tandem_operator.api.spec_model import SecretRef
from tandem_operator.api.spec_template import PodTemplate


class Tls(Part):
    """The router's certificate."""

    secret_name: ObjectName
    """Secret of type kubernetes.io/tls in the namespace of the resource."""


class Router(Part):
    """The OpenAI-compatible front door, <resource>-router."""

    replicas: Annotated[int, Field(ge=1, le=64)] = 2
    """Pods of the router. Default: 2."""
    api_keys_secret_ref: SecretRef | None = None
    """Secret in the namespace of the resource whose values are the API keys that clients may use, as bearer tokens;
    changes are taken up without a restart. Default: none are asked for."""
    tls: Tls | None = None
    """Serve the API over HTTPS alone, on port 8443, with this certificate; a renewed one is taken up without a restart.
    Metrics and probes stay on port 8000. Default: HTTP on port 8000."""
    template: PodTemplate = whole(PodTemplate)
    """Overlay on the router's pods. Default: none."""


class Monitoring(Part):
    """Objects for an installed monitoring stack."""

    pod_monitor: bool = False
    """Make PodMonitors of the Prometheus operator. Default: false."""
    rules_: bool = Field(default=False, alias="rules")
    """Make a PrometheusRule with recording rules and burn-rate alerts. Default: false."""
    dashboard: bool = False
    """Make a ConfigMap with the Grafana dashboard. Default: false."""
