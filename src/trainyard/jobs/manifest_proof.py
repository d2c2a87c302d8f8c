"""Wrap the command of somebody else's job with `trainyard pod`, so that its run is recorded, stored, proven.

    container: command, args ──> command: python -P -m trainyard pod …, env: TRAINYARD_…

The command becomes `program.command` of a configuration, which the container carries in a variable: nothing
is mounted for it. Trainyard is in the image, or an init container copies it, with a Python of its own, from
another image. No pod needs the internet.
"""

import json
import shlex
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from trainyard.config.schema import Config
from trainyard.config.yaml_reader import parse_documents
from trainyard.errors import ConfigError
from trainyard.jobs.job_manifest import JobManifest, container_command, pod_count, training_container
from trainyard.jobs.job_spec import FILES_DIRECTORY, JobSpec, Program
from trainyard.jobs.kinds.ray_cluster import PLAIN
from trainyard.jobs.pod_template import container_environment, container_security
from trainyard.jobs.recipes import ANY_PROGRAM, pod_program
from trainyard.plan.environment.settings_reading import pod_groups

Json = dict[str, Any]
TOOLS = "/opt/trainyard"
"""The folder of Trainyard and its Python in the image from which an init container copies it."""
_COPY = "/trainyard-copy"
_FILES = "TRAINYARD_FILES"


@dataclass(frozen=True)
class JobWrapper:
    """Wraps the commands of one job."""

    manifest: JobManifest
    plan: JobSpec
    config_for: Callable[[Sequence[str]], Config]
    """Returns the configuration of a command in the pods."""
    image: str = ""
    """The image with Trainyard in TOOLS; empty: the image of the job has Trainyard."""

    def wrap(self) -> tuple[JobManifest, JobSpec]:
        """Return the job with its commands wrapped, and its plan.

        Raises ConfigError for a container whose command the image decides.
        """
        kind, job = self.manifest.kind, deepcopy(self.manifest.job)
        if self.image and (kind.on_ray or kind.needs_runtime):
            raise ConfigError(
                f"--prove {self.image}: other objects than the {kind.api_kind} describe its pods. Install "
                "Trainyard into the image of the job, and use --prove alone. Nothing was sent."
            )
        if kind.on_ray:
            program = self._wrap_entrypoint(job["spec"])
        elif kind.needs_runtime:
            program = self._wrap_container(job["spec"].setdefault("trainer", {}), "spec.trainer")
        else:
            for _, template in pod_groups(job["spec"], pod_count):
                container = training_container(template, kind)
                program = self._wrap_container(container, f"container {container.get('name')}")
                if self.image:
                    _add_copy(template["spec"], container, self.image)
        return replace(self.manifest, job=job), replace(self.plan, program=program)

    def _wrap_container(self, container: Json, place: str) -> Program:
        if not container.get("command"):
            image = container.get("image") or self.plan.image
            raise ConfigError(
                f"{self.manifest.title}, {place}: it has no command, so the image decides it, which is not "
                "seen from here. Add a line such as command: [python, train.py]. The image's ENTRYPOINT: "
                f"docker inspect --format '{{{{json .Config.Entrypoint}}}}' {image}. Nothing was sent."
            )
        program, variables, files = self._program_of(container_command(container))
        container["command"] = list(program.command)
        container.pop("args", None)
        given = {each.get("name") for each in container.get("env") or ()}
        added = [each for each in variables if each["name"] not in given]
        # The files are last: Kubernetes fills in $(NAME) of the variables before, as it did in the command.
        container["env"] = [*(container.get("env") or ()), *added, {"name": _FILES, "value": files}]
        return program

    def _wrap_entrypoint(self, spec: Json) -> Program:
        """Wrap the command of a RayJob, which is one text for a shell."""
        text = str(spec.get("entrypoint") or "")
        if not text:
            raise ConfigError(f"{self.manifest.title}: it has no entrypoint. Nothing was sent.")
        words = text.split()
        plain = all(map(PLAIN.fullmatch, words))
        program, variables, files = self._program_of(words if plain else ["bash", "-c", text])
        spec["entrypoint"] = shlex.join(program.command)
        documents = parse_documents(str(spec.get("runtimeEnvYAML") or ""), "runtimeEnvYAML")
        environment: Json = documents[0] if documents else {}
        added = {each["name"]: each["value"] for each in variables if "value" in each}
        merged = {**added, **(environment.get("env_vars") or {}), _FILES: files}
        spec["runtimeEnvYAML"] = json.dumps({**environment, "env_vars": merged})
        return program

    def _program_of(self, command: Sequence[str]) -> tuple[Program, list[Json], str]:
        """Return the wrapped program, our variables for it, and the JSON of the files that it reads."""
        config = self.config_for(command)
        if self.image:
            pod = config.cluster.pod.model_copy(update={"python": f"{TOOLS}/bin/python"})
            config = config.model_copy(update={"cluster": config.cluster.model_copy(update={"pod": pod})})
        # Without a claim the run is on the disk of the pod, from where it is stored.
        plan = replace(self.plan, mount_path=self.plan.mount_path or "/tmp")  # noqa: S108
        program = pod_program(ANY_PROGRAM, config, plan, once=self.manifest.kind.on_ray)
        folder = f"/tmp/trainyard-{plan.name}"  # noqa: S108
        words = tuple(word.replace(FILES_DIRECTORY, folder) for word in program.command)
        files = {f"{folder}/{name}": text for name, text in program.files.items()}
        program = replace(program, command=words, files={})
        plan = replace(plan, program=program, network=config.compute.network)
        ours = [each for each in container_environment(plan) if each["name"].startswith("TRAINYARD_")]
        return program, ours, json.dumps(files)


def _add_copy(pod: Json, container: Json, image: str) -> None:
    """Add the init container that copies Trainyard from `image`, and the volume that it copies into."""
    volume = "trainyard"
    amounts = {"cpu": "500m", "memory": "1Gi"}
    security = {**container_security(), **(container.get("securityContext") or {})}
    copy = {
        "name": "trainyard-copy",
        "image": image,
        "command": ["cp", "-a", f"{TOOLS}/.", _COPY],
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "securityContext": {key: value for key, value in security.items() if key != "privileged"},
        "volumeMounts": [{"name": volume, "mountPath": _COPY}],
    }
    pod["initContainers"] = [*(pod.get("initContainers") or ()), copy]
    pod["volumes"] = [*(pod.get("volumes") or ()), {"name": volume, "emptyDir": {}}]
    mount = {"name": volume, "mountPath": TOOLS, "readOnly": True}
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
