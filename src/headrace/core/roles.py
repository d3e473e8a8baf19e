"""Who may do what on the operator's port? Three roles, each of which may do all that the one before it may."""

from enum import IntEnum


class Role(IntEnum):
    """What somebody at the admin port may do.

    VIEWER: look at everything: status, metrics, tenants, keys, the audit log. No secret is ever shown.
    OPERATOR: daily work: make, rotate and revoke keys, change what is agreed with a tenant.
    ADMIN: create and delete tenants, and decide who else may come in.
    """

    VIEWER = 0
    OPERATOR = 1
    ADMIN = 2

    @property
    def word(self) -> str:
        """The role's name in commands, tables and JSON."""
        return self.name.lower()


ROLES = {role.word: role for role in Role}
"""The roles by their names."""
