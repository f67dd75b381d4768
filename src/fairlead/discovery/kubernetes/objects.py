"""The objects of the Kubernetes API that are read, as far as they are: all other fields are ignored."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Metadata(_Object, frozen=True):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Condition(_Object, frozen=True):
    type: str
    status: str


class PodStatus(_Object, frozen=True):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[Condition, ...] | None = None


class Pod(_Object, frozen=True):
    metadata: Metadata
    status: PodStatus = PodStatus()


class LabelSelector(_Object, frozen=True):
    match_labels: dict[str, str] | None = None


class TargetPort(_Object, frozen=True):
    number: int


class InferencePoolSpec(_Object, frozen=True):
    selector: LabelSelector = LabelSelector()
    target_ports: tuple[TargetPort, ...] = ()


class InferencePool(_Object, frozen=True):
    metadata: Metadata
    spec: InferencePoolSpec = InferencePoolSpec()


class EndpointConditions(_Object, frozen=True):
    """Unset means ready and serving, and not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class SliceEndpoint(_Object, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions | None = None


class SlicePort(_Object, frozen=True):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(_Object, frozen=True):
    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None


class PoolRef(_Object, frozen=True):
    name: str = ""


class ObjectiveSpec(_Object, frozen=True):
    priority: int | None = None  # unset: 0
    pool_ref: PoolRef = PoolRef()


class InferenceObjective(_Object, frozen=True):
    metadata: Metadata
    spec: ObjectiveSpec = ObjectiveSpec()


class ModelMatch(_Object, frozen=True):
    value: str = ""
    type: str = "Exact"


class RewriteMatch(_Object, frozen=True):
    model: ModelMatch | None = None


class RewriteTarget(_Object, frozen=True):
    model_rewrite: str
    weight: int | None = None


class RewriteRule(_Object, frozen=True):
    matches: tuple[RewriteMatch, ...] | None = None  # none: all models
    targets: tuple[RewriteTarget, ...] = ()


class RewriteSpec(_Object, frozen=True):
    pool_ref: PoolRef = PoolRef()
    rules: tuple[RewriteRule, ...] = ()


class InferenceModelRewrite(_Object, frozen=True):
    metadata: Metadata
    spec: RewriteSpec = RewriteSpec()


class ListMetadata(_Object, frozen=True):
    resource_version: str = ""


class ObjectList(_Object, Generic[T], frozen=True):
    items: tuple[T, ...] | None = None
    metadata: ListMetadata = ListMetadata()


class WatchEvent(_Object, frozen=True):
    type: str  # ADDED, MODIFIED, DELETED, BOOKMARK or ERROR
    object: msgspec.Raw


class Bookmark(_Object, frozen=True):
    metadata: Metadata


class Status(_Object, frozen=True):
    """Why a request or a watch failed."""

    code: int = 0
    message: str = ""
