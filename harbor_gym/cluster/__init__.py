"""Run calls in other processes, or on the nodes of a Ray cluster (extra ``ray``): any function over environments.

:class:`ClusterExecutor` is a ``concurrent.futures.Executor`` over the nodes. It translates a call's arguments: a task
directory is sent once to each node, by the hash of its content; files below the driver's output folder are written on
the node and copied back with the result.
"""

from harbor_gym.cluster.executor import ClusterExecutor, ClusterLimits
from harbor_gym.cluster.session import connect
from harbor_gym.cluster.workers import open_executor

__all__ = ["ClusterExecutor", "ClusterLimits", "connect", "open_executor"]
