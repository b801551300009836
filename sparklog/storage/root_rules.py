"""What is asked of a root before it is used: that it lies where roots may lie, and that it is the one meant.

Whoever lets somebody else say where the root is (a broker's answer, an option, SQL) may say what is
acceptable. The place bounds what a liar can have us open. The cluster id tells mistakes: another root mounted
in the place of the first, another broker behind an address. It is no secret; a liar who knows it can show it.

Invariants: the place is judged before anything is read there. With a cluster id no root is ever made.
Not here: where a prefix ends (allowed_roots.py), reading a root's cluster id (documents/properties.py).
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparklog.errors import InvalidRequestError
from sparklog.redaction import shown
from sparklog.storage.allowed_roots import (
    AllowedRoots,
    allowed_by_environment,
    parse_allowed_roots,
    validate_allowed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRules:
    """Picklable.

    Fields:
        cluster_id: of the root that is meant; None: whichever is there.
        allowed: it must lie within each of these.
    """

    cluster_id: str | None = None
    allowed: tuple[AllowedRoots, ...] = ()

    def validate_place(self, root: str | os.PathLike[str]) -> None:
        """Before anything of the root is read.

        Raises:
            InvalidRequestError: ROOT_NOT_ALLOWED.
        """
        validate_allowed(root, self.allowed)

    def validate_cluster_id(self, found: str, where: str) -> None:
        """Before anything of the root is used.

        Raises:
            InvalidRequestError: WRONG_ROOT.
        """
        if self.cluster_id is not None and found != self.cluster_id:
            raise InvalidRequestError(
                "WRONG_ROOT",
                f"{where}: found cluster id {shown('cluster', found)}, expected "
                f"{shown('cluster', self.cluster_id)}",
                fix="Name the root, or the broker, that is meant; or correct the cluster id: option "
                "clusterId, cluster_id in Python, --cluster-id",
            )


ANY_ROOT = RootRules()


def root_rules(
    cluster_id: str | None, allowed_roots: str | Iterable[str] | None, environment: Mapping[str, str]
) -> RootRules:
    """The rules that were given, and those of the environment.

    Raises:
        InvalidRequestError: INVALID_OPTION.
    """
    if cluster_id is not None and not cluster_id.strip():
        raise InvalidRequestError(
            "INVALID_OPTION",
            "the cluster id is empty",
            fix="Give the id that sparklog root describe shows, or none",
        )
    allowed = allowed_by_environment(environment)
    if allowed_roots is not None:
        allowed += (parse_allowed_roots(allowed_roots),)
    if cluster_id is None and not allowed:
        return ANY_ROOT
    return RootRules(cluster_id=None if cluster_id is None else cluster_id.strip(), allowed=allowed)
