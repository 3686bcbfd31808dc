"""Calls played in other processes, or by the nodes of a Ray cluster (extra ``ray``): any function over environments.

:class:`ClusterExecutor` is a ``concurrent.futures.Executor`` over the nodes. What a call holds is translated on the
way: a task directory travels once to each node, by the hash of its content; paths below the driver's output folder are
written on the node and brought back with the result.
"""

from harbor_gym.cluster.executor import ClusterExecutor, ClusterLimits
from harbor_gym.cluster.session import connect
from harbor_gym.cluster.workers import open_executor

__all__ = ["ClusterExecutor", "ClusterLimits", "connect", "open_executor"]
