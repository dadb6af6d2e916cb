"""Emulated clusters, as the tests of clusters have them."""

from tests.cluster.conftest import begin, cluster, place

__all__ = ["begin", "cluster", "place"]
