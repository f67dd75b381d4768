"""Tests against a real kube-apiserver, which is built from Go's module proxy: `make test-kubernetes`."""
