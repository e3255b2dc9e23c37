"""Java programs from Maven Central: their jars are fetched by `mvn`, once, into the cache folder (`SHMSTORE_CACHE`)."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers.packages import ServerUnavailable, cache_folder, locked

_POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    "<groupId>shmstore</groupId><artifactId>jars</artifactId><version>1</version>"
    # which poms of Debezium's name, and nothing here is from
    "<repositories><repository><id>confluent</id><url>file:///none</url><releases><enabled>false</enabled></releases>"
    "<snapshots><enabled>false</enabled></snapshots></repository></repositories>"
    "<dependencyManagement><dependencies>{}</dependencies></dependencyManagement><dependencies>{}</dependencies></project>"
)
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_IMPORTED = "<type>pom</type><scope>import</scope>"
_CLASSIFIER = "<classifier>{}</classifier>"
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


@functools.cache
def jars(name: str, *artifacts: str, versions: str = "") -> Path:
    """The folder `name` of the jars that the artifacts (``GROUP:ARTIFACT:VERSION``) need, fetched the first time; of one with a classifier
    (``GROUP:ARTIFACT:VERSION:CLASSIFIER``), which has all in it, that jar alone, and so with an empty one (``GROUP:ARTIFACT:VERSION:``).
    `versions` is a pom (``GROUP:ARTIFACT:VERSION``) that lists the versions of what the artifacts need.

    Raises `ServerUnavailable` where they cannot be had.
    """
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise ServerUnavailable(
                f"{name} needs {program}, which is not on the PATH: install it (openjdk-17-jdk-headless, maven)"
            )
    folder = cache_folder() / name
    with locked(folder.with_suffix(".lock")):
        if folder.exists():
            return folder
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder.parent) as work:
            imported = _DEPENDENCY.format(*versions.split(":"), _IMPORTED) if versions else ""
            Path(work, "pom.xml").write_text(_POM.format(imported, "".join(map(_dependency, artifacts))))
            command = ["mvn", "-q", "-B", _COPY, "-DincludeScope=runtime", "-DoutputDirectory=jars"]
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ServerUnavailable(f"mvn could not fetch the jars of {name}: {(done.stdout + done.stderr)[-500:]}")
            Path(work, "jars").rename(folder)
    return folder


def _dependency(artifact: str) -> str:
    *named, version = artifact.split(":")[:3]
    classifier = artifact.split(":")[3:]
    more = [_CLASSIFIER.format(name) for name in classifier if name] + [_ALONE] * bool(classifier)
    return _DEPENDENCY.format(*named, version, "".join(more))
