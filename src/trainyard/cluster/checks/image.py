"""Check that the image exists where the cluster pulls it from, and that no pod currently fails to pull it."""

from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts, list_names
from trainyard.cluster.snapshot import Image, MissingData
from trainyard.plan.finding import Finding

_PULL = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")


def judge(facts: Facts) -> Iterator[Finding]:
    if not facts.job.image:
        yield Finding.skipped("no image is named (--image-uri)")
        return
    failing = list(_failing(facts))
    yield from failing
    image = facts.snapshot.image
    if isinstance(image, MissingData):
        yield Finding.skipped(f"the registry was not queried: {image.reason}")
        return
    found = list(_judge_image(image, facts))
    yield from found
    if not found and not failing:
        yield Finding.success(f"{image.uri} exists" + (f" ({image.digest[:19]}…)" if image.digest else ""))


def _judge_image(image: Image, facts: Facts) -> Iterator[Finding]:
    region = facts.snapshot.region
    if not image.found:
        yield Finding.error(
            f"{image.uri} does not exist in {image.registry}", "push it, or correct --image-uri"
        )
    if image.region and region and image.region != region:
        yield Finding.warning(
            f"{image.uri} is in {image.region}, the cluster in {region}: every node pulls it across regions",
            f"copy the image to ECR in {region}",
        )


def _failing(facts: Facts) -> Iterator[Finding]:
    pods = facts.snapshot.pods
    if isinstance(pods, MissingData):
        return
    wanted = facts.job.image
    failing = [f"{pod.namespace}/{pod.name}" for pod in pods if pod.waiting in _PULL and wanted in pod.images]
    if failing:
        yield Finding.error(
            f"{list_names(failing)}: cannot pull this image now",
            "see its events for the reason: kubectl describe pod; nodes need ecr:BatchGetImage and "
            "ecr:GetDownloadUrlForLayer, or imagePullSecrets",
        )


CHECK = Check("image", "the image and its registry", judge)
