"""Servers that a cloud runs: which service it is, and what is set or kept differently there.

From what the services document, what others' code asks them, and what clients and dumps show of such servers; none was available for a test.
Seen so: version() `8.4.8-google` (5.7: `5.7.25-google-log`), version_comment `(Google)`; `8.4.5-azure`, `Source distribution`, and
before such versions a variable aad_auth_only; basedir `/rdsdbbin/...`. Of cloudsql_iam_authentication only the flag was seen, not a variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

SERVICE_VARIABLES = ("aad_auth_only", "aurora_version", "basedir", "cloudsql_iam_authentication", "version_comment")


class Service(NamedTuple):
    """A managed service. `setting`: how a variable is set there, with {name} and {value}; `binlog`: what switches the binlog on;
    `retention`: what keeps its files for {hours}, where that is no variable."""

    name: str
    setting: str
    binlog: str
    retention: str = ""

    def fix(self, fix: str) -> str:
        """Return `fix` as this service allows it: no process has SUPER there, so SET GLOBAL is refused."""
        if fix.startswith("set log_bin"):
            return self.binlog
        wanted = dict(re.findall(r"SET (?:GLOBAL|PERSIST) (\w+) = ([\w.]+)", fix))  # the last of several steps
        if not wanted:
            return fix
        return "; ".join(self.setting.format(name=name, value=value) for name, value in wanted.items())


RDS = Service(
    "Amazon RDS",
    "{name} = {value} in the instance's DB parameter group",
    "turn automated backups on (a backup retention period above 0)",
    "CALL mysql.rds_set_configuration('binlog retention hours', {hours});",
)
AURORA = Service(
    "Amazon Aurora",
    "{name} = {value} in the DB cluster parameter group",
    "binlog_format = ROW in the DB cluster parameter group, then reboot the writer, and read from the cluster's writer endpoint",
    RDS.retention,
)
CLOUD_SQL = Service(
    "Google Cloud SQL",
    "gcloud sql instances patch INSTANCE --database-flags={name}={value} (with all the other flags)",
    "turn point-in-time recovery on: gcloud sql instances patch INSTANCE --enable-bin-log",
)
AZURE = Service(
    "Azure Database for MySQL",
    "az mysql flexible-server parameter set --resource-group GROUP --server-name SERVER --name {name} --value {value}",
    "its binlog is always on: is this a flexible server?",
)


def service_of(host: str, version: str, variables: Mapping[str, str]) -> Service | None:
    """Return the service that a server belongs to, by its variables, version and address; None for one of your own."""
    basedir, comment = variables.get("basedir", ""), variables.get("version_comment", "").lower()
    if "aurora_version" in variables or "aurora" in basedir:
        return AURORA
    if "rdsdbbin" in basedir or host.endswith((".rds.amazonaws.com", ".rds.amazonaws.com.cn")):
        return RDS
    if "-google" in version or "(google)" in comment or "cloudsql_iam_authentication" in variables:
        return CLOUD_SQL
    if "azure" in f"{version} {comment}".lower() or "aad_auth_only" in variables or ".mysql.database." in host:
        return AZURE
    return None
