"""Put the names of objects into the paths of the API: a name stays one part of its path, and is never empty.

The path of an object without its name is the path of the list, and `DELETE` there removes every object.
Nothing is requested here, and whether Kubernetes permits a name is left to its API server.
"""

from urllib.parse import quote

from trainyard.errors import ConfigError


def path_part(name: str) -> str:
    """Return `name` as one part of a path. Raises ConfigError for a name that is no single part."""
    if name in ("", ".", ".."):
        raise ConfigError(f"{name!r} is not the name of an object in a cluster")
    return quote(name, safe="")
