"""Endpoints from a Kubernetes cluster: pods, InferencePools and EndpointSlices, listed and watched over plain HTTP."""

from fairlead.discovery.kubernetes.source import KubernetesSource

__all__ = ["KubernetesSource"]
