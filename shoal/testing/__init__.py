"""What any policy, searcher, profile or backend must do, as functions to call from a test.

>>> from shoal.testing import check_policy
>>> def test_mine():
...     check_policy(MyPolicy)

Each raises AssertionError with what was violated. Needs `hypothesis`.
"""

from shoal.testing.backends import Setting as Setting
from shoal.testing.backends import check_backend as check_backend
from shoal.testing.deciders import check_policy as check_policy
from shoal.testing.deciders import check_profile as check_profile
from shoal.testing.deciders import check_searcher as check_searcher
from shoal.testing.journals import check_journal as check_journal
from shoal.testing.worlds import World as World
from shoal.testing.worlds import worlds as worlds
