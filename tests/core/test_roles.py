"""May each role do all that the one before it may?"""

from headrace.core.roles import ROLES, Role


def test_roles_are_in_order_and_go_by_their_words() -> None:
    assert Role.VIEWER < Role.OPERATOR < Role.ADMIN
    assert {role.word: role for role in Role} == ROLES
