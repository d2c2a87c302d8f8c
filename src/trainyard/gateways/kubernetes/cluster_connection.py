"""Find the requested cluster: by its name in AWS, by a kubeconfig, or the one that this process runs in."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_access import Access, eks_access, pod_access, read_access
from trainyard.gateways.kubernetes.eks import EksCluster, HyperPod, describe_cluster

if TYPE_CHECKING:
    from trainyard.run.suggested_commands import ClusterTarget


def open_api(target: "ClusterTarget", *, read: Callable[[Path], Any]) -> Api:
    """Return the API of the cluster that `target` names; `read` returns a parsed kubeconfig."""
    if target.cluster:
        return Api(access_by_name(target.cluster, target.region))
    named = Path(target.kubeconfig) if target.kubeconfig else None
    return Api(access_by_kubeconfig(named, target.context, read=read))


def access_by_name(name: str, region: str = "") -> Access:
    """Return the EKS cluster of this name, or the one of the HyperPod cluster of this name.

    Raises ConfigError when there is neither, ServiceError when AWS refuses or cannot be reached.
    """
    found = describe_cluster(name, region) or _behind(name, region)
    if found is None or not found.endpoint:
        raise ConfigError(
            f"{name}: neither an EKS cluster nor a HyperPod cluster on EKS that can be reached; "
            "trainyard cluster list shows those of a --region"
        )
    return eks_access(found)


def _behind(name: str, region: str) -> EksCluster | None:
    hyperpod = HyperPod(region)
    try:
        described = hyperpod.describe(name)
    except ConfigError:  # there is no cluster of this name
        return None
    arn = str(((described.get("Orchestrator") or {}).get("Eks") or {}).get("ClusterArn") or "")
    return describe_cluster(arn.rpartition("/")[2], region) if arn else None


def access_by_kubeconfig(
    named: Path | None,
    context: str,
    *,
    read: Callable[[Path], Any],
    environment: Mapping[str, str] = os.environ,
) -> Access:
    """Return the access of a kubeconfig: `named`, $KUBECONFIG, ~/.kube/config; else that of the pod.

    `read` returns the parsed file, or raises FileNotFoundError or DamagedFileError. Of several files in
    $KUBECONFIG the first existing one is used. Raises ConfigError.
    """
    listed = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    candidates = [named] if named else listed or [Path.home() / ".kube" / "config"]
    for path in candidates:
        try:
            return read_access(read(path), path=path, context=context)
        except FileNotFoundError:
            continue
        except DamagedFileError as error:  # its exit code would mean that a job has failed
            raise ConfigError(f"{error}; name another kubeconfig with --kubeconfig") from None
    if not named and (access := pod_access(environment)) is not None:
        return access
    raise ConfigError(
        f"{candidates[0]}: no such kubeconfig; name one with --kubeconfig, or a cluster with --cluster "
        f"and --region"
    )
